/* Calls that return. */
#ifndef TOLLGATE_CALLS_H
#define TOLLGATE_CALLS_H

#include "fetch.h"
#include "filter.h"
#include "lanes.h"

/* Begins the record of a call, whose arguments and result are in it already. */
static __always_inline void begin_call(struct scratch *s, u32 abi, u32 nr, u32 key)
{
	describe(bpf_get_current_task(), RECORD_CALL);
	s->header.abi = abi;
	s->header.nr = nr;
	s->header.row = key;
}

/* Adds what goes with any call, and sends the record. */
static __always_inline void end_call(struct scratch *s, const struct row *row, u32 key)
{
	if (row->flags & ROW_STREAMS)
		take_streams();
	take_place(bpf_get_current_task());
	if (send(s, row->flags)) {
		u64 *losses = bpf_map_lookup_elem(&lost, &key);

		count(row->flags & ROW_CRITICAL ? COUNT_LOST_CRITICAL : COUNT_LOST_BULK);
		if (losses)
			*losses += 1;
	} else {
		count(COUNT_SENT);
	}
}

/* A call that rules ask for has returned. Functions are few on the way to where most calls leave: on
 * processors that return from a function by a detour, for fear of what they would guess, each of them and
 * each helper costs as much as some twenty comparisons. */
static __noinline int returned(struct pt_regs *regs, long result, struct task_struct *caller, u32 abi)
{
	struct arguments arguments = {};
	struct scratch *s;
	struct row *row;
	u32 nr = number_of(regs), version = control.version, bank = version & 1, key, operation = 0;
	bool is_unread = false;
	u64 slots;

	if (abi >= ABIS)
		return 0;

	key = bank * ROWS + calls.row[bank][abi][nr & (CALLS - 1)];
	if ((key & (ROWS - 1)) == 0)
		return 0;
	row = bpf_map_lookup_elem(&rows, &key);
	if (!row)
		return 0;
	if (row->flags & ROW_EXEC && result == 0)
		return 0;
	if (!(row->flags & ROW_SOCKETCALL) && !by_result(row, result)) {
		count(COUNT_REGISTERS);
		return 0;
	}
	registers(regs, abi, arguments.value);
	if (row->flags & ROW_SOCKETCALL) {
		u32 real[6] = {}, read, which, words;

		operation = arguments.value[0];
		if (operation >= 32)
			return 0;
		/* One by one: the array has as many as the call takes, and may end where a page does. */
		words = operation == SYS_SEND || operation == SYS_RECV ? 4 : 6;
		for (read = 0; read < 6; read++)
			if (read >= words || bpf_probe_read_user(&real[read], sizeof(real[read]),
						(void *)(arguments.value[1] + read * sizeof(real[read]))))
				break;
		/* Said again, because the compiler keeps the bound to itself. */
		which = operation;
		asm volatile("%0 &= 31" : "+r"(which));
		key = (key & ~(ROWS - 1)) | (row->socketcall[which] & (ROWS - 1));
		if ((key & (ROWS - 1)) == 0)
			return 0;
		row = bpf_map_lookup_elem(&rows, &key);
		if (!row)
			return 0;
		for (int i = 0; i < 6; i++)
			arguments.value[i] = real[i];
		words = words < row->flags >> ROW_WORDS_SHIFT ? words : row->flags >> ROW_WORDS_SHIFT;
		is_unread = read < words;
		operation |= read << 16;
	}
	slots = by_result(row, result);
	if (is_unread)
		count(COUNT_UNREADABLE);
	else
		slots &= by_arguments(row, &arguments);
	if (!slots) {
		count(COUNT_REGISTERS);
		return 0;
	}
	s = working_memory();
	if (!s) {
		count(COUNT_NO_MEMORY);
		return 0;
	}
	s->header.abi = abi;
	s->header.result = result;
	for (int i = 0; i < 6; i++)
		s->header.args[i] = arguments.value[i];
	if (!in_scope(caller->tgid)) {
		count(COUNT_SCOPE);
		return 0;
	}
	if (control.filters && !is_unread && !narrowed(s, caller, version, row, key, abi, slots))
		return 0;
	begin_call(s, abi, nr, key);
	s->header.socketcall = operation;
#if defined(__TARGET_ARCH_x86)
	s->header.ip = regs->ip;
#else
	s->header.ip = regs->pc;
#endif
	for (u32 i = 0; i < FETCHES; i++) {
		if (i >= row->fetches)
			break;
		take_one(key, i, abi);
	}
	end_call(s, row, key);
	return 0;
}

/* A call has returned; most leave here. */
static __always_inline int call_returned(struct pt_regs *regs, long result)
{
	u32 nr = number_of(regs), conventions = asked_by_convention(nr, result), abi;
	struct task_struct *caller;

	if (!conventions)
		return 0;
	caller = bpf_get_current_task_btf();
	abi = abi_of(nr, caller);
	if (!(conventions >> abi & 1))
		return 0;
	return returned(regs, result, caller, abi);
}

#endif
