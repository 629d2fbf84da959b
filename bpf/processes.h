/* Execs, forks and ends. */
#ifndef TOLLGATE_PROCESSES_H
#define TOLLGATE_PROCESSES_H

#include "lanes.h"
#include "registers.h"

/* So many bytes of it in each. */
#define STACK_PIECE (PIECE_LIMIT * 2)
/* More than there is room for. */
#define ENVIRONMENT_PIECES 3

/* Text that the kernel has put on the new stack. */
__noinline int take_stack(u64 start, u64 end, u32 kind, u64 address)
{
	struct scratch *s = working_memory();
	u64 len = end - start;
	u32 at, status = 0;

	if (!s)
		return -1;
	at = room(s);
	if (at > START_LIMIT || start >= end)
		return -1;
	if (len > STACK_PIECE) {
		len = STACK_PIECE;
		status = PIECE_CUT;
	}
	bounded(len, STACK_PIECE);
	if (bpf_probe_read_user(at_offset(s, at + sizeof(struct piece)), len, (void *)start)) {
		count(COUNT_UNREADABLE);
		return -1;
	}
	seal(s, at, kind, len, status, address);
	return 0;
}

/* The environment, in as many pieces as there is room for. */
static __always_inline void take_environment(u64 start, u64 end)
{
	u64 whole = end - start;

	for (u32 i = 0; i < ENVIRONMENT_PIECES; i++) {
		u64 next = start + STACK_PIECE;

		if (start >= end)
			break;
		take_stack(start, next < end ? next : end, PIECE_ENVIRONMENT, whole);
		start = next;
	}
}

/* Threads that are in the rare one of the two calls that start a program. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 1024);
	__type(key, u32);
	__type(value, u8);
} at_execveat SEC(".maps");

static __always_inline void note_execveat(void)
{
	u32 tid = (u32)bpf_get_current_pid_tgid();
	u8 yes = 1;

	bpf_map_update_elem(&at_execveat, &tid, &yes, BPF_ANY);
}

static __always_inline bool is_execveat(u32 nr, u32 abi)
{
#if defined(__TARGET_ARCH_x86)
	if (abi == ABI_COMPAT)
		return nr == 358;
	return nr == (abi == ABI_X32 ? X32_BIT | 545 : 322);
#else
	return nr == (abi == ABI_COMPAT ? 387 : 281);
#endif
}

/* Since 6.10. Afterwards the kernel puts another number into the register. */
SEC("?tp_btf/sched_prepare_exec")
int BPF_PROG(prepare_exec, struct task_struct *task, struct linux_binprm *bprm)
{
	struct task_struct *caller = bpf_get_current_task_btf();
	u32 nr = number_of((void *)bpf_task_pt_regs(caller)), tid = (u32)bpf_get_current_pid_tgid();

	if (is_execveat(nr, abi_of(nr, caller)))
		note_execveat();
	else
		bpf_map_delete_elem(&at_execveat, &tid);
	return 0;
}

/* The same before 6.10: any hook of this kind costs every call of the machine something. */
SEC("?tracepoint/syscalls/sys_enter_execveat")
int enter_execveat(void *ctx)
{
	note_execveat();
	return 0;
}

SEC("?tracepoint/syscalls/sys_exit_execveat")
int exit_execveat(void *ctx)
{
	u32 tid = (u32)bpf_get_current_pid_tgid();

	bpf_map_delete_elem(&at_execveat, &tid);
	return 0;
}

/* The same where functions can be hooked. */
SEC("?fentry")
int function_execveat(void *ctx)
{
	note_execveat();
	return 0;
}

/* Whether a thread was, and forgets it. */
static __always_inline bool was_at_execveat(u32 tid)
{
	if (!bpf_map_lookup_elem(&at_execveat, &tid))
		return false;
	bpf_map_delete_elem(&at_execveat, &tid);
	return true;
}

/* The path as it was passed. */
static __always_inline void take_filename(struct scratch *s, const char *name)
{
	u32 at = room(s);
	long len;

	if (at > START_LIMIT)
		return;
	len = bpf_probe_read_kernel_str(at_offset(s, at + sizeof(struct piece)), PIECE_LIMIT, name);
	if (len > 0)
		seal(s, at, PIECE_FILENAME, len, PIECE_STRING, 0);
}

