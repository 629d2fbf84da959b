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

/* Sends the record that is in the working memory. */
static __always_inline long send(struct scratch *s, bool is_critical)
{
	u32 size = s->header.size;

	if (size > SCRATCH - 8)
		return -1;
	if (s->header.flags & FLAG_TRUNCATED)
		count(COUNT_TRUNCATED);
	/* Waking the agent costs more than the record: it is done if it sleeps, and for a crowd once. */
	if (waiting) {
		waiting = 0;
		return bpf_ringbuf_output(is_critical ? (void *)&critical : (void *)&bulk, s, size,
					  BPF_RB_FORCE_WAKEUP);
	}
	if (is_critical)
		return bpf_ringbuf_output(&critical, s, size, 0);
	if (bpf_ringbuf_query(&bulk, BPF_RB_AVAIL_DATA) < control.wake_bytes)
		return bpf_ringbuf_output(&bulk, s, size, BPF_RB_NO_WAKEUP);
	return bpf_ringbuf_output(&bulk, s, size, BPF_RB_FORCE_WAKEUP);
}

static __always_inline void send_state(struct scratch *s)
{
	if (send(s, true))
		count(COUNT_LOST_STATE);
}

#endif
