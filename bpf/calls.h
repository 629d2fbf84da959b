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

		if (losses)
			*losses += 1;
	}
}

/* The same as a function of its own, as is what comes next: the verifier checks each once, and the stack that they need
 * is not there any more for what is called after them. */
__noinline int finish_call(u32 key)
{
	struct scratch *s = working_memory();
	struct row *row = bpf_map_lookup_elem(&rows, &key);

	if (!s || !row)
		return 0;
	end_call(s, row, key);
	return 0;
}

/* A call has an end: if it is one that was interrupted, its thread is in none any more. */
static __always_inline void has_ended(struct pt_regs *regs, u32 nr)
{
	u32 tid = (u32)bpf_get_current_pid_tgid();
	struct interrupted *former = bpf_map_lookup_elem(&interrupted, &tid);

	if (!former || former->nr != nr || former->ip != address_of_call(regs))
		return;
	if (!bpf_map_delete_elem(&interrupted, &tid))
		__sync_fetch_and_sub(&interruptions, 1);
}

/* Keeps a call until it is made again. A handler may never return: then the end of the thread tells the call, or
 * the next one that is interrupted. Leaves in `told` the call that is to be told now; false: there is none. */
static __always_inline bool keep_interrupted(struct interrupted *told)
{
	u32 tid = (u32)bpf_get_current_pid_tgid();
	struct interrupted *former = bpf_map_lookup_elem(&interrupted, &tid);

	if (former) {
		u64 *kept = (void *)former, *now = (void *)told;

		if (former->nr == told->nr && former->ip == told->ip)
			return false;
		/* By words, so that none of them needs the stack. */
		for (u32 i = 0; i < sizeof(*told) / sizeof(u64); i++) {
			u64 word = kept[i];

			kept[i] = now[i];
			now[i] = word;
		}
		return true;
	}
	/* Without room. */
	if (bpf_map_update_elem(&interrupted, &tid, told, BPF_NOEXIST))
		return true;
	__sync_fetch_and_add(&interruptions, 1);
	return false;
}

/* In two steps: the verifier takes no load from one of two kinds of memory. */
static __always_inline u64 place_of_call(struct pt_regs *regs, const struct interrupted *former)
{
	u64 ip = 0;

	if (former)
		ip = former->ip;
	asm volatile("" : "+r"(ip) : : "memory");
	if (!former)
		ip = address_of_call(regs);
	return ip;
}

/* A call that rules ask for has returned. Functions are few on the way to where most calls leave: on
 * processors that return from a function by a detour, for fear of what they would guess, each of them and
 * each helper costs as much as some twenty comparisons. `former`: a call that a signal has interrupted, in the
 * place of the one that the registers tell. */
static __noinline int returned(struct pt_regs *regs, const struct interrupted *former, long result,
			       struct task_struct *caller, u32 abi)
{
	struct scratch *s;
	struct row *row;
	u32 nr = former ? former->nr : number_of(regs);
	u32 version = control.version, bank = version & 1, key, operation = 0;
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
	/* Not the end of the call: see signal_deliver. */
	if (is_open(result))
		return 0;
	if (interruptions && !former)
		has_ended(regs, nr);
	if (!(row->flags & ROW_SOCKETCALL) && !by_result(row, result)) {
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
	if (former)
		for (int i = 0; i < 6; i++)
			s->header.args[i] = former->args[i];
	else
		registers(regs, abi, s->header.args);
	/* Read again, so that the verifier forgets by which way it came here, and follows one of them on. */
	abi = *(volatile u8 *)&s->header.abi;
	result = *(volatile u64 *)&s->header.result;
	if (row->flags & ROW_SOCKETCALL) {
		u32 *real = s->real, read, which, words;

		operation = s->header.args[0];
		if (operation >= 32)
			return 0;
		/* One by one: the array has as many as the call takes, and may end where a page does. */
		__builtin_memset(s->real, 0, sizeof(s->real));
		words = operation == SYS_SEND || operation == SYS_RECV ? 4 : 6;
		for (read = 0; read < 6; read++)
			if (read >= words || bpf_probe_read_user(&real[read], sizeof(real[read]),
						(void *)(s->header.args[1] + read * sizeof(real[read]))))
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
			s->header.args[i] = real[i];
		words = words < row->flags >> ROW_WORDS_SHIFT ? words : row->flags >> ROW_WORDS_SHIFT;
		is_unread = read < words;
		operation |= read << 16;
	}
	slots = by_result(row, result);
	if (is_unread)
		count(COUNT_UNREADABLE);
	else
		slots &= by_arguments(key);
	if (!slots) {
		count(COUNT_REGISTERS);
		return 0;
	}
	if (!in_scope(caller->tgid)) {
		count(COUNT_SCOPE);
		return 0;
	}
	if (control.filters && !is_unread && !narrowed(s, version, row, key, abi, slots))
		return 0;
	begin_call(s, abi, nr, key);
	s->header.socketcall = operation;
	s->header.ip = place_of_call(regs, former);
	for (u32 i = 0; i < FETCHES; i++) {
		if (i >= row->fetches)
			break;
		take_one(key, i, abi);
	}
	finish_call(key);
	return 0;
}

/* A call has returned; most leave here. */
static __always_inline int call_returned(struct pt_regs *regs, long result)
{
	u32 nr = number_of(regs), conventions = asked_by_convention(nr, result), abi;
	struct task_struct *caller;

	if (!conventions)
		return 0;
	caller = caller_task();
	abi = abi_of(nr, caller);
	if (!(conventions >> abi & 1))
		return 0;
	return returned(regs, NULL, result, caller, abi);
}

/* Default effects of signals that end nobody: SIGCONT, SIGSTOP, SIGTSTP, SIGTTIN, SIGTTOU, SIGCHLD, SIGURG and
 * SIGWINCH. After them an interrupted call is made again. */
#define SIGNALS_SPARING (1ULL << 18 | 1ULL << 19 | 1ULL << 20 | 1ULL << 21 | 1ULL << 22 | 1ULL << 17 | \
			 1ULL << 23 | 1ULL << 28)
