/* What passes from the programs to the agent, and the tables that come back.
 * The Rust side is crates/capture/src/ebpf/{record,tables}.rs, and a test there compares the sizes.
 */
#ifndef TOLLGATE_RECORD_H
#define TOLLGATE_RECORD_H

/* Kinds of records. */
#define RECORD_CALL 1
#define RECORD_EXEC 2
#define RECORD_FORK 3 /* no more than who it is and whose child */
#define RECORD_EXIT 4 /* likewise, if rules do not ask for ends */
#define RECORD_RING 5 /* a call that rules ask for was made by an io_uring: `nr` is its operation */

/* In the place of a call's number: an exec by execveat. */
#define EXEC_AT 1

/* Conventions of calls, in the order of the tables. */
#define ABI_NATIVE 0
#define ABI_COMPAT 1
#define ABI_X32 2
#define ABIS 3

/* Something of the record was cut off. */
#define FLAG_TRUNCATED 1
/* The agent has not yet said what this place is; its cgroups follow. */
#define FLAG_NEW_PLACE 2

struct header {
	u32 size;
	u8 kind;
	u8 abi;
	u8 flags;
	u8 level; /* of the pid namespace; 0 is the first */
	u64 time; /* since boot, suspended time included */
	u64 start; /* of the process, likewise */
	u64 exec_id;
	u64 cgroup; /* stands for the cgroups in all hierarchies */
	u64 parent_start;
	u64 result;
	u64 ip;
	u64 vm_pages;
	u64 resident_pages;
	u64 args[6];
	u64 caps[4]; /* inheritable, permitted, effective, bounding */
	u32 nr;
	u32 cpu;
	s32 tid;
	s32 pid;
	s32 ppid;
	u32 uid;
	u32 gid;
	u32 real_uid;
	u32 fs_uid;
	u32 fs_gid;
	u32 login_uid;
	s32 pgid;
	s32 sid;
	u32 tty;
	s32 tpgid;
	u32 threads;
	s32 vpid;
	s32 vtid;
	s32 vpgid;
	s32 vsid;
	u32 mount_namespace;
	u32 cgroup_namespace;
	u32 row; /* the row of the plan that the call belongs to */
	u32 socketcall; /* which one, of a 32-bit call that stands for several; above, how many arguments were read */
	char comm[16]; /* of the process */
	/* Where paths of the process begin. */
	u64 root_inode;
	u64 root_mount; /* since 6.8 a number that no other mount ever has */
	u32 root_mount_id; /* as statx(2) tells it */
	u32 root_device; /* as the kernel writes it */
};

/* Kinds of pieces that follow the header. */
#define PIECE_MEMORY 1 /* the caller's memory from `address` on */
#define PIECE_FILE 2 /* an open file: struct file_facts, then its path; `address` is its number */
#define PIECE_DIRECTORY 3 /* a path; `address` is the descriptor, AT_FDCWD for the working one */
#define PIECE_ARGUMENTS 4 /* of the new program, each ended by NUL */
#define PIECE_ENVIRONMENT 5 /* in as many as it takes; `address` is the length of the whole */
#define PIECE_EXECUTABLE 6 /* struct file_facts, then its path */
#define PIECE_FILENAME 7 /* as it was passed to exec */
#define PIECE_ABSENT_MEMORY 8 /* could not be read at `address` */
#define PIECE_CGROUP 9 /* a path in the hierarchy whose number is `address` */
#define PIECE_STREAM 10 /* as PIECE_FILE, of a standard stream; nothing if it is closed */
#define PIECE_NAMED 11 /* struct inode_key of what rules name, then the way from it to the file */
#define PIECE_WHOLE_PATH 12 /* the file's path from the root of the mount namespace */

struct piece {
	u16 kind;
	u16 len; /* without padding to 8 bytes */
	u32 status; /* PIECE_* flags */
	u64 address;
};

/* Not all of it. */
#define PIECE_CUT 1
/* A string that ends in its NUL. */
#define PIECE_STRING 2

#define FILE_DELETED 1
#define FILE_OVERLAY_UPPER 2
#define FILE_SOCKET 4
#define FILE_UNREACHABLE 8 /* outside its mount, or of no directory */
#define FILE_PATH_CUT 16
/* Outside the root of the process, below a mount without a parent: one that is attached nowhere, or the
 * root of a mount namespace. The path begins there, as /proc/PID/fd shows it. */
#define FILE_DETACHED 32
/* The open that it belongs to has made it. */
#define FILE_CREATED 64

/* A path follows. */
struct file_facts {
	u64 inode;
	u64 ctime_sec;
	u64 mtime_sec;
	u32 ctime_nsec;
	u32 mtime_nsec;
	u32 device;
	u32 mode;
	u32 uid;
	u32 gid;
	u32 open_flags; /* that it was opened with, as far as the kernel keeps them */
	u32 magic;
	u32 flags;
	u32 inode_flags;
	u32 super_flags;
	u32 mount_flags;
	u16 family;
	u16 type;
	u16 protocol;
	u16 state;
	u16 local_port;
	u16 remote_port;
	u8 local[16];
	u8 remote[16];
	u8 unix_len;
	u8 has_peer;
	u8 _pad[2];
};

