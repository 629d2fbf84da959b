/* Which capabilities processes use, for `tollgate learn`: the kernel's own tracepoint of every question
 * for a capability (6.14). What it answers with yes is noted by process.
 */
#include "kernel.h"
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_tracing.h>

char LICENSE[] SEC("license") = "Dual BSD/GPL";

#define CAP_SYS_ADMIN 21
#define LAST_CAPABILITY 40
/* Set for a process that was asked about at all. */
#define ASKED (1ULL << 63)
#define PROCESSES 65536

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, PROCESSES);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, u32);
	__type(value, u64);
} uses SEC(".maps");

/* Questions that found no room. */
u64 lost;

#if defined(__TARGET_ARCH_x86)
struct pt_regs___call {
	unsigned long r11;
	unsigned long cx;
	unsigned long orig_ax;
	unsigned long ip;
	unsigned long flags;
} __attribute__((preserve_access_index));
#endif

/* Whether the kernel only wants to know how much memory it may promise, which it asks by the same
 * capability as mounts: a process without it gets nearly as much. Asked by calls that take memory, and
 * where a stack grows, in no call at all. */
static __always_inline bool is_about_memory(struct task_struct *task)
{
#if defined(__TARGET_ARCH_x86)
	struct pt_regs___call *regs = (void *)bpf_task_pt_regs(task);

	/* The instruction for calls leaves the two in these registers. */
	if (regs->cx != regs->ip || regs->r11 != regs->flags)
		return true;
	switch (regs->orig_ax) {
	case 9: /* mmap */
	case 10: /* mprotect */
	case 12: /* brk */
	case 25: /* mremap */
	case 28: /* madvise */
	case 29: /* shmget */
	case 57: /* fork */
	case 58: /* vfork */
	case 59: /* execve */
	case 322: /* execveat */
		return true;
	case 56: /* clone; with namespaces it is asked in earnest */
		return !(((struct pt_regs *)regs)->di & 0x7e020000UL);
	}
	return false;
#else
	struct pt_regs *regs = (void *)bpf_task_pt_regs(task);

	switch (regs->syscallno) {
	case -1:
	case 194: /* shmget */
	case 214: /* brk */
	case 216: /* mremap */
	case 221: /* execve */
	case 222: /* mmap */
	case 226: /* mprotect */
	case 233: /* madvise */
	case 281: /* execveat */
		return true;
	case 220: /* clone */
		return !(regs->regs[0] & 0x7e020000UL);
	}
	return false;
#endif
}

SEC("tp_btf/cap_capable")
int BPF_PROG(cap_capable, const void *cred, void *target, const void *capable, int capability, int answer)
{
	struct task_struct *task = bpf_get_current_task_btf();
	u32 tgid = bpf_get_current_pid_tgid() >> 32;
	u64 bits = ASKED, *known;

	if (capability < 0 || capability > LAST_CAPABILITY)
		return 0;
	if (answer == 0 && !(capability == CAP_SYS_ADMIN && is_about_memory(task)))
		bits |= 1ULL << capability;
	known = bpf_map_lookup_elem(&uses, &tgid);
	if (known) {
		if (bits & ~*known)
			__sync_fetch_and_or(known, bits);
		return 0;
	}
	if (bpf_map_update_elem(&uses, &tgid, &bits, BPF_NOEXIST) == 0)
		return 0;
	/* Another thread was faster, or there is no room. */
	known = bpf_map_lookup_elem(&uses, &tgid);
	if (known)
		__sync_fetch_and_or(known, bits);
	else
		__sync_fetch_and_add(&lost, 1);
	return 0;
}
