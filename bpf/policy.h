/* What a policy is in the kernel, and what comes back: shared by the programs of the enforcer BPF and
 * by crates/enforce/src/bpf, which writes and reads these structures byte by byte.
 */
#ifndef TOLLGATE_POLICY_H
#define TOLLGATE_POLICY_H

/* What a rule makes of a match: the rule's number plus one, and whether it is denied and reported.
 * 0: nothing. */
#define OUTCOME_RULE 0x0fff
#define OUTCOME_DENY 0x1000
#define OUTCOME_AUDIT 0x2000

/* What is done to a path. */
enum kind {
	KIND_READ,
	KIND_WRITE,
	KIND_APPEND,
	KIND_EXEC,
	KIND_CONNECT,
	/* Renaming or linking it: under its other name it would be another file. */
	KIND_MOVE,
	/* Renaming a folder above it. */
	KIND_ABOVE,
	KINDS = 8,
};

enum operation {
	OP_MOUNT,
	OP_UMOUNT,
	OP_USER_NAMESPACE,
	OP_KERNEL_CODE,
	OP_BPF_PROGRAM,
	OP_SOCKET_FILTER,
	OP_USERFAULTFD,
	OPERATIONS = 8,
};

/* Of whom; the second half of `ptrace` is for any process, the first for those outside. */
enum look {
	LOOK_TRACE,
	LOOK_TRACED_BY,
	LOOK_READ,
	LOOK_READ_BY,
	LOOKS = 4,
};

/* File systems that show the same wherever they are mounted; states of the automaton after the place
 * where they belong. */
enum view {
	VIEW_PROC,
	VIEW_SYSFS,
	VIEW_CGROUP,
	VIEW_SECURITY,
	VIEW_DEBUG,
	VIEW_TRACE,
	VIEW_BPF,
	VIEWS = 8,
};

#define STATES 16384
#define EDGES 524288
#define SETS 1024
#define SOCKET_RULES 32
#define ADDRESS_RULES 64
#define MOUNT_RULES 32
#define MODE_RULES 8
#define PROTOCOL_WORDS 5
#define PORT_RANGES 4
/* Places for names that paths of rules have; a power of two. */
#define KEYS 4096
/* File systems of a container; a power of two. */
#define PLACES 1024

/* Which parts of a policy are there at all. */
#define HAS_PATHS (1 << 0)
#define HAS_EXEC (1 << 1)
#define HAS_MOUNT_SOURCES (1 << 2)
#define HAS_ADDRESSES (1 << 3)
/* Whether any rule denies, and whether any reports. */
#define DENIES (1 << 4)
#define AUDITS (1 << 5)

struct outcomes {
	u16 of[KINDS];
	/* Rules on mounts that have the path as their source. */
	u64 mounts;
};

struct socket_rule {
	u64 domains;
	u64 protocols[PROTOCOL_WORDS];
	u32 types;
	u16 outcome;
	u16 any_protocol;
};

struct address_rule {
	u32 address[4];
	u32 mask[4];
	u16 first[PORT_RANGES];
	u16 last[PORT_RANGES];
	u16 ranges;
	u16 outcome;
	u32 _pad;
};

struct mount_rule {
	char fstype[16];
	/* One of these flags of mount(2), or one of the others missing; both 0: any. */
	u32 flags;
	u32 unset;
	u16 outcome;
	/* Whether unmounting is meant. */
	u8 unmount;
	/* What decides: MOUNT_BY_*. */
	u8 by;
};

#define MOUNT_BY_TYPE 1
#define MOUNT_BY_SOURCE 2
#define MOUNT_BY_DISK 3
#define MOUNT_BY_BOTH 4

struct mode_rule {
	u32 bits;
	u32 outcome;
};