/* One comparison of one argument, made from an abi::RegisterTest: of what the mask leaves of it with a value. Few kinds,
 * because the verifier follows each of them through each test. */
struct test {
	u8 arg;
	u8 op;
	u8 is_negated; /* it fails where the comparison holds, and the other way round */
	u8 ends_group;
	u32 _pad;
	u64 value;
	u64 mask;
	/* At the end of a group: the slots it speaks for. */
	u64 slots;
};

#define OP_EQUALS 0
#define OP_AT_LEAST 1
#define OP_AT_MOST 2

/* What of the caller's memory goes along. */
#define FETCH_NONE 0
#define FETCH_TEXT 1 /* a string */
#define FETCH_PATH 2 /* a string, and the directory it starts at if it is relative */
#define FETCH_TEXTS 3 /* an array of strings */
#define FETCH_BYTES 4 /* `size` bytes at `offset` */
#define FETCH_BUFFER 5 /* as many bytes as argument `other` says, `size` at most */
#define FETCH_MESSAGE 6 /* the address in a struct msghdr */
#define FETCH_FD 7 /* the open file that the argument names */
#define FETCH_RESULT 8 /* the open file that the result names */

struct fetch {
	u8 kind;
	u8 arg;
	u8 other; /* NO_ARGUMENT: none */
	u8 size;
	u32 offset;
};

#define NO_ARGUMENT 255
#define RESULT_FILE 254
#define FETCHES 6
#define TESTS 40

#define ROW_CRITICAL 1 /* goes by the lane that bulk traffic cannot fill */
#define ROW_EXEC 2 /* told by its own record if it succeeds */
#define ROW_SOCKETCALL 4 /* the real call is named by the first argument */
#define ROW_OPENS 8 /* the result names the file that paths are asked of */
#define ROW_PATHS 16 /* paths are asked of the strings that are fetched */
#define ROW_SOCKET 32 /* ends of a connection are asked of the descriptor and the address */
#define ROW_STREAMS 64 /* the standard streams go along */
#define ROW_AT_ONCE 128 /* the agent is to look at it at once */
#define SYS_SEND 9 /* calls of socketcall(2) without an address */
#define SYS_RECV 10
#define ROW_WORDS_SHIFT 24 /* above: how many arguments the call has */

/* A slot stands for all rules that ask for the same paths and names of processes. What is asked of a
 * call is known by slot: a call is of interest if one slot takes all that is known of it. */
struct row {
	u32 flags;
	u16 tests; /* 0: all slots that `failed` and `succeeded` name */
	u16 fetches;
	u64 failed; /* slots that take a call that failed */
	u64 succeeded;
	u64 limited; /* slots that take one that succeeded with one of `results`, bits */
	u64 results;
	u64 refused; /* slots that take one that failed with one of `errors`, bits */
	u64 errors[2];
	u32 path_arg; /* of ROW_OPENS: the argument with the path */
	/* Of ROW_SOCKET, arguments or NO_ARGUMENT. */
	u8 file_arg; /* the descriptor; RESULT_FILE: the result */
	u8 address_arg;
	u8 length_arg; /* of the address; with message_arg: how many messages */
	u8 message_arg; /* in the place of an address */
	u32 socketcall[32]; /* rows of the real calls */
	struct fetch fetch[FETCHES];
	struct test test[TESTS];
};

#define ROWS 1024
#define BANKS 2
#define CALLS 1024

/* What rules ask of the calls of one number, by whatever convention these are made. */
struct interest {
	u64 results; /* bits, of calls that succeed: with which results; all: with any */
	u8 conventions; /* bits, by which rules ask for one; most have none, and leave here */
	u8 _pad[7];
};

struct calls {
	u16 row[BANKS][ABIS][CALLS]; /* 0: of no interest */
};

#define FAMILIES 4

/* What the slots of one bank ask for. */
struct asked {
	u64 any_path; /* slots that ask for no path */
	u64 any_name; /* for no name of a process */
	u64 dotted; /* for `..` in the path that was passed */
	u64 any_port;
	u64 any_network;
	u64 host; /* that take processes outside of containers */
	u64 container; /* that take those inside */
	u64 family[FAMILIES]; /* that take descriptors of this kind */
	u64 any_end; /* for no end of a connection */
	u64 any; /* for nothing */
};

/* Kinds of descriptors. */
#define FAMILY_IPV4 0
#define FAMILY_IPV6 1
#define FAMILY_UNIX 2
#define FAMILY_OTHER 3

