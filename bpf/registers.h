/* Registers of a call, by the convention that it was made by. */
#ifndef TOLLGATE_REGISTERS_H
#define TOLLGATE_REGISTERS_H

#include "maps.h"

#define TS_COMPAT 2
#define X32_BIT 0x40000000

static __always_inline u32 abi_of(u32 nr, struct task_struct *caller)
{
#if defined(__TARGET_ARCH_x86)
	if (nr & X32_BIT)
		return ABI_X32;
	if (caller->thread_info.status & TS_COMPAT)
		return ABI_COMPAT;
#elif defined(__TARGET_ARCH_arm64)
	/* `bpf_task_pt_regs` takes no task but one that the verifier trusts; where addresses are loaded, `caller` is none. */
	if (((struct pt_regs *)bpf_task_pt_regs(bpf_get_current_task_btf()))->pstate & PSR_MODE32_BIT)
		return ABI_COMPAT;
#endif
	return ABI_NATIVE;
}

static __always_inline void registers(struct pt_regs *regs, u32 abi, u64 *args)
{
#if defined(__TARGET_ARCH_x86)
	if (abi == ABI_COMPAT) {
		args[0] = (u32)regs->bx;
		args[1] = (u32)regs->cx;
		args[2] = (u32)regs->dx;
		args[3] = (u32)regs->si;
		args[4] = (u32)regs->di;
		args[5] = (u32)regs->bp;
		return;
	}
	args[0] = regs->di;
	args[1] = regs->si;
	args[2] = regs->dx;
	args[3] = regs->r10;
	args[4] = regs->r8;
	args[5] = regs->r9;
#elif defined(__TARGET_ARCH_arm64)
	args[0] = regs->orig_x0;
	args[1] = regs->regs[1];
	args[2] = regs->regs[2];
	args[3] = regs->regs[3];
	args[4] = regs->regs[4];
	args[5] = regs->regs[5];
#endif
}

static __always_inline u64 address_of_call(struct pt_regs *regs)
{
#if defined(__TARGET_ARCH_x86)
	return regs->ip;
#else
	return regs->pc;
#endif
}

static __always_inline u32 number_of(struct pt_regs *regs)
{
#if defined(__TARGET_ARCH_x86)
	return regs->orig_ax;
#else
	return regs->syscallno;
#endif
}

#define EINTR 4
/* Results that only the kernel sees, of calls that a signal interrupts: what becomes of the call is decided
 * when the signal is delivered. */
#define ERESTARTSYS 512
#define ERESTARTNOINTR 513
#define ERESTARTNOHAND 514
#define ERESTART_RESTARTBLOCK 516

/* Whether a call that returned this is made again, or fails with EINTR, as a signal decides that is delivered
 * next. How a sleep goes on that is resumed by restart_syscall is not followed. On arm64 the kernel puts other
 * values into the registers before. */
static __always_inline bool is_open(s64 result)
{
#if defined(__TARGET_ARCH_x86)
	return result <= -ERESTARTSYS && result >= -ERESTARTNOHAND;
#else
	return false;
#endif
}

/* The result of a call that is not made again, as its caller sees it. */
static __always_inline s64 seen_by_caller(s64 result)
{
	return result <= -ERESTARTSYS && result >= -ERESTART_RESTARTBLOCK ? -EINTR : result;
}

/* By which conventions rules ask for a call of this number and with this result, as bits: mkdir of 32-bit
 * programs has the number of getpid. Which one a call was made by is looked at only if any has something to
 * ask. */
static __always_inline u32 asked_by_convention(u32 nr, s64 result)
{
	u32 bare = nr & ~X32_BIT;
	const struct interest *asked;

	if (bare >= CALLS)
		return 0;
	asked = &interest[bare];
	if (!asked->conventions)
		return 0;
	/* Plain dup, of which a few results count, is made as often as any call. */
	if (result >= 0 && asked->results != ~0ULL &&
	    (result >= 64 || !(asked->results >> result & 1)))
		return 0;
	return asked->conventions;
}

#endif
