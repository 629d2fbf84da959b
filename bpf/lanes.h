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

/* Puts the record that is in the working memory into a ring. Waking the agent costs more than the
 * record: it is done if it sleeps, and for a crowd once. An agent that is awake looks again before it
 * sleeps. What need not be known at once wakes it only if there is much of it: it looks by itself some
 * milliseconds later. */
static __always_inline long put(void *ring, struct scratch *s, bool is_urgent)
{
	u32 size = s->header.size;
	bool is_much;

	if (size > SCRATCH - 8)
		return -1;
	if (s->header.flags & FLAG_TRUNCATED)
		count(COUNT_TRUNCATED);
	is_much = bpf_ringbuf_query(ring, BPF_RB_AVAIL_DATA) >= control.wake_bytes;
	if (is_much || (is_urgent && waiting)) {
		waiting = 0;
		return bpf_ringbuf_output(ring, s, size, BPF_RB_FORCE_WAKEUP);
	}
	return bpf_ringbuf_output(ring, s, size, BPF_RB_NO_WAKEUP);
}

/* Sends the record of a call. */
static __always_inline long send(struct scratch *s, bool is_critical)
{
	return is_critical ? put(&critical, s, true) : put(&bulk, s, true);
}

/* Sends the record of what became of a process. */
static __always_inline void send_state(struct scratch *s, bool is_urgent)
{
	if (put(&critical, s, is_urgent))
		count(COUNT_LOST_STATE);
}

#endif