/* What the programs go by; changed by one write of the whole. */
struct control {
	u32 version; /* of the tables; its last bit is the bank they are in */
	s32 agent; /* pid that is never looked at */
	u32 scoped; /* SCOPE_*; 0: all processes */
	u32 states; /* tell of exec, fork and exit */
	u32 environment; /* the environment goes along with an exec */
	u32 streams; /* the standard streams do, and with an end */
	u32 wake_bytes; /* wake the agent when so much waits */
	u32 filters; /* 0: only numbers and scope are looked at */
	u32 off; /* nobody is watched any more */
	u32 ends; /* rules ask for the ends of processes, not only for what they leave behind */
	u32 state_limit; /* forks and ends find no room where so much waits: execs and calls do */
	u32 _pad;
	struct asked asked[BANKS];
};

/* Only processes in `scope`; only those of places that are not PLACE_OUT. One is enough. */
#define SCOPE_PIDS 1
#define SCOPE_PLACES 2

/* What a place is, as the agent has found out. Processes of the same cgroups and namespaces are at the
 * same place. */
#define PLACE_HOST 1
#define PLACE_CONTAINER 2
#define PLACE_OUT 4
#define PLACE_IN 8

struct place_key {
	u64 cgroup;
	u32 cgroup_namespace;
	u32 mount_namespace;
	u32 level; /* of the pid namespace */
	u32 _pad;
};

struct port_key {
	u32 port;
	u32 bank;
};

struct network_key {
	u32 prefix; /* bits that are compared, of all that follows */
	u8 bank;
	u8 version;
	u8 _pad[2];
	u8 address[16];
};

/* What the automaton says of any path, beside the slots of the plan: `//`, `/./` or `/../` is in it;
 * `..` is; it ends in `/`. */
#define SLOT_ODD (1ULL << 63)
#define SLOT_DOTTED (1ULL << 62)
#define SLOT_TRAILING (1ULL << 61)

/* All patterns on paths as one automaton (Aho-Corasick). It reads a NUL, the path, and another NUL,
 * so that a pattern can hold on to either end. */
#define STATES 4096
#define CLASSES 64

/* An edge is where the edges of the state begin that it leads to, counted in bytes, so that there is little to
 * do for each byte of a path; and whether that state completes a pattern. */
#define EDGE_SIZE 4
#define EDGE_COMPLETES 0x80000000

struct automaton {
	u8 class_of[256]; /* times EDGE_SIZE */
	u32 edge[STATES * CLASSES];
	u64 slots[STATES]; /* that the state completes a pattern of */
};

/* What was found in a text that was passed: the same ones are passed again and again. Only what is as long
 * as this or shorter is remembered, and of so many texts in the memory of each processor. */
#define REMEMBERED_TEXT 64
#define REMEMBERED 64

struct remembered {
	u32 version; /* of the tables that it was looked for in */
	u32 len;
	u64 slots;
	u64 text[REMEMBERED_TEXT / 8]; /* zeros behind its end */
};

/* What tells a file from all others: its generation from those that had its number before. */
struct inode_key {
	u64 inode;
	u32 device; /* as the kernel writes it */
	u32 generation;
	u32 bank;
	u32 _pad;
};

#define INODE_TEXT 64

/* A file or directory that rules name. */
struct inode_name {
	u64 own; /* slots that take its name */
	u64 below; /* of a directory: that may take a name below it */
	u32 len; /* of its name; 0: it is longer than `text`, or no directory */
	u32 _pad;
	u64 text[INODE_TEXT / 8];
};

#define INODES 32768
/* A bit for each hash of an inode that is named. */
#define INODE_WORDS 1024

/* Keys of one file: it may lie in several layers. */
#define SHOWN 4

/* Longer paths are let through. */
#define FILTER_PATH_LIMIT 512

/* Counters, one set for each processor. */
#define COUNT_REGISTERS 1 /* dropped by their arguments or result */
#define COUNT_SCOPE 2
#define COUNT_PATH 3
#define COUNT_NAME 4
#define COUNT_SENT 5
#define COUNT_UNREADABLE 6 /* memory that was not there */
#define COUNT_TRUNCATED 7
#define COUNT_LOST_CRITICAL 8 /* no room in the ring */
#define COUNT_LOST_BULK 9
#define COUNT_LOST_STATE 10
#define COUNT_NO_MEMORY 11 /* no working memory */
#define COUNT_SOCKET 12 /* dropped by the ends of the connection */
#define COUNT_PLACE 13 /* by being in a container, or not */
#define COUNT_RING 14 /* calls by an io_uring that rules ask for, and that are no events */
#define COUNT_LOST_SHARE 15 /* among lost calls: of who had more of the ring than was free */
#define COUNTERS 16

/* Lanes. */
#define RING_CRITICAL 0
#define RING_BULK 1

/* Users in their control groups have three quarters of a ring at most. */
#define GROUP_PARTS 3

/* Processes that lost records which can be told. */
#define LOSERS 256

struct loser_key {
	u32 pid;
	u32 ring;
	u32 cause;
};

struct loser {
	u64 count;
	char comm[16];
};

/* Operations of an io_uring that there can be. */
#define RING_OPERATIONS 256

#endif
