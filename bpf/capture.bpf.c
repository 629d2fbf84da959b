/* Capture engine `ebpf`: what of all system calls goes to the agent, and with which facts.
 *
 * One program sees every call on its way back to the caller: the arguments are still in the
 * registers, the result is known, and an opened file is there to be looked at. It leaves at the
 * first of these that says no: the call's number, its arguments and result, who calls, the path.
 * All of them are tables that the agent made from the rules (crates/capture/src/ebpf/tables.rs).
 * Whatever cannot be read counts as yes.
 */
#include "kernel.h"
#include "processes.h"
#include "calls.h"
#include "ring.h"

char LICENSE[] SEC("license") = "Dual BSD/GPL";

/* Ways to see calls return, of which the agent attaches one (crates/capture/src/ebpf/hooks.rs). This
 * one runs at every call of the machine: what it does before it leaves is the price of all others. */
SEC("tp_btf/sys_exit")
int BPF_PROG(sys_exit, struct pt_regs *regs, long result)
{
	return call_returned(regs, result);
}

/* For measurements: what the kernel takes for asking at all. */
SEC("?tp_btf/sys_exit")
int nothing(void *ctx)
{
	return 0;
}

struct exit_of_call {
	u64 common;
	s64 nr;
	s64 result;
};

/* Runs at the calls that it is attached to, as far as they enter by the native convention. */
SEC("?tp")
int call_exit(struct exit_of_call *ctx)
{
	struct pt_regs *regs = (void *)bpf_task_pt_regs(bpf_get_current_task_btf());

	return call_returned(regs, ctx->result);
}

/* Where functions' own programs go on; one for each type of function, see function_exit. */
struct {
	__uint(type, BPF_MAP_TYPE_PROG_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, u32);
} bodies SEC(".maps"), bodies_plain SEC(".maps");

/* Functions that carry out calls jump to one of these when they return. The kernel has two types of
 * them, and a program can go with one. */
SEC("?fexit")
int function_exit(u64 *ctx)
{
	struct pt_regs *regs = (void *)bpf_task_pt_regs(bpf_get_current_task_btf());

	return call_returned(regs, ctx[1]);
}

SEC("?fexit")
int function_exit_plain(u64 *ctx)
{
	struct pt_regs *regs = (void *)bpf_task_pt_regs(bpf_get_current_task_btf());

	return call_returned(regs, ctx[1]);
}

/* Threads of the kernel and those that it makes for a process have made no call. */
#define PF_IO_WORKER 0x10
#define PF_USER_WORKER 0x4000
#define PF_KTHREAD 0x200000

/* The new task of a clone does not come back through the function that carried the call out. */
SEC("?fexit")
int first_run(u64 *ctx)
{
	struct task_struct *task = bpf_get_current_task_btf();
	struct pt_regs *regs;

	if (task->flags & (PF_IO_WORKER | PF_USER_WORKER | PF_KTHREAD))
		return 0;
	regs = (void *)bpf_task_pt_regs(task);
	return call_returned(regs, 0);
}

