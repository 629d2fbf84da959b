/* Which processes are watched, and the rings that records go by. */
#ifndef TOLLGATE_LANES_H
#define TOLLGATE_LANES_H

#include "caller.h"

/* Whether the process, which is the calling one or its child, is one to be watched. */
static __always_inline bool in_scope(s32 pid)
{
	if (pid == control.agent || control.off)
		return false;
	if (!control.scoped)
		return true;
	if (control.scoped & SCOPE_PIDS && bpf_map_lookup_elem(&scope, &pid))
		return true;
	/* What a new place is the agent finds out by its first record. */
	return control.scoped & SCOPE_PLACES && !(place_of_caller() & PLACE_OUT);
}

/* How soon the agent is to look at a record. */
#define LATER 0 /* by itself, some milliseconds later, or if there is much of it */
#define SOON 1 /* it is woken if it sleeps; if it has just looked, it gathers more for a moment */
#define AT_ONCE 2 /* it is woken: what it reads elsewhere may be gone soon */

/* Puts the record that is in the working memory into a ring. Waking the agent costs more than the
 * record: it is done if it sleeps, and for a crowd once. An agent that is awake looks again before it
 * sleeps. What can wait finds no room in what is kept for the rest: forks and ends can be told from what the
 * same processes and their children do later, and anybody can make thousands of them. */
static __always_inline long put(void *ring, struct scratch *s, u32 urgency)
{
	u32 size = s->header.size;
	u64 waits = bpf_ringbuf_query(ring, BPF_RB_AVAIL_DATA);
	bool is_much = waits >= (urgency == LATER ? control.state_limit / 2 : control.wake_bytes);

	if (size > SCRATCH - 8 || (urgency == LATER && waits >= control.state_limit))
		return -1;
	if (s->header.flags & FLAG_TRUNCATED)
		count(COUNT_TRUNCATED);
	/* Which container a new place is, is read from /proc. */
	if (urgency == SOON && s->header.flags & FLAG_NEW_PLACE)
		urgency = AT_ONCE;
	if (is_much || urgency == AT_ONCE || (urgency == SOON && waiting)) {
		waiting = 0;
		return bpf_ringbuf_output(ring, s, size, BPF_RB_FORCE_WAKEUP);
	}
	return bpf_ringbuf_output(ring, s, size, BPF_RB_NO_WAKEUP);
}

/* Sends the record of a call. */
static __always_inline long send(struct scratch *s, u32 row_flags)
{
	u32 urgency = row_flags & ROW_AT_ONCE ? AT_ONCE : SOON;

	return row_flags & ROW_CRITICAL ? put(&critical, s, urgency) : put(&bulk, s, urgency);
}

/* Sends the record of what became of a process. */
static __always_inline void send_state(struct scratch *s, u32 urgency)
{
	if (put(&critical, s, urgency))
		count(COUNT_LOST_STATE);
}

#endif