/* A process has another name than at its last exec, or may have. */
static __always_inline void note_renamed(s32 pid)
{
	u8 yes = 1;

	if (bpf_map_update_elem(&renamed, &pid, &yes, BPF_ANY))
		names_unknown = 1;
}

/* Also in the middle of an exec, whose end takes it back. */
SEC("tp_btf/task_rename")
int BPF_PROG(task_rename, struct task_struct *task, const char *comm)
{
	s32 pid = READ(task, tgid);

	/* The name of a process is that of its first thread. The kernel's own threads are none. */
	if (READ(task, pid) == pid && READ(task, mm))
		note_renamed(pid);
	return 0;
}

SEC("tp_btf/sched_process_exec")
int BPF_PROG(sched_process_exec, struct task_struct *task, int old_pid, struct linux_binprm *bprm)
{
	struct scratch *s = working_memory();
	s32 pid = READ(task, tgid);
	struct mm_struct *mm;
	u64 arg_start, arg_end, env_start, env_end;

	bpf_map_delete_elem(&renamed, &pid);

	if (!s || !control.states || !in_scope(pid))
		return 0;
	describe(bpf_get_current_task(), RECORD_EXEC);
	/* Which of the two calls it was is in no register any more. A thread that is not the first one has its
	 * number no more. */
	if (was_at_execveat(old_pid) || was_at_execveat((u32)bpf_get_current_pid_tgid()))
		s->header.nr = EXEC_AT;
	mm = READ(task, mm);
	arg_start = READ(mm, arg_start);
	arg_end = READ(mm, arg_end);
	env_start = READ(mm, env_start);
	env_end = READ(mm, env_end);
	take_file(address_of(s, READ(mm, exe_file)), PIECE_EXECUTABLE, 0);
	take_stack(arg_start, arg_end, PIECE_ARGUMENTS, arg_start);
	take_directory(AT_FDCWD);
	take_place(bpf_get_current_task());
	if (control.streams)
		take_streams();
	take_filename(s, READ(bprm, filename));
	/* Last, because it may not fit. */
	if (control.environment)
		take_environment(env_start, env_end);
	send_state(s, SOON);
	return 0;
}

SEC("tp_btf/sched_process_fork")
int BPF_PROG(sched_process_fork, struct task_struct *parent, struct task_struct *child)
{
	struct scratch *s = working_memory();
	s32 pid = READ(child, tgid), from = READ(parent, tgid);
	u64 address;
	u8 yes = 1;

	/* A thread. */
	if (!s || READ(child, pid) != pid)
		return 0;
	if (bpf_map_lookup_elem(&renamed, &from))
		note_renamed(pid);
	if (!in_scope(from))
		return 0;
	/* One that finds no room is not watched. */
	if (control.scoped & SCOPE_PIDS) {
		if (bpf_map_update_elem(&scope, &pid, &yes, BPF_ANY))
			count(COUNT_NO_MEMORY);
		__sync_fetch_and_add(&births, 1);
	}
	if (!control.states)
		return 0;
	/* As a number: functions of their own take no kernel pointers. */
	if (bpf_probe_read_kernel(&address, sizeof(address), ctx + 1))
		return 0;
	describe_briefly(address, RECORD_FORK);
	send_state(s, LATER);
	return 0;
}

SEC("tp_btf/sched_process_exit")
int BPF_PROG(sched_process_exit, struct task_struct *task)
{
	struct scratch *s = working_memory();
	s32 pid = READ(task, tgid);

	/* The last thread takes the process along. */
	if (!s || READ(task, signal, live.counter) != 0)
		return 0;
	bpf_map_delete_elem(&renamed, &pid);
	if (!in_scope(pid))
		return 0;
	if (control.scoped & SCOPE_PIDS)
		bpf_map_delete_elem(&scope, &pid);
	if (!control.states)
		return 0;
	if (!control.ends) {
		describe_briefly(bpf_get_current_task(), RECORD_EXIT);
		send_state(s, LATER);
		return 0;
	}
	describe(bpf_get_current_task(), RECORD_EXIT);
	if (control.streams)
		take_streams();
	take_place(bpf_get_current_task());
	send_state(s, LATER);
	return 0;
}

#endif
