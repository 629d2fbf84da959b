/* The tables that the programs go by, and what they work in. */
#ifndef TOLLGATE_MAPS_H
#define TOLLGATE_MAPS_H

#include "kernel.h"
#include "record.h"
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_tracing.h>

/* What the other side of the ring reckons with. */
_Static_assert(sizeof(struct header) == 296, "see HEADER_SIZE");
_Static_assert(sizeof(struct piece) == 16, "see PIECE_SIZE");
_Static_assert(sizeof(struct file_facts) == 120, "see FACTS_SIZE");
_Static_assert(sizeof(struct test) == 32, "see tables.rs");
_Static_assert(sizeof(struct row) == 72 + 4 * 32 + 8 * FETCHES + 32 * TESTS, "see tables.rs");
_Static_assert(sizeof(struct interest) == 16, "see tables.rs");
_Static_assert(sizeof(struct inode_key) == 24, "see named.rs");
_Static_assert(sizeof(struct inode_name) == 24 + INODE_TEXT, "see named.rs");
_Static_assert(sizeof(struct control) == 256, "see maps.rs");
_Static_assert(sizeof(struct place_key) == 24, "see places.rs");
_Static_assert(sizeof(struct network_key) == 24, "see maps.rs");

/* A value of a per-processor map may have 32 KiB. */
#define SCRATCH 31680
/* Longest string or other piece: PATH_MAX. */
#define PIECE_LIMIT 4096
/* Pieces start below this, so that the longest one fits. */
#define START_LIMIT (SCRATCH - 2 * PIECE_LIMIT - 64)
#define COMPONENTS 64
/* So many of them one function goes: the verifier follows each turn of a loop, and in parts these are few. */
#define PART 16
#define COMPONENT_LIMIT 256
#define TEXTS 20
#define MESSAGES 8 /* of one sendmmsg */
#define TEXT_LIMIT 1024
#define AT_FDCWD -100

/* Named files and directories that go along with one record: the last ones that are found. */
#define NAMED 8

/* In the place of a dentry: the root of the mount namespace. */
#define WHOLE_PATH 1

/* A call that a signal has interrupted and that the kernel makes again when the handler returns. */
struct interrupted {
	u64 args[6];
	u64 ip;
	u32 nr;
	u32 abi;
};

struct scratch {
	struct header header;
	u8 pieces[SCRATCH - sizeof(struct header)];
	/* Length of the path that is being taken. Kept in memory, where the verifier forgets what it
	 * knew: else it would follow every length through every turn of the loop. */
	volatile u32 used;
	volatile u32 count;
	volatile u32 path_flags;
	volatile u64 found;
	/* What one end of a connection is, and what was found out of all of them. */
	u16 family;
	u16 port;
	u8 address[16];
	volatile u64 by_port;
	volatile u64 by_network;
	volatile u64 by_family;
	/* An interrupted call that is told now, and the arguments of a socketcall: not on the stack, of which the
	 * functions from here to the last have 512 bytes. */
	struct interrupted told;
	u32 real[6];
	/* Slots of the patterns of a text. */
	volatile u64 by_text;
	/* Where a path that is being taken begins: WHOLE_PATH, the address of a dentry, or 0 for the root of the
	 * task. */
	u64 stop;
	/* Where a way up to the root goes on: a dentry and its mount. Kept in memory between the functions that each go a
	 * part of it. */
	u64 at_dentry;
	u64 at_mount;
	/* The file whose names are looked for, a directory that it may be below, and named files that went along. */
	u64 file_dentry;
	struct inode_name below;
	u64 named_from[NAMED];
	u64 named_to[NAMED];
	u32 named;
	/* Names on the way up to the root. */
	const u8 *name[COMPONENTS];
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct scratch);
} scratch SEC(".maps");

