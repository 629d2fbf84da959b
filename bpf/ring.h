/* Calls by an io_uring, which pass no hook of calls. Opens become events: their path is noted when they
 * are submitted, and looked at when they are complete. Of others that rules ask for it is told who made
 * them.
 */
#ifndef TOLLGATE_RING_H
#define TOLLGATE_RING_H

#include "calls.h"

#define RING_NAME 512

/* An open that is under way. */
struct ring_open {
	u64 address; /* of the path, in the caller's memory */
	u64 flags;
	u64 mode;
	s32 directory;
	u32 len; /* of the path, with its NUL */
	u32 is_direct; /* the result is no descriptor */
	u32 _pad;
	u8 path[RING_NAME];
};

/* By request. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 4096);
	__type(key, u64);
	__type(value, struct ring_open);
} ring_opens SEC(".maps");

struct ring_teller {
	u64 start; /* of the process */
	s32 pid;
	u32 operation;
};

/* Which process was told of for which operation. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 4096);
	__type(key, struct ring_teller);
	__type(value, u8);
} ring_told SEC(".maps");

/* include/uapi/linux/io_uring.h */
#define IORING_OP_OPENAT 18
#define IORING_OP_OPENAT2 28

/* The key of the row that rules have for a native call. */
static __always_inline u32 row_of_native(u32 version, u32 nr)
{
	u32 bank = version & 1;

	return bank * ROWS + calls.row[bank][ABI_NATIVE][nr & (CALLS - 1)];
}

static __always_inline u32 key_of_operation(u32 operation)
{
	u32 nr = ring_calls[operation & (RING_OPERATIONS - 1)];

	return nr ? row_of_native(control.version, nr - 1) : 0;
}

/* Tells once that a process makes calls in a way that makes no events of them. */
static __always_inline void tell_of_ring(struct scratch *s, u32 key, u32 operation)
{
	struct task_struct *task = caller_task();
	struct ring_teller teller = {
		.start = start_of(task->group_leader),
		.pid = task->tgid,
		.operation = operation,
	};
	u8 yes = 1;

	count(COUNT_RING);
	/* It exists already. */
	if (bpf_map_update_elem(&ring_told, &teller, &yes, BPF_NOEXIST))
		return;
	describe((u64)bpf_get_current_task(), RECORD_RING);
	s->header.nr = operation;
	s->header.row = key;
	take_place(bpf_get_current_task());
	send_state(s, SOON);
}

static __always_inline struct filename *name_of_open(struct io_open *asked)
{
	struct io_open___7_0 *newer = (void *)asked;

	if (field_exists(newer->filename.__incomplete_filename))
		return BPF_CORE_READ(newer, filename.__incomplete_filename);
	return BPF_CORE_READ(asked, filename);
}

/* Keeps what an open is about: its path is forgotten before the open is complete. */
__noinline int note_ring_open(u64 request)
{
	struct scratch *s = working_memory();
	struct ring_open *made;
	struct io_open *asked = (void *)request;
	struct filename *filename;
	long len;

	if (!s)
		return 0;
	made = at_offset(s, TRUE_PATH);
	filename = name_of_open(asked);
	/* Since 7.0 the kernel does not keep the address. Nothing can be at this one: without the path below it cannot
	   be read. */
	made->address = field_exists(filename->uptr) ? (u64)BPF_CORE_READ(filename, uptr) : 1;
	made->flags = BPF_CORE_READ(asked, how.flags);
	made->mode = BPF_CORE_READ(asked, how.mode);
	made->directory = BPF_CORE_READ(asked, dfd);
	/* Since 5.15. */
	made->is_direct = field_exists(asked->file_slot) && BPF_CORE_READ(asked, file_slot) != 0;
	made->_pad = 0;
	len = bpf_probe_read_kernel_str(made->path, RING_NAME, BPF_CORE_READ(filename, name));
	made->len = len > 0 ? len : 0;
	bpf_map_update_elem(&ring_opens, &request, made, BPF_ANY);
	return 0;
}

/* A call was handed to a ring and looked at by the kernel, and is about to be carried out. */
__noinline int submitted(u64 request)
{
	struct scratch *s = working_memory();
	struct io_kiocb *made = (void *)request;
	u32 operation = BPF_CORE_READ(made, opcode), key;

	if (!s)
		return 0;
	key = key_of_operation(operation);
	if ((key & (ROWS - 1)) == 0 || !in_scope(bpf_get_current_pid_tgid() >> 32))
		return 0;
	/* Of older kernels what becomes of it is not known. */
	if (field_exists(made->cqe) &&
	    (operation == IORING_OP_OPENAT || operation == IORING_OP_OPENAT2))
		return note_ring_open(request);
	tell_of_ring(s, key, operation);
	return 0;
}

