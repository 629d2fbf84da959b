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

/* Why a record found no room. */
#define LACKS_NONE 0
#define LACKS_ROOM 1 /* the ring is full, or what it keeps for others alone is left */
#define LACKS_SHARE 2 /* its process, or its user in its control group, has more of the ring than is free */

/* What a process, or a user in a control group, has in a ring. */
struct share_key {
	u64 whose;
	u32 ring;
	u32 is_group;
};

/* Of the records up to `mark` it has `before` bytes, and `after` behind. When the agent has read as far as
 * `mark`, `before` is read. */
struct share {
	u64 mark;
	u64 before;
	u64 after;
};

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 8192);
	__type(key, struct share_key);
	__type(value, struct share);
} shares SEC(".maps");

/* Processes whose records were lost, so that they can be told. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, LOSERS);
	__type(key, struct loser_key);
	__type(value, struct loser);
} losers SEC(".maps");

/* What it has of a ring, at most. */
static __always_inline u64 held(struct share *share, void *ring)
{
	u64 read = bpf_ringbuf_query(ring, BPF_RB_CONS_POS);

	if (read >= share->mark) {
		share->mark = bpf_ringbuf_query(ring, BPF_RB_PROD_POS);
		share->before = share->after;
		share->after = 0;
	}
	return share->before + share->after;
}

/* What of a ring calls may fill. They leave the last quarter of the critical one to programs that begin, which
 * nobody can make as fast as calls. */
static __always_inline u64 open_to_calls(u32 ring, u64 whole)
{
	return ring == RING_CRITICAL ? whole / 4 * 3 : whole;
}

/* Takes part of a ring for somebody, unless he has more than what is free, or GROUP_PARTS times that. So one
 * alone takes half, or three quarters, each further one as much of the rest, and who has nothing finds room. */
static __noinline int takes_share(u64 whose, u32 is_group, u32 ring, u32 size)
{
	struct share_key key = { .whose = whose, .ring = ring, .is_group = is_group };
	void *lane = ring == RING_CRITICAL ? (void *)&critical : (void *)&bulk;
	u64 whole = open_to_calls(ring, bpf_ringbuf_query(lane, BPF_RB_RING_SIZE));
	u64 waits = bpf_ringbuf_query(lane, BPF_RB_AVAIL_DATA), free = waits < whole ? whole - waits : 0;
	struct share *share = bpf_map_lookup_elem(&shares, &key), none = {};

	if (!share) {
		none.mark = bpf_ringbuf_query(lane, BPF_RB_PROD_POS);
		none.after = size;
		bpf_map_update_elem(&shares, &key, &none, BPF_ANY);
		return 1;
	}
	if (held(share, lane) > free * (is_group ? GROUP_PARTS : 1))
		return 0;
	__sync_fetch_and_add(&share->after, size);
	return 1;
}

/* Whether the caller is to leave what is free in a ring to others. While the most of it is free, nobody is asked. */
static __always_inline bool is_greedy(u32 ring, u32 size, u64 waits, u64 whole)
{
	u64 group = bpf_get_current_cgroup_id() * 0x100000001b3ULL ^ (u32)bpf_get_current_uid_gid();

	if (waits < whole / 8)
		return false;
	return !takes_share(bpf_get_current_pid_tgid() >> 32, 0, ring, size) ||
	       !takes_share(group, 1, ring, size);
}

/* Notes that a record of the caller was lost. */
static __always_inline void note_loss(struct scratch *s, u32 ring, u32 cause)
{
	struct loser_key key = {
		.pid = bpf_get_current_pid_tgid() >> 32,
		.ring = ring,
		.cause = cause,
	};
	struct loser *loser = bpf_map_lookup_elem(&losers, &key), first = { .count = 1 };

	if (loser) {
		__sync_fetch_and_add(&loser->count, 1);
		return;
	}
	__builtin_memcpy(first.comm, s->header.comm, sizeof(first.comm));
	bpf_map_update_elem(&losers, &key, &first, BPF_ANY);
}

/* Puts the record that is in the working memory into a ring. Waking the agent costs more than the
 * record: it is done if it sleeps, and for a crowd once. An agent that is awake looks again before it
 * sleeps. What can wait finds no room in what is kept for the rest: forks and ends can be told from what the
 * same processes and their children do later, and anybody can make thousands of them. */
static __always_inline u32 put(u32 which, struct scratch *s, u32 urgency, bool is_call)
{
	void *ring = which == RING_CRITICAL ? (void *)&critical : (void *)&bulk;
	u32 size = s->header.size;
	u64 waits = bpf_ringbuf_query(ring, BPF_RB_AVAIL_DATA);
	u64 whole = bpf_ringbuf_query(ring, BPF_RB_RING_SIZE);
	bool is_much = waits >= (urgency == LATER ? control.state_limit / 2 : control.wake_bytes);

	if (size > SCRATCH - 8 || (urgency == LATER && waits >= control.state_limit))
		return LACKS_ROOM;
	if (is_call && waits + size >= open_to_calls(which, whole))
		return LACKS_ROOM;
	if (is_call && is_greedy(which, size, waits, whole))
		return LACKS_SHARE;
	if (s->header.flags & FLAG_TRUNCATED)
		count(COUNT_TRUNCATED);
	/* Which container a new place is, is read from /proc. */
	if (urgency == SOON && s->header.flags & FLAG_NEW_PLACE)
		urgency = AT_ONCE;
	/* Said again: a verifier before 6.2 may have lost the bound where the number was put aside. */
	bounded_or(size, SCRATCH - 8, LACKS_ROOM);
	if (is_much || urgency == AT_ONCE || (urgency == SOON && waiting)) {
		waiting = 0;
		return bpf_ringbuf_output(ring, s, size, BPF_RB_FORCE_WAKEUP) ? LACKS_ROOM : LACKS_NONE;
	}
	return bpf_ringbuf_output(ring, s, size, BPF_RB_NO_WAKEUP) ? LACKS_ROOM : LACKS_NONE;
}

/* Sends the record of a call. One that failed has changed nothing, and goes by the lane that all may fill. */
static __always_inline u32 send(struct scratch *s, u32 row_flags)
{
	u32 urgency = row_flags & ROW_AT_ONCE ? AT_ONCE : SOON;
	u32 ring = row_flags & ROW_CRITICAL && (s64)s->header.result >= 0 ? RING_CRITICAL : RING_BULK;
	u32 lacks = put(ring, s, urgency, true);

	if (!lacks) {
		count(COUNT_SENT);
		return lacks;
	}
	count(ring == RING_CRITICAL ? COUNT_LOST_CRITICAL : COUNT_LOST_BULK);
	if (lacks == LACKS_SHARE)
		count(COUNT_LOST_SHARE);
	note_loss(s, ring, lacks);
	return lacks;
}

/* Sends the record of what became of a process. */
static __always_inline void send_state(struct scratch *s, u32 urgency)
{
	u32 lacks = put(RING_CRITICAL, s, urgency, false);

	if (lacks) {
		count(COUNT_LOST_STATE);
		note_loss(s, RING_CRITICAL, lacks);
	}
}

#endif