/* Each in a section, and so in a map, of its own: read without a look-up. */
struct control control SEC(".data.control");
struct calls calls SEC(".data.calls");
/* Not 0 while the agent sleeps with nothing at hand: then the first record wakes it. */
u32 waiting SEC(".data.waiting");
/* How many processes were added to `scope`. */
u64 births SEC(".data.births");
/* By operation of an io_uring: one more than the native call that does the same; 0 if none does. */
u16 ring_calls[RING_OPERATIONS] SEC(".data.ring_calls");
/* By number. Of all calls of the machine this is all that most come to. */
struct interest interest[CALLS] SEC(".data.interest");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, BANKS * ROWS);
	__type(key, u32);
	__type(value, struct row);
} rows SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, BANKS);
	__type(key, u32);
	__type(value, struct automaton);
} automata SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, REMEMBERED);
	__type(key, u32);
	__type(value, struct remembered);
} remembered SEC(".maps");

struct name_key {
	char comm[16];
	u32 bank;
	u32 _pad;
};

/* Processes whose present name may not be the one at their last exec, which is what slots ask for. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 65536);
	__type(key, s32);
	__type(value, u8);
} renamed SEC(".maps");

/* Not 0 if one found no room there: then names decide nothing any more. */
u32 names_unknown SEC(".data.names_unknown");

/* Slots that ask for a name of a process. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 4096);
	__type(key, struct name_key);
	__type(value, u64);
} names SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 65536);
	__type(key, s32);
	__type(value, u8);
} scope SEC(".maps");

/* Slots that ask for a port. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 8192);
	__type(key, struct port_key);
	__type(value, u64);
} ports SEC(".maps");

/* Slots that ask for a network, with those that ask for a wider one around it. */
struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(max_entries, 8192);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct network_key);
	__type(value, u64);
} networks SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 16384);
	__type(key, struct place_key);
	__type(value, u32);
} places SEC(".maps");

/* By thread. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 16384);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, u32);
	__type(value, struct interrupted);
} interrupted SEC(".maps");

/* How many are in it: mostly none, and then nobody looks. */
u64 interruptions SEC(".data.interruptions");
/* Files and directories that rules name. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, INODES);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct inode_key);
	__type(value, struct inode_name);
} inodes SEC(".maps");

u64 inode_bits[INODE_WORDS] SEC(".data.inode_bits");
/* What the agent was shown last. */
struct {
	struct inode_key key[SHOWN];
} shown SEC(".data.shown");

struct counters {
	u64 count[COUNTERS];
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct counters);
} counters SEC(".maps");

/* By row: records that found no room. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, BANKS * ROWS);
	__type(key, u32);
	__type(value, u64);
} lost SEC(".maps");

/* Sizes are set before loading. */
struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 4096);
} critical SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 4096);
} bulk SEC(".maps");

static __always_inline void count(u32 which)
{
	u32 zero = 0;
	struct counters *all = bpf_map_lookup_elem(&counters, &zero);

	if (all && which < COUNTERS)
		all->count[which]++;
}

static __always_inline struct scratch *working_memory(void)
{
	u32 zero = 0;

	return bpf_map_lookup_elem(&scratch, &zero);
}

/* Since 6.2 any address can be read as if it were in a variable: a load that cannot fault, where
 * bpf_probe_read_kernel is a call. */
#define LOADS bpf_ksym_exists(bpf_rdonly_cast)
#define at_kernel(address, type) bpf_core_cast((void *)(address), type)
/* BPF_CORE_READ by such loads, where there are any. Of what may be const it cannot be told what it is. */
#define READ(from, ...)                                                       \
	(LOADS ? ___arrow(at_kernel(from, typeof(*(from))), ##__VA_ARGS__) :  \
		 BPF_CORE_READ(from, ##__VA_ARGS__))

/* A number as a pointer, of the same kind for the verifier as one that was read: else it would follow both through
 * every loop. */
#define kernel_pointer(address, type) \
	((type *)(LOADS ? (void *)at_kernel(address, type) : (void *)(address)))

/* A pointer as a number: functions of their own take no kernel pointers. */
static __always_inline u64 address_of(struct scratch *s, const void *pointer)
{
	s->found = (u64)pointer;
	return s->found;
}

/* The calling task. Where addresses can be loaded from it is no more than an address: of every pointer in a task that
 * the verifier trusts it searches all names of the kernel's BTF. */
#define caller_task()                                                        \
	((struct task_struct *)(LOADS ? (void *)at_kernel(bpf_get_current_task(), struct task_struct) : \
					(void *)bpf_get_current_task_btf()))

#define field_exists(expression) bpf_core_field_exists(expression)

#endif