#define SA_RESTART 0x10000000
#define SIG_IGN 1

/* What a signal makes of a call that returned this to the kernel. */
#define GOES_ON 0 /* it is made again at once */
#define MADE_AGAIN 1 /* when the handler has returned */
#define FAILS 2

static __always_inline u32 effect(s64 result, int signal, struct k_sigaction *action)
{
	u64 handler = (u64)READ(action, sa.sa_handler);

	if (handler == SIG_IGN)
		return GOES_ON;
	if (!handler)
		return signal <= 31 && SIGNALS_SPARING >> signal & 1 ? GOES_ON : FAILS;
	if (result == -ERESTARTNOHAND ||
	    (result == -ERESTARTSYS && !(READ(action, sa.sa_flags) & SA_RESTART)))
		return FAILS;
	return MADE_AGAIN;
}

/* A signal is about to be delivered, which decides what becomes of the call that it has interrupted: registers
 * are still those of the call. */
SEC("tp_btf/signal_deliver")
int BPF_PROG(signal_deliver, int signal, void *info, struct k_sigaction *action)
{
#if defined(__TARGET_ARCH_x86)
	struct task_struct *caller = bpf_get_current_task_btf();
	struct pt_regs *regs = (void *)bpf_task_pt_regs(caller);
	s64 result = (s64)regs->ax;
	u32 what, nr = number_of(regs), abi;
	struct scratch *s = working_memory();
	struct interrupted *told;

	/* Of an exception, or where there is no call, the number is -1. */
	if (!is_open(result) || (s64)regs->orig_ax < 0)
		return 0;
	if (!s) {
		count(COUNT_NO_MEMORY);
		return 0;
	}
	told = &s->told;
	abi = abi_of(nr, caller);
	if (!(asked_by_convention(nr, -EINTR) >> abi & 1))
		return 0;
	what = effect(result, signal, action);
	told->nr = nr;
	told->abi = abi;
	told->ip = address_of_call(regs);
	registers(regs, abi, told->args);
	if (what == GOES_ON || (what == MADE_AGAIN && !keep_interrupted(told)))
		return 0;
	if (what == FAILS && interruptions)
		has_ended(regs, nr);
	return returned(regs, told, -EINTR, caller_task(), told->abi);
#else
	return 0;
#endif
}

/* A thread ends that is in a call which was to be made again: its handler has not returned. */
SEC("tp_btf/sched_process_exit")
int BPF_PROG(thread_exit, struct task_struct *task)
{
	struct task_struct *caller = bpf_get_current_task_btf();
	u32 tid = (u32)bpf_get_current_pid_tgid();
	struct scratch *s = working_memory();
	struct interrupted *found;

	if (!interruptions)
		return 0;
	found = bpf_map_lookup_elem(&interrupted, &tid);
	if (!found)
		return 0;
	if (!s) {
		count(COUNT_NO_MEMORY);
		return 0;
	}
	s->told = *found;
	if (!bpf_map_delete_elem(&interrupted, &tid))
		__sync_fetch_and_sub(&interruptions, 1);
	return returned((void *)bpf_task_pt_regs(caller), &s->told, -EINTR, caller_task(), s->told.abi);
}

#endif