struct policy {
	/* Names this version in the tables of programs and places. */
	u32 generation;
	u32 features;
	u32 width;
	u32 start;
	u32 sockets;
	u32 addresses;
	u32 mounts;
	u32 modes;
	u16 operation[OPERATIONS];
	u16 ptrace[2 * LOOKS];
	u16 disk[4];
	/* 0: the view is not known. */
	u16 view[VIEWS];
	u16 relative;
	/* Of these kinds (bits) a rule is about paths of any name. */
	u16 unkeyed;
	/* Of these kinds a name that rules ask for belongs to the place of a file system. */
	u32 placed;
	u16 capability[64];
	struct mode_rule mode[MODE_RULES];
	struct mount_rule mount[MOUNT_RULES];
	struct socket_rule socket[SOCKET_RULES];
	struct address_rule address[ADDRESS_RULES];
	struct outcomes set[SETS];
	u8 class_of[256];
	/* By a hash of a name, of which kinds rules are that ask for it. Each path that a rule is about has
	 * one of its names. */
	u8 key[KEYS];
	/* The same of the places of views. */
	u8 view_key[VIEWS];
	u16 accept[STATES];
	u16 edge[EDGES];
	/* Of a table that containers share: the places of their file systems, by index. */
	u32 place[PLACES];
	/* Containers share the table: what is known of their devices is an index of `place`. */
	u32 is_shared;
	u32 _pad;
};

/* What is known of a confined task. */
struct tenant {
	/* Number of who is confined: a container, or all tasks of a policy of their own. */
	u32 policy;
	/* The policy holds from the next exec on. */
	u32 is_active;
	u32 exe_len;
	/* The last mount(2) is a bind or a move, whose source is looked up after the hook. */
	u32 is_binding;
	/* Number of the table with the policy. Containers with the same policy share one. */
	u32 table;
	char exe[236];
};

/* A container whose programs are confined as they begin, by the number of its control group in the unified hierarchy,
 * which is not used again. */
struct container {
	u32 policy;
	/* Mount namespace of the container runtime, whose own programs may begin in the control group. */
	u32 runtime_namespace;
	/* Number of the table with its policy. */
	u32 table;
	/* Of the control group, for the other side. */
	char path[500];
};

/* A violation. A path follows, if there is one. */
struct violation {
	u64 time;
	u32 pid;
	u32 tid;
	u32 uid;
	/* The version of the policy whose rules are numbered. */
	u32 generation;
	u32 policy;
	u16 outcome;
	u16 what;
	u64 detail[4];
	char comm[16];
	u32 path_len;
	u32 exe_len;
	char exe[236];
	/* Number of the table that has the policy. */
	u32 table;
};

/* What was violated; `detail` is told in the names. */
enum what {
	WHAT_OPEN,		/* open(2) flags */
	WHAT_CHANGE,		/* enum change */
	WHAT_EXEC,
	WHAT_CONNECT_PATH,
	WHAT_SOCKET,		/* domain, type, protocol */
	WHAT_ADDRESS,		/* two words of address, port */
	WHAT_MOUNT,		/* flags */
	WHAT_UMOUNT,
	WHAT_PTRACE,		/* pid, mode */
	WHAT_CAPABILITY,	/* number */
	WHAT_MODE,		/* mode */
	WHAT_OPERATION,		/* enum operation */
	WHAT_DISK,		/* open(2) flags, device */
	WHAT_PATH_LOST,		/* the path could not be found out */
};

enum change {
	CHANGE_TRUNCATE,
	CHANGE_REMOVE,
	CHANGE_CREATE,
	CHANGE_RENAME,
	CHANGE_LINK,
	CHANGE_MODE,
	CHANGE_OWNER,
	CHANGE_ATTRIBUTE,
};

struct ledger {
	/* Tasks for which it holds. */
	u64 users;
	u64 denied;
	u64 audited;
	u64 lost;
	/* Whether it has had users. */
	u64 is_used;
};

struct program_key {
	u32 generation;
	u32 device;
	u64 inode;
};

/* Of a container, whose entries hold for all versions of its policy, in place of a generation. */
#define OF_CONTAINER 0x80000000

struct place_key {
	/* Of the version of a policy, or the number of a container with OF_CONTAINER. */
	u32 owner;
	u32 device;
};

/* What is known of a place: its state, and of which kinds rules ask for one of its names. */
#define PLACE_STATE 0xffff
#define PLACE_KEYS 16

struct rule_key {
	u32 table;
	u32 generation;
	u32 number;
};

#endif