/* The path as it was when the open was submitted, in the place of the caller's memory. */
static __always_inline void take_noted(struct scratch *s, const struct ring_open *open)
{
	u32 at = room(s), len = open->len;

	if (at > START_LIMIT || len == 0)
		return;
	bounded_or(len, RING_NAME, );
	if (bpf_probe_read_kernel(at_offset(s, at + sizeof(struct piece)), len, open->path))
		return;
	seal(s, at, PIECE_MEMORY, len, PIECE_STRING | (len == RING_NAME ? PIECE_CUT : 0),
	     open->address);
}

/* Slots that take an open by a ring. */
static __always_inline u64 by_ring_open(struct scratch *s, u32 version, const struct ring_open *open)
{
	s64 result = s->header.result;
	u32 len = open->len;

	if (len < 2 || len >= RING_NAME || (open->is_direct && result >= 0))
		return ALL_SLOTS;
	bounded_or(len, RING_NAME, ALL_SLOTS);
	if (bpf_probe_read_kernel(at_offset(s, PASSED_PATH), len, open->path))
		return ALL_SLOTS;
	return by_opened_once(version, result, len - 1);
}

/* An open by a ring is complete: an event as if it had been made by openat. */
__noinline int completed(u64 request, s64 result)
{
	struct scratch *s = working_memory();
	struct ring_open *open = bpf_map_lookup_elem(&ring_opens, &request);
	u32 version = control.version, bank = version & 1, nr = ring_calls[IORING_OP_OPENAT] - 1;
	u32 key = row_of_native(version, nr);
	struct row *row = bpf_map_lookup_elem(&rows, &key);
	u64 slots, any_path = asked_by(bank)->any_path;

	if (!s)
		return 0;
	if (!open) {
		/* Forgotten for want of room, or submitted before the watch began. */
		if (row && (key & (ROWS - 1)) && in_scope(bpf_get_current_pid_tgid() >> 32))
			tell_of_ring(s, key, IORING_OP_OPENAT);
		return 0;
	}
	if (!row || (key & (ROWS - 1)) == 0)
		goto out;
	s->header.args[0] = (s64)open->directory;
	s->header.args[1] = open->address;
	s->header.args[2] = open->flags;
	s->header.args[3] = open->mode;
	s->header.args[4] = 0;
	s->header.args[5] = 0;
	slots = by_result(row, result) & by_arguments(key);
	if (!slots) {
		count(COUNT_REGISTERS);
		goto out;
	}
	s->header.result = result;
	if (control.filters && slots & ~any_path) {
		slots &= any_path | by_ring_open(s, version, open);
		if (!slots) {
			count(COUNT_PATH);
			goto out;
		}
	}
	begin_call(s, ABI_NATIVE, nr, key);
	s->header.ip = 0;
	take_noted(s, open);
	if (open->len < 2 || open->path[0] != '/')
		take_directory(open->directory);
	if (result >= 0 && !open->is_direct)
		take_file(file_of(s, result), PIECE_FILE, result);
	end_call(s, row, key);
out:
	bpf_map_delete_elem(&ring_opens, &request);
	return 0;
}

/* As a number: functions of their own take no kernel pointers. */
static __always_inline int submitted_by(u64 *ctx)
{
	u64 request;

	return bpf_probe_read_kernel(&request, sizeof(request), ctx) ? 0 : submitted(request);
}

SEC("?tp_btf/io_uring_submit_req")
int ring_submit(u64 *ctx)
{
	return submitted_by(ctx);
}

/* The same until 6.3. */
SEC("?tp_btf/io_uring_submit_sqe")
int ring_submit_entry(u64 *ctx)
{
	return submitted_by(ctx);
}

SEC("?tp_btf/io_uring_complete")
int ring_complete(u64 *ctx)
{
	u64 request = ctx[1];
	struct io_kiocb *made = (void *)request;
	u32 operation;

	/* Since 5.19. */
	if (!request || !field_exists(made->cqe))
		return 0;
	operation = BPF_CORE_READ(made, opcode);
	if (operation != IORING_OP_OPENAT && operation != IORING_OP_OPENAT2)
		return 0;
	return completed(request, BPF_CORE_READ(made, cqe.res));
}

#endif
