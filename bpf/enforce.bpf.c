/* Enforcer `BPF`: policies at the hooks of the security modules.
 *
 * A task that is confined carries the number of its policy (task storage), which is inherited at fork
 * and never taken off: no namespace, no control group and no exec leads out of it. Policies are looked
 * up by number and exchanged as a whole, so that a task always sees one version. It gets it from the agent,
 * before its exec, or from the container in which its program begins.
 *
 * Paths are told twice: as the process sees them, through mounts and regardless of chroot(2), and as
 * their file system has them, from the place where it was mounted when the policy was made. A second
 * mount of the same file system hides nothing. Both are read by one automaton for all patterns
 * (crates/enforce/src/bpf/automaton.rs).
 *
 * Whatever cannot be found out is denied.
 */
#include "kernel.h"
#include "policy.h"
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_tracing.h>

char LICENSE[] SEC("license") = "Dual BSD/GPL";

/* What the other side reckons with. */
_Static_assert(sizeof(struct outcomes) == 24, "see tables.rs");
_Static_assert(sizeof(struct socket_rule) == 56, "see tables.rs");
_Static_assert(sizeof(struct address_rule) == 56, "see tables.rs");
_Static_assert(sizeof(struct mount_rule) == 28, "see tables.rs");
_Static_assert(__builtin_offsetof(struct policy, operation) == 32, "see tables.rs");
_Static_assert(__builtin_offsetof(struct policy, placed) == 92, "see tables.rs");
_Static_assert(__builtin_offsetof(struct policy, capability) == 96, "see tables.rs");
_Static_assert(__builtin_offsetof(struct policy, mode) == 224, "see tables.rs");
_Static_assert(__builtin_offsetof(struct policy, set) == 6560, "see tables.rs");
_Static_assert(sizeof(struct policy) ==
		       6560 + 24 * SETS + 256 + KEYS + VIEWS + 2 * STATES + 2 * EDGES + 4 * PLACES + 8,
	       "see tables.rs");
_Static_assert(sizeof(struct tenant) == 256, "see programs.rs");
_Static_assert(__builtin_offsetof(struct tenant, table) == 16, "see programs.rs");
_Static_assert(__builtin_offsetof(struct violation, table) == 324, "see records.rs");
_Static_assert(sizeof(struct violation) == 328, "see records.rs");
_Static_assert(sizeof(struct ledger) == 40, "see programs.rs");
_Static_assert(sizeof(struct container) == 512, "see containers.rs");

#define EPERM 1
#define ENOMEM 12

/* Deeper paths are denied: a deep folder must be no way past a rule. */
#define COMPONENTS 128
/* Of a name, with the slash before it and the zero after it. */
#define NAME_ROOM 257
#define PATH_ROOM 4096

#define S_IFMT 0170000
#define S_IFBLK 0060000
#define S_IFREG 0100000
#define FMODE_READ 1
#define FMODE_WRITE 2
#define O_TRUNC 01000
#define O_APPEND 02000
#define O_TMPFILE_BIT 020000000
/* Set by the kernel alone, for execve. */
#define FMODE_EXEC 0x20

#define MS_REMOUNT 32
#define MS_BIND 4096
#define MS_MOVE 8192
#define MS_PROPAGATION (0xf << 17)

#define AF_UNSPEC 0
#define AF_INET 2
#define AF_INET6 10
#define SOL_SOCKET 1
#define SOL_PACKET 263
#define CAP_SYS_MODULE 16
#define CAP_SYS_ADMIN 21
#define CAP_OPT_NOAUDIT 2
#define PROT_EXEC 4
#define PTRACE_MODE_ATTACH 2
#define TS_COMPAT 2
#define PF_IO_WORKER 0x10
#define BPF_FS_MAGIC 0xcafe4a11
#define MQUEUE_MAGIC 0x19800202

struct scratch {
	struct violation head;
	/* The path, and from PATH_ROOM on what lies between the file's mount and its file system. */
	u8 bytes[2 * PATH_ROOM];
	/* In memory, where the verifier forgets what it knew: else it would follow each length through
	 * each turn of a loop. */
	volatile u32 used;
	volatile u32 count;
	/* Length of the path, and where the names within the file's own mount begin. */
	volatile u32 len;
	volatile u32 tail;
	volatile u32 above;
	volatile u32 within;
	volatile u32 has_mount;
	volatile u32 is_detached;
	volatile u32 device;
	volatile u64 magic;
	volatile u64 mounts;
	u32 address[4];
	u32 port;
	u32 _pad;
	const u8 *name[COMPONENTS];
};

/* Without types: kernels before 6.2 take a table with types for another kind than one without. */
struct policy_table {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__uint(key_size, sizeof(u32));
	__uint(value_size, sizeof(struct policy));
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH_OF_MAPS);
	__uint(max_entries, 4096);
	__type(key, u32);
	__array(values, struct policy_table);
} policies SEC(".maps");

/* Where an agent hears of violations. A policy that reports nothing has none; containers share that of ALL. */
struct ring_table {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 1 << 19);
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH_OF_MAPS);
	__uint(max_entries, 1024);
	__type(key, u32);
	__array(values, struct ring_table);
} rings SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 16384);
	__type(key, u32);
	__type(value, struct ledger);
} ledgers SEC(".maps");

/* The number of all containers together, which no policy has: of their ring, and of a ledger that counts what is lost. */
#define ALL 0

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 65536);
	__type(key, struct program_key);
	__type(value, u32);
} programs SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 65536);
	__type(key, struct place_key);
	__type(value, u32);
} places SEC(".maps");

/* For those who read what comes back, exchange policies or remove them: the names of policies, and of
 * the rules of each version. */
struct label {
	char name[128];
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 16384);
	__type(key, u32);
	__type(value, struct label);
} labels SEC(".maps");

/* The version of each table, so that nobody has to read a table for it. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 4096);
	__type(key, u32);
	__type(value, u32);
} generations SEC(".maps");

/* The last numbers that were given: of a policy, a table or a container, and of a version. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 2);
	__type(key, u32);
	__type(value, u32);
} counters SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 65536);
	__type(key, struct rule_key);
	__type(value, struct label);
} rules SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_TASK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct tenant);
} tenants SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 16384);
	__type(key, u64);
	__type(value, struct container);
} containers SEC(".maps");

/* Working memory. Each task has its own: one of each processor could be taken by another task where the
 * kernel preempts itself. */
struct {
	__uint(type, BPF_MAP_TYPE_TASK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct scratch);
} memory SEC(".maps");

struct subject {
	struct tenant *tenant;
	const struct policy *policy;
};

static __always_inline const struct policy *policy_of(struct tenant *tenant)
{
	u32 number = tenant->table;
	void *table = bpf_map_lookup_elem(&policies, &number);
	u32 zero = 0;

	return table ? bpf_map_lookup_elem(table, &zero) : NULL;
}

static __always_inline struct tenant *tenant_of(struct task_struct *task)
{
	return bpf_task_storage_get(&tenants, task, 0, 0);
}

/* Whether the caller is confined. Its policy is NULL if it is lost, which no one should see. */
static __always_inline bool confined(struct subject *me)
{
	me->tenant = tenant_of(bpf_get_current_task_btf());
	if (!me->tenant || !me->tenant->is_active)
		return false;
	me->policy = policy_of(me->tenant);
	return true;
}

/* A pointer as a number, as which functions that are verified by themselves take it. */
static __always_inline u64 number_of(const void *pointer)
{
	u64 number = 0;

	bpf_probe_read_kernel(&number, sizeof(number), &pointer);
	return number;
}

static __always_inline struct scratch *working_memory(void)
{
	return bpf_task_storage_get(&memory, bpf_get_current_task_btf(), 0,
				    BPF_LOCAL_STORAGE_GET_F_CREATE);
}

/* Of two outcomes: denied if one denies, reported if one reports, in the name of the one that denies. */
static __always_inline u32 worse(u32 one, u32 other)
{
	u32 rule = one & OUTCOME_RULE;

	if (!one)
		return other;
	if ((other & OUTCOME_DENY) && !(one & OUTCOME_DENY))
		rule = other & OUTCOME_RULE;
	return rule | ((one | other) & (OUTCOME_DENY | OUTCOME_AUDIT));
}

/* The number of the call that the task is in, as on x86-64; those since 5.1 are the same for all. */
static __always_inline long current_call(struct task_struct *task)
{
	struct pt_regs *regs = (void *)bpf_task_pt_regs(task);
#if defined(__TARGET_ARCH_x86)
	long nr = regs->orig_ax;

	if (task->thread_info.status & TS_COMPAT)
		switch (nr) {
		case 21:
			return 165;
		case 217:
			return 155;
		case 33:
			return 21;
		case 307:
			return 269;
		default:
			return nr > 420 ? nr : -1;
		}
	return nr & ~0x40000000L;
#else
	if (regs->pstate & PSR_MODE32_BIT)
		switch (regs->syscallno) {
		case 21:
			return 165;
		case 218:
			return 155;
		case 334:
			return 269;
		default:
			return regs->syscallno > 420 ? regs->syscallno : -1;
		}
	switch (regs->syscallno) {
	case 40:
		return 165;
	case 41:
		return 155;
	case 48:
		return 269;
	default:
		return regs->syscallno > 420 ? regs->syscallno : -1;
	}
#endif
}

/* Counts a violation and sends it if it is to be told. The details and the path are in the caller's
 * memory already. */
__noinline int tell(struct scratch *s, u32 number, u32 outcome, u32 what, u32 path_len)
{
	struct task_struct *task = bpf_get_current_task_btf();
	struct ledger *ledger = bpf_map_lookup_elem(&ledgers, &number);
	struct tenant *tenant = tenant_of(task);
	u64 ids = bpf_get_current_pid_tgid(), users = bpf_get_current_uid_gid();
	u32 all = ALL;
	void *ring;
	u32 size;

	if (!s)
		return 0;
	if (ledger)
		__sync_fetch_and_add(outcome & OUTCOME_DENY ? &ledger->denied : &ledger->audited, 1);
	if (!(outcome & OUTCOME_AUDIT))
		return 0;
	s->head.time = bpf_ktime_get_boot_ns();
	s->head.pid = ids >> 32;
	s->head.tid = ids;
	s->head.uid = users;
	s->head.policy = number;
	s->head.outcome = outcome;
	s->head.what = what;
	bpf_get_current_comm(s->head.comm, sizeof(s->head.comm));
	s->head.exe_len = 0;
	if (tenant) {
		s->head.exe_len = tenant->exe_len;
		__builtin_memcpy(s->head.exe, tenant->exe, sizeof(tenant->exe));
	}
	if (path_len > PATH_ROOM)
		path_len = PATH_ROOM;
	s->head.path_len = path_len;
	size = sizeof(struct violation) + path_len;
	ring = bpf_map_lookup_elem(&rings, &number);
	/* A container's. That of a policy may be gone with its reader, who alone hears of it. */
	if (!ring && s->head.table != number)
		ring = bpf_map_lookup_elem(&rings, &all);
	if (size > sizeof(struct violation) + PATH_ROOM)
		return 0;
	if (ring && !bpf_ringbuf_output(ring, &s->head, size, 0))
		return 0;
	if (ledger)
		__sync_fetch_and_add(&ledger->lost, 1);
	if (s->head.table == number)
		return 0;
	/* The ledger of a container is removed with it. */
	ledger = bpf_map_lookup_elem(&ledgers, &all);
	if (ledger)
		__sync_fetch_and_add(&ledger->lost, 1);
	return 0;
}

/* What a hook answers. */
static __always_inline int verdict(struct scratch *s, struct subject *me, u32 outcome, u32 what,
				   u32 path_len)
{
	if (!outcome)
		return 0;
	s->head.generation = me->policy->generation;
	s->head.table = me->tenant->table;
	tell(s, me->tenant->policy, outcome, what, path_len);
	return outcome & OUTCOME_DENY ? -EPERM : 0;
}

/* The same where no path is in play. */
static __always_inline int plain_verdict(struct subject *me, u32 outcome, u32 what, u64 first,
					 u64 second, u64 third)
{
	struct scratch *s;

	if (!outcome)
		return 0;
	s = working_memory();
	if (!s)
		return outcome & OUTCOME_DENY ? -EPERM : 0;
	s->head.detail[0] = first;
	s->head.detail[1] = second;
	s->head.detail[2] = third;
	s->head.detail[3] = 0;
	return verdict(s, me, outcome, what, 0);
}

/* ---- paths */

static __always_inline struct dentry *parent_and_name(struct dentry *dentry, const u8 **name)
{
	*name = BPF_CORE_READ(dentry, d_name.name);
	return BPF_CORE_READ(dentry, d_parent);
}

struct writing {
	struct scratch *s;
	u32 at;
	u32 within;
	u32 count;
	u32 failed;
};

static long write_name(u32 turn, struct writing *w)
{
	struct scratch *s = w->s;
	u32 used = s->used, left = w->count - turn;
	u64 to = (u64)used + w->at;
	long len;

	if (turn >= w->count)
		return 1;
	if (left == w->within)
		s->tail = to;
	if (used > PATH_ROOM - NAME_ROOM || to > 2 * PATH_ROOM - NAME_ROOM) {
		w->failed = 1;
		return 1;
	}
	s->bytes[to] = '/';
	len = bpf_probe_read_kernel_str(&s->bytes[to + 1], NAME_ROOM - 1,
					s->name[(left - 1) & (COMPONENTS - 1)]);
	if (len <= 0) {
		w->failed = 1;
		return 1;
	}
	s->used = used + len;
	return 0;
}

/* Writes the names that were collected, the last one first, from `at` on. Where `within` of them are
 * left, the file's own mount begins. Answers with the end, 0 if there is no room. */
__noinline u32 write_names(struct scratch *s, u32 at, u32 within)
{
	struct writing w = {.at = at, .within = within};

	if (!s || at > PATH_ROOM)
		return 0;
	w.s = s;
	w.count = s->count;
	s->used = 0;
	bpf_loop(COMPONENTS, write_name, &w, 0);
	return w.failed ? 0 : at + s->used;
}

struct walking {
	struct scratch *s;
	struct dentry *dentry;
	struct dentry *mount_root;
	/* NULL: up to the root of the file system. */
	struct mount *mount;
	u32 crossed;
	u32 found;
};

static long walk_up(u32 turn, struct walking *w)
{
	struct scratch *s = w->s;
	struct mount *mount = w->mount;
	struct dentry *parent;
	const u8 *name;
	u32 count;

	if (w->dentry == w->mount_root) {
		struct mount *above;

		if (!w->crossed) {
			w->crossed = 1;
			s->within = s->count;
		}
		above = mount ? BPF_CORE_READ(mount, mnt_parent) : NULL;
		if (above == mount || !above) {
			w->found = 1;
			return 1;
		}
		w->dentry = BPF_CORE_READ(mount, mnt_mountpoint);
		w->mount = above;
		w->mount_root = BPF_CORE_READ(above, mnt.mnt_root);
		return 0;
	}
	parent = parent_and_name(w->dentry, &name);
	if (w->dentry == parent) {
		/* A pipe, a file in memory, or a file that was opened by its handle. */
		s->is_detached = 1;
		s->within = s->count;
		w->found = 1;
		return 1;
	}
	count = s->count;
	s->name[count & (COMPONENTS - 1)] = name;
	s->count = count + 1;
	w->dentry = parent;
	return 0;
}

/* What is to become of a path that cannot be found out. A policy that only reports denies nothing. */
static __always_inline u32 lost_outcome(const struct policy *p)
{
	return (p->features & DENIES ? OUTCOME_DENY : 0) | (p->features & AUDITS ? OUTCOME_AUDIT : 0);
}

/* Finds out the path of a file. Without a mount only that within its file system. Answers with 0 if it
 * was found. */
__noinline u32 resolve(struct scratch *s, u64 dentry_address, u64 mount_address)
{
	struct dentry *dentry = (void *)dentry_address, *own_root, *fs_root;
	struct vfsmount *vfsmount = (void *)mount_address;
	struct walking w = {.dentry = dentry};
	struct super_block *sb;

	if (!s)
		return 1;
	w.s = s;
	sb = BPF_CORE_READ(dentry, d_sb);
	fs_root = BPF_CORE_READ(sb, s_root);
	s->device = BPF_CORE_READ(sb, s_dev);
	s->magic = BPF_CORE_READ(sb, s_magic);
	s->count = 0;
	s->tail = 0;
	s->len = 0;
	s->above = 0;
	s->within = 0;
	s->mounts = 0;
	s->is_detached = 0;
	s->has_mount = vfsmount != NULL;
	w.mount_root = fs_root;
	if (vfsmount) {
		w.mount = (void *)vfsmount - bpf_core_field_offset(struct mount, mnt);
		w.mount_root = BPF_CORE_READ(vfsmount, mnt_root);
	}
	own_root = w.mount_root;
	bpf_loop(COMPONENTS, walk_up, &w, 0);
	if (!w.found)
		return 1;
	if (s->count == 0) {
		s->bytes[0] = '/';
		s->len = 1;
	} else {
		u32 end;

		s->tail = 0xffff;
		end = write_names(s, 0, s->within);
		if (!end)
			return 1;
		s->len = end;
		if (s->tail == 0xffff)
			/* The root of a mount. */
			s->tail = end;
	}
	if (own_root == fs_root || s->is_detached)
		return 0;
	/* The mount shows a part of its file system. */
	s->count = 0;
	w.found = 0;
	w.crossed = 1;
	w.mount = NULL;
	w.dentry = own_root;
	w.mount_root = fs_root;
	bpf_loop(COMPONENTS, walk_up, &w, 0);
	s->is_detached = 0;
	if (!w.found)
		return 1;
	{
		/* Where the names within the mount begin stays as it is. */
		u32 tail = s->tail, within = s->within;

		s->above = write_names(s, PATH_ROOM, ~0U);
		s->tail = tail;
		s->within = within;
	}
	return !s->above;
}

/* Bytes that are read in one turn. */
#define TURN 8

struct reading {
	const struct policy *p;
	struct scratch *s;
	u32 state;
	u32 at;
	u32 to;
	u32 _pad;
};

static long read_bytes(u32 turn, struct reading *r)
{
	const struct policy *p = r->p;
	struct scratch *s = r->s;
	u32 state = r->state, at = r->at, to = r->to;

	for (u32 i = 0; i < TURN; i++) {
		u64 edge;

		if (at >= to)
			break;
		edge = (u64)state * p->width + p->class_of[s->bytes[at & (2 * PATH_ROOM - 1)]];
		/* The compiler makes an "or" of the sum, for which verifiers know no bounds. */
		asm volatile("%0 &= %1" : "+r"(edge) : "i"(EDGES - 1));
		state = p->edge[edge] & (STATES - 1);
		at++;
	}
	r->state = state;
	r->at = at;
	return at >= to;
}

/* The state that the bytes from one place to another lead to. */
__noinline u32 advance(const struct policy *p, struct scratch *s, u32 state, u32 from, u32 to)
{
	struct reading r = {.p = p, .s = s, .state = state, .at = from, .to = to};

	if (!p || !s)
		return 0;
	r.p = p;
	r.s = s;
	bpf_loop(PATH_ROOM / TURN, read_bytes, &r, 0);
	return r.state;
}

/* Which view a file system is, VIEWS for others. */
static __always_inline u32 view_of(u64 magic)
{
	switch (magic) {
	case 0x9fa0:
		return VIEW_PROC;
	case 0x62656572:
		return VIEW_SYSFS;
	case 0x27e0eb:
	case 0x63677270:
		return VIEW_CGROUP;
	case 0x73636673:
		return VIEW_SECURITY;
	case 0x64626720:
		return VIEW_DEBUG;
	case 0x74726163:
		return VIEW_TRACE;
	case BPF_FS_MAGIC:
		return VIEW_BPF;
	}
	return VIEWS;
}

/* What is known of the place of a file system that is no view. */
static __always_inline u32 known_place(const struct policy *p, u32 number, u32 device)
{
	struct place_key key = {.owner = p->generation, .device = device};
	u32 *known;

	if (p->is_shared)
		key.owner = number | OF_CONTAINER;
	known = bpf_map_lookup_elem(&places, &key);
	if (!known)
		return 0;
	return p->is_shared ? p->place[*known & (PLACES - 1)] : *known;
}

/* The state that the file system's own place stands for. */
static __always_inline u32 place_of(const struct policy *p, struct scratch *s, u32 number)
{
	u32 view = view_of(s->magic);

	return view < VIEWS ? p->view[view] : known_place(p, number, s->device) & PLACE_STATE;
}

static __always_inline u32 outcome_at(const struct policy *p, struct scratch *s, u32 state, u32 kinds)
{
	u32 index = p->accept[state & (STATES - 1)] & (SETS - 1);
	u32 outcome = 0;

	s->mounts |= p->set[index].mounts;
	for (u32 i = 0; i < KINDS; i++)
		if (kinds & (1 << i))
			outcome = worse(outcome, p->set[index].of[i]);
	return outcome;
}

/* What the policy makes of the path that was found. `number`: of who is confined. */
__noinline u32 judge(const struct policy *p, struct scratch *s, u32 kinds, u32 number)
{
	u32 outcome = 0, before = 0, place, tail;

	if (!p || !s)
		return OUTCOME_DENY;
	place = place_of(p, s, number);
	if (s->is_detached) {
		/* Of a file system that has a place, it is a file whose folder is not known. */
		return place ? lost_outcome(p) : 0;
	}
	tail = s->tail;
	if (s->has_mount) {
		before = advance(p, s, p->start, 0, tail);
		outcome = outcome_at(p, s, advance(p, s, before, tail, s->len), kinds);
	}
	if (!place)
		return outcome;
	if (s->above)
		place = advance(p, s, place, PATH_ROOM, s->above);
	if (s->has_mount && place == before)
		return outcome;
	if (s->within == 0 && place != p->start)
		/* The place itself. */
		tail = s->len;
	return worse(outcome, outcome_at(p, s, advance(p, s, place, tail, s->len), kinds));
}

/* ---- files that no rule can be about, whatever their whole path is */

/* So many names and mounts are looked at; deeper files are judged by their path. */
#define STEPS 24

/* How the kernel has the beginning of an entry. */
struct entry {
	u64 parent;
	/* The upper half is the length. */
	u64 hash_len;
	u64 name;
	u64 inode;
	/* The first bytes of a name that has room in the entry itself. */
	u64 begin;
};

/* Whether the folders from an entry up to a root, and through mounts to that of all, or one of their names
 * may be in a path that a rule is about. `mount` 0: up to this root only. */
__noinline u32 climb(const struct policy *p, u64 dentry, u64 root, u64 mount, u32 kinds)
{
	const u64 first = bpf_core_field_offset(struct dentry, d_parent);

	if (!p || bpf_core_field_offset(struct dentry, d_name.name) != first + 16)
		return 1;
	for (u32 i = 0; i < STEPS; i++) {
		struct entry entry;
		u64 begin, len;

		if (dentry == root) {
			struct mount *here = (void *)mount;
			u64 above = here ? (u64)BPF_CORE_READ(here, mnt_parent) : mount;

			if (above == mount || !above)
				return 0;
			dentry = (u64)BPF_CORE_READ(here, mnt_mountpoint);
			mount = above;
			here = (void *)mount;
			root = (u64)BPF_CORE_READ(here, mnt.mnt_root);
			continue;
		}
		/* An entry that is its own parent has no path. */
		if (bpf_probe_read_kernel(&entry, sizeof(entry), (void *)(dentry + first)) ||
		    entry.parent == dentry)
			return 1;
		begin = entry.begin;
		if (entry.name != dentry + first + 32 &&
		    bpf_probe_read_kernel(&begin, sizeof(begin), (void *)entry.name))
			return 1;
		len = entry.hash_len >> 32;
		if (len < sizeof(begin))
			begin &= (1ULL << len * 8) - 1;
		/* As `slot` in keys.rs. */
		if (p->key[(begin * 0x9e3779b97f4a7c15ULL + len * 0xff51afd7ed558ccdULL) >> 52] & kinds)
			return 1;
		dentry = entry.parent;
	}
	return 1;
}

/* Whether a rule may be about a file: if not, none of the names is read that `resolve` would put together,
 * of either path. Each path that a rule is about has a name that is its key (crates/enforce/src/bpf/keys.rs). */
__noinline u32 may_match(const struct policy *p, u64 dentry_address, u64 mount_address, u32 kinds, u32 number)
{
	struct dentry *dentry = (void *)dentry_address;
	struct vfsmount *vfsmount = (void *)mount_address;
	struct super_block *sb = BPF_CORE_READ(dentry, d_sb);
	u64 fs_root = (u64)BPF_CORE_READ(sb, s_root), root = fs_root, mount = 0;

	if (!p || (p->unkeyed & kinds))
		return 1;
	if (p->placed & kinds) {
		u32 view = view_of(BPF_CORE_READ(sb, s_magic));
		u32 keys = view < VIEWS ? p->view_key[view] :
					  known_place(p, number, BPF_CORE_READ(sb, s_dev)) >> PLACE_KEYS;

		if (keys & kinds)
			return 1;
	}
	if (vfsmount) {
		root = (u64)BPF_CORE_READ(vfsmount, mnt_root);
		mount = mount_address - bpf_core_field_offset(struct mount, mnt);
	}
	if (climb(p, dentry_address, root, mount, kinds))
		return 1;
	/* A mount that shows a part of its file system. */
	return root != fs_root && climb(p, root, fs_root, 0, kinds);
}

/* The caller does something to a file. */
__noinline int on_path(u64 dentry, u64 mount, u32 kinds, u32 what, u64 detail)
{
	struct subject me;
	struct scratch *s;

	if (!confined(&me))
		return 0;
	if (!me.policy)
		return 1;
	if (!(me.policy->features & HAS_PATHS) || !may_match(me.policy, dentry, mount, kinds, me.tenant->policy))
		return 0;
	s = working_memory();
	if (!s)
		return 1;
	s->head.detail[0] = detail;
	s->head.detail[1] = kinds;
	s->head.detail[2] = 0;
	s->head.detail[3] = 0;
	if (resolve(s, dentry, mount))
		return verdict(s, &me, lost_outcome(me.policy), WHAT_PATH_LOST, 0) != 0;
	return verdict(s, &me, judge(me.policy, s, kinds, me.tenant->policy), what, s->len) != 0;
}

#define ON(kind) (1 << KIND_##kind)
#define AT(path, kinds, what, detail) \
	(on_path(number_of((path)->dentry), number_of((path)->mnt), kinds, what, detail) ? -EPERM : 0)
#define IN(dir, dentry, kinds, what, detail) \
	(on_path(number_of(dentry), number_of((dir)->mnt), kinds, what, detail) ? -EPERM : 0)

/* Whether a text begins with another, which is a constant; the compiler would call memcmp(3). */
#define BEGINS(text, other) \
	({ \
		u32 differs = 0; \
		_Pragma("unroll") for (u32 at = 0; at < sizeof(other) - 1; at++) \
			differs |= (text)[at] ^ (other)[at]; \
		!differs; \
	})

/* ---- who is confined */

SEC("?lsm/task_alloc")
int BPF_PROG(task_alloc, struct task_struct *task, unsigned long flags)
{
	struct tenant *parent = tenant_of(bpf_get_current_task_btf());
	struct tenant *child;
	struct ledger *ledger;
	u32 number;

	if (!parent)
		return 0;
	child = bpf_task_storage_get(&tenants, task, 0, BPF_LOCAL_STORAGE_GET_F_CREATE);
	if (!child)
		return -ENOMEM;
	__builtin_memcpy(child, parent, sizeof(*child));
	number = child->policy;
	ledger = bpf_map_lookup_elem(&ledgers, &number);
	if (ledger && child->is_active)
		__sync_fetch_and_add(&ledger->users, 1);
	return 0;
}

SEC("?lsm/task_free")
int BPF_PROG(task_free, struct task_struct *task)
{
	struct tenant *tenant = tenant_of(task);
	struct ledger *ledger;
	u32 number;

	if (!tenant)
		return 0;
	number = tenant->policy;
	ledger = bpf_map_lookup_elem(&ledgers, &number);
	if (ledger && tenant->is_active)
		__sync_fetch_and_add(&ledger->users, -1);
	return 0;
}

/* Control groups of containers are not deeper; those that a container makes in its own may be. */
#define LEVELS 15

/* The container in which a program has begun; NULL for none. A container may have changed its namespaces,
 * which its sessions enter: all of them but that of the runtime are its own. */
static __always_inline struct container *container_of_task(struct task_struct *task)
{
	u32 namespace = BPF_CORE_READ(task, nsproxy, mnt_ns, ns.inum);
	struct container *container;
	u64 group;

	for (int level = 1; level <= LEVELS; level++) {
		group = bpf_get_current_ancestor_cgroup_id(level);
		if (!group)
			return NULL;
		container = bpf_map_lookup_elem(&containers, &group);
		if (container)
			return container->runtime_namespace == namespace ? NULL : container;
	}
	return NULL;
}

/* The new program has not run yet, and all that its exec opens and maps was done without the policy. */
SEC("?tp_btf/sched_process_exec")
int BPF_PROG(exec_done, struct task_struct *task, int old_pid, struct linux_binprm *bprm)
{
	struct tenant *tenant = tenant_of(bpf_get_current_task_btf());
	struct scratch *s;
	u32 len, from;

	if (!tenant) {
		struct container *container = container_of_task(task);

		if (!container)
			return 0;
		tenant = bpf_task_storage_get(&tenants, task, 0, BPF_LOCAL_STORAGE_GET_F_CREATE);
		if (!tenant) {
			/* No memory: it is too late to refuse the program. */
			bpf_send_signal(9);
			return 0;
		}
		tenant->policy = container->policy;
		tenant->table = container->table;
	}
	if (!tenant->is_active) {
		u32 number = tenant->policy;
		struct ledger *ledger = bpf_map_lookup_elem(&ledgers, &number);

		tenant->is_active = 1;
		if (ledger) {
			__sync_fetch_and_add(&ledger->users, 1);
			/* From now on it is there for as long as it has users. */
			ledger->is_used = 1;
		}
	}
	tenant->exe_len = 0;
	s = working_memory();
	if (!s || resolve(s, (u64)BPF_CORE_READ(bprm, file, f_path.dentry),
			  (u64)BPF_CORE_READ(bprm, file, f_path.mnt)))
		return 0;
	len = s->len;
	from = 0;
	/* Of a long path the end. */
	if (len > sizeof(tenant->exe)) {
		from = len - sizeof(tenant->exe);
		len = sizeof(tenant->exe);
	}
	if (from > PATH_ROOM)
		return 0;
	bpf_probe_read_kernel(tenant->exe, sizeof(tenant->exe), &s->bytes[from]);
	tenant->exe_len = len;
	return 0;
}

/* ---- files */

__noinline u32 disk_outcome(const struct policy *p, u32 mode, u32 flags)
{
	u32 outcome = 0;

	if (!p)
		return OUTCOME_DENY;
	if (mode & FMODE_READ)
		outcome = worse(outcome, p->disk[KIND_READ]);
	if (mode & FMODE_WRITE)
		outcome = worse(outcome, p->disk[KIND_WRITE]);
	if ((mode & FMODE_WRITE) && (flags & O_APPEND))
		outcome = worse(outcome, p->disk[KIND_APPEND]);
	return outcome;
}

__noinline u32 mode_outcome(const struct policy *p, u32 mode)
{
	u32 outcome = 0;

	if (!p)
		return OUTCOME_DENY;
	for (u32 i = 0; i < MODE_RULES; i++)
		if (i < p->modes && (mode & p->mode[i].bits))
			outcome = worse(outcome, p->mode[i].outcome);
	return outcome;
}

SEC("?lsm/file_open")
int BPF_PROG(file_open, struct file *file)
{
	struct inode *inode = file->f_inode;
	u32 mode = file->f_mode, flags = file->f_flags, kinds = 0;
	struct subject me;
	int denied;

	if (!confined(&me))
		return 0;
	if (!me.policy)
		return -EPERM;
	/* What is executed is looked at when it is. */
	if (flags & FMODE_EXEC)
		return 0;
	if ((inode->i_mode & S_IFMT) == S_IFBLK) {
		denied = plain_verdict(&me, disk_outcome(me.policy, mode, flags), WHAT_DISK, flags,
				       inode->i_rdev, 0);
		if (denied)
			return -EPERM;
	}
	if (flags & O_TMPFILE_BIT) {
		denied = plain_verdict(&me, mode_outcome(me.policy, inode->i_mode), WHAT_MODE,
				       inode->i_mode, 0, 0);
		if (denied)
			return -EPERM;
	}
	if (mode & FMODE_READ)
		kinds |= ON(READ);
	/* A file that is opened for reading can be emptied, for which kernels since 6.2 do not ask for its
	 * path again. */
	if ((mode & FMODE_WRITE) || ((flags & O_TRUNC) && (inode->i_mode & S_IFMT) == S_IFREG))
		kinds |= ON(WRITE);
	if ((mode & FMODE_WRITE) && (flags & O_APPEND))
		kinds |= ON(APPEND);
	return AT(&file->f_path, kinds, WHAT_OPEN, flags);
}

SEC("?lsm/path_truncate")
int BPF_PROG(path_truncate, const struct path *path)
{
	return AT(path, ON(WRITE), WHAT_CHANGE, CHANGE_TRUNCATE);
}

/* Where programs and maps are kept: a confined task that could remove them would be free. */
static __always_inline int is_ours(struct dentry *dentry)
{
	struct subject me;

	return dentry->d_sb->s_magic == BPF_FS_MAGIC && confined(&me);
}

SEC("?lsm/path_unlink")
int BPF_PROG(path_unlink, const struct path *dir, struct dentry *dentry)
{
	if (is_ours(dentry))
		return -EPERM;
	return IN(dir, dentry, ON(WRITE), WHAT_CHANGE, CHANGE_REMOVE);
}

SEC("?lsm/path_rmdir")
int BPF_PROG(path_rmdir, const struct path *dir, struct dentry *dentry)
{
	if (is_ours(dentry))
		return -EPERM;
	return IN(dir, dentry, ON(WRITE) | ON(ABOVE), WHAT_CHANGE, CHANGE_REMOVE);
}

SEC("?lsm/path_mkdir")
int BPF_PROG(path_mkdir, const struct path *dir, struct dentry *dentry, u16 mode)
{
	return IN(dir, dentry, ON(WRITE), WHAT_CHANGE, CHANGE_CREATE);
}

SEC("?lsm/path_mknod")
int BPF_PROG(path_mknod, const struct path *dir, struct dentry *dentry, u16 mode, unsigned int device)
{
	struct subject me;

	if (!confined(&me))
		return 0;
	if (!me.policy)
		return -EPERM;
	/* Sockets, FIFOs and devices have these bits without being executable. mknod(2) takes 0 as a regular file. */
	if (((mode & S_IFMT) == S_IFREG || !(mode & S_IFMT)) &&
	    plain_verdict(&me, mode_outcome(me.policy, mode), WHAT_MODE, mode, 0, 0))
		return -EPERM;
	return IN(dir, dentry, ON(WRITE), WHAT_CHANGE, CHANGE_CREATE);
}

/* mq_open(2) makes a file without a path. */
SEC("?lsm/inode_create")
int BPF_PROG(inode_create, struct inode *dir, struct dentry *dentry, u16 mode)
{
	struct subject me;

	if (dir->i_sb->s_magic != MQUEUE_MAGIC || !confined(&me))
		return 0;
	if (!me.policy ||
	    plain_verdict(&me, mode_outcome(me.policy, mode), WHAT_MODE, mode, 0, 0))
		return -EPERM;
	return 0;
}

SEC("?lsm/path_symlink")
int BPF_PROG(path_symlink, const struct path *dir, struct dentry *dentry, const char *target)
{
	return IN(dir, dentry, ON(WRITE), WHAT_CHANGE, CHANGE_CREATE);
}

SEC("?lsm/path_link")
int BPF_PROG(path_link, struct dentry *old, const struct path *dir, struct dentry *new)
{
	/* Both names are in the same mount. */
	if (on_path(number_of(old), number_of(dir->mnt), ON(WRITE) | ON(MOVE), WHAT_CHANGE, CHANGE_LINK))
		return -EPERM;
	return IN(dir, new, ON(WRITE), WHAT_CHANGE, CHANGE_LINK);
}

SEC("?lsm/path_rename")
int BPF_PROG(path_rename, const struct path *old_dir, struct dentry *old, const struct path *new_dir,
	     struct dentry *new)
{
	if (is_ours(old))
		return -EPERM;
	if (on_path(number_of(old), number_of(old_dir->mnt), ON(WRITE) | ON(MOVE) | ON(ABOVE), WHAT_CHANGE,
		    CHANGE_RENAME))
		return -EPERM;
	/* What is there is removed, or gets the other name. */
	return IN(new_dir, new, ON(WRITE) | ON(MOVE) | ON(ABOVE), WHAT_CHANGE, CHANGE_RENAME);
}

SEC("?lsm/path_chmod")
int BPF_PROG(path_chmod, const struct path *path, u16 mode)
{
	struct subject me;

	if (!confined(&me))
		return 0;
	if (!me.policy)
		return -EPERM;
	/* Folders need the bits that make files executable. */
	if ((path->dentry->d_inode->i_mode & S_IFMT) == S_IFREG &&
	    plain_verdict(&me, mode_outcome(me.policy, mode), WHAT_MODE, mode, 0, 0))
		return -EPERM;
	return AT(path, ON(WRITE), WHAT_CHANGE, CHANGE_MODE);
}

SEC("?lsm/path_chown")
int BPF_PROG(path_chown, const struct path *path)
{
	return AT(path, ON(WRITE), WHAT_CHANGE, CHANGE_OWNER);
}

/* An access-control list gives permissions like a mode. */
static __always_inline int on_acl(void)
{
	struct subject me;

	if (!confined(&me))
		return 0;
	if (!me.policy ||
	    plain_verdict(&me, mode_outcome(me.policy, 0111), WHAT_MODE, 0111, 0, 0))
		return -EPERM;
	return 0;
}

SEC("?lsm/inode_setxattr")
int BPF_PROG(inode_setxattr, void *idmap, struct dentry *dentry, const char *name)
{
	char begin[18] = {};

	bpf_probe_read_kernel_str(begin, sizeof(begin), name);
	if (BEGINS(begin, "system.posix_acl_") && on_acl())
		return -EPERM;
	return on_path(number_of(dentry), 0, ON(WRITE), WHAT_CHANGE, CHANGE_ATTRIBUTE) ? -EPERM : 0;
}

SEC("?lsm/inode_removexattr")
int BPF_PROG(inode_removexattr, void *idmap, struct dentry *dentry)
{
	return on_path(number_of(dentry), 0, ON(WRITE), WHAT_CHANGE, CHANGE_ATTRIBUTE) ? -EPERM : 0;
}

/* Since 6.2 lists have a hook of their own. */
SEC("?lsm/inode_set_acl")
int BPF_PROG(inode_set_acl, void *idmap, struct dentry *dentry)
{
	if (on_acl())
		return -EPERM;
	return on_path(number_of(dentry), 0, ON(WRITE), WHAT_CHANGE, CHANGE_ATTRIBUTE) ? -EPERM : 0;
}

/* ---- programs */

/* By the inode, whatever its name is. */
static __always_inline u32 inode_outcome(const struct policy *p, struct file *file)
{
	struct program_key key = {
		.generation = p->generation,
		.device = file->f_inode->i_sb->s_dev,
		.inode = file->f_inode->i_ino,
	};
	u32 *outcome = bpf_map_lookup_elem(&programs, &key);

	return outcome ? *outcome : 0;
}

/* The name that the caller gave, as far as it is absolute or a name in the current folder. */
__noinline u32 name_outcome(const struct policy *p, struct scratch *s, u64 name)
{
	u32 state, from = 0;
	long len;

	if (!p || !s)
		return OUTCOME_DENY;
	len = bpf_probe_read_kernel_str(s->bytes, PATH_ROOM, (void *)name);
	if (len <= 1)
		return 0;
	state = p->start;
	if (s->bytes[0] != '/') {
		state = p->relative;
		if (s->bytes[0] == '.' && s->bytes[1] == '/')
			from = 2;
	}
	s->len = len - 1;
	return outcome_at(p, s, advance(p, s, state, from, len - 1), ON(EXEC));
}

static __always_inline int on_program(struct file *file, const char *name)
{
	struct subject me;
	struct scratch *s;
	u32 outcome;

	if (!confined(&me))
		return 0;
	if (!me.policy)
		return -EPERM;
	if (!(me.policy->features & HAS_EXEC))
		return 0;
	outcome = inode_outcome(me.policy, file);
	if (!name && !outcome &&
	    !may_match(me.policy, number_of(file->f_path.dentry), number_of(file->f_path.mnt), ON(EXEC),
		       me.tenant->policy))
		return 0;
	s = working_memory();
	if (!s)
		return -EPERM;
	if (name)
		outcome = worse(name_outcome(me.policy, s, number_of(name)), outcome);
	s->head.detail[0] = file->f_inode->i_ino;
	s->head.detail[1] = 0;
	s->head.detail[2] = 0;
	s->head.detail[3] = 0;
	if (!outcome && name &&
	    !may_match(me.policy, number_of(file->f_path.dentry), number_of(file->f_path.mnt), ON(EXEC),
		       me.tenant->policy))
		return 0;
	if (resolve(s, number_of(file->f_path.dentry), number_of(file->f_path.mnt)))
		outcome = worse(outcome, lost_outcome(me.policy));
	else
		outcome = worse(outcome, judge(me.policy, s, ON(EXEC), me.tenant->policy));
	return verdict(s, &me, outcome, WHAT_EXEC, s->len);
}

/* Asked once more for the interpreter of a script: by the name that the script has for it. */
SEC("?lsm/bprm_check_security")
int BPF_PROG(bprm_check, struct linux_binprm *bprm)
{
	return on_program(bprm->file, bprm->interp) ? -EPERM : 0;
}

/* The loader, given a program, maps it. */
SEC("?lsm/mmap_file")
int BPF_PROG(mmap_file, struct file *file, unsigned long asked, unsigned long given, unsigned long flags)
{
	if (!file || !(given & PROT_EXEC))
		return 0;
	return on_program(file, NULL) ? -EPERM : 0;
}

/* ---- sockets */

__noinline u32 socket_outcome(const struct policy *p, u32 domain, u32 type, u32 protocol)
{
	u32 outcome = 0;

	if (!p)
		return OUTCOME_DENY;
	type &= 0xf;
	for (u32 i = 0; i < SOCKET_RULES; i++) {
		const struct socket_rule *rule = &p->socket[i];
		u64 word = 0;

		if (i >= p->sockets)
			break;
		/* Numbers that no mask has room for are meant by "any" alone. */
		if (rule->domains != ~0ULL && (domain > 63 || !(rule->domains >> domain & 1)))
			continue;
		if (!(rule->types >> type & 1))
			continue;
		/* A number of the word is no index that verifiers see the bounds of. */
		for (u32 at = 0; at < PROTOCOL_WORDS; at++)
			if (protocol >> 6 == at)
				word = rule->protocols[at];
		if (!rule->any_protocol && !(word >> (protocol & 63) & 1))
			continue;
		outcome = worse(outcome, rule->outcome);
	}
	return outcome;
}

SEC("?lsm/socket_create")
int BPF_PROG(socket_create, int domain, int type, int protocol, int is_kernel)
{
	struct subject me;

	if (is_kernel || !confined(&me))
		return 0;
	if (!me.policy)
		return -EPERM;
	return plain_verdict(&me, socket_outcome(me.policy, domain, type, protocol), WHAT_SOCKET, domain,
			     type & 0xf, protocol);
}

/* Of the address and port in the memory; `is_any`: whatever the address is. */
__noinline u32 address_outcome(const struct policy *p, struct scratch *s, u32 is_any)
{
	u32 outcome = 0;

	if (!p || !s)
		return OUTCOME_DENY;
	for (u32 i = 0; i < ADDRESS_RULES; i++) {
		const struct address_rule *rule = &p->address[i];
		u32 differ = 0, is_port = 0;

		if (i >= p->addresses)
			break;
		for (u32 word = 0; word < 4; word++)
			differ |= (s->address[word] ^ rule->address[word]) & rule->mask[word];
		if (differ && !is_any)
			continue;
		for (u32 range = 0; range < PORT_RANGES; range++)
			if (range < rule->ranges && s->port >= rule->first[range] &&
			    s->port <= rule->last[range])
				is_port = 1;
		if (rule->ranges && !is_port)
			continue;
		outcome = worse(outcome, rule->outcome);
	}
	return outcome;
}

#define MAPPED __builtin_bswap32(0xffff)

/* Of an address that is all zero the kernel makes one of this machine: the loopback's, of IPv4 also from a
 * socket of IPv6, or the one that the socket is bound to. Whoever names a device gets one of its. */
static __always_inline u32 unspecified_outcome(const struct policy *p, struct scratch *s,
					       struct socket *sock, bool has_control)
{
	struct inet_sock *inet = (void *)sock->sk;
	u32 outcome = 0, bound = sock->sk->__sk_common.skc_rcv_saddr;

	if (s->address[0] | s->address[1] | s->address[3])
		return 0;
	if (s->address[2] && s->address[2] != MAPPED)
		return 0;
	if (has_control || sock->sk->__sk_common.skc_bound_dev_if || BPF_CORE_READ(inet, uc_index))
		return address_outcome(p, s, true);
	if (!s->address[2]) {
		s->address[3] = __builtin_bswap32(1);
		outcome = address_outcome(p, s, false);
	}
	s->address[2] = MAPPED;
	s->address[3] = __builtin_bswap32(0x7f000001);
	outcome = worse(outcome, address_outcome(p, s, false));
	if (bound) {
		s->address[3] = bound;
		outcome = worse(outcome, address_outcome(p, s, false));
	}
	return outcome;
}

/* An address is told in the form of IPv6; IPv4 is mapped into it. */
static __always_inline int on_address(struct socket *sock, void *given, int len, bool has_control)
{
	struct {
		u16 family;
		u16 port;
		u32 word[6];
	} address = {};
	struct subject me;
	struct scratch *s;
	u32 outcome;

	if (!given || !confined(&me))
		return 0;
	if (!me.policy)
		return -EPERM;
	if (!(me.policy->features & HAS_ADDRESSES))
		return 0;
	if (bpf_probe_read_kernel(&address, sizeof(address), given))
		return -EPERM;
	/* Sending to an address without a family is sending to IPv4, from a socket for that. */
	if (address.family == AF_UNSPEC && sock->sk->__sk_common.skc_family == AF_INET && len >= 16)
		address.family = AF_INET;
	if (address.family != AF_INET && address.family != AF_INET6)
		return 0;
	s = working_memory();
	if (!s)
		return -EPERM;
	s->port = __builtin_bswap16(address.port);
	if (address.family == AF_INET) {
		s->address[0] = 0;
		s->address[1] = 0;
		s->address[2] = MAPPED;
		s->address[3] = address.word[0];
	} else {
		/* After the flow label. */
		s->address[0] = address.word[1];
		s->address[1] = address.word[2];
		s->address[2] = address.word[3];
		s->address[3] = address.word[4];
	}
	s->head.detail[0] = (u64)s->address[1] << 32 | s->address[0];
	s->head.detail[1] = (u64)s->address[3] << 32 | s->address[2];
	s->head.detail[2] = s->port;
	s->head.detail[3] = 0;
	outcome = address_outcome(me.policy, s, false);
	outcome = worse(outcome, unspecified_outcome(me.policy, s, sock, has_control));
	return verdict(s, &me, outcome, WHAT_ADDRESS, 0);
}

SEC("?lsm/socket_connect")
int BPF_PROG(socket_connect, struct socket *sock, struct sockaddr *address, int len)
{
	return on_address(sock, address, len, false) ? -EPERM : 0;
}

/* Datagrams, and data with the first packet (TCP fast open). */
SEC("?lsm/socket_sendmsg")
int BPF_PROG(socket_sendmsg, struct socket *sock, struct msghdr *msg, int size)
{
	return on_address(sock, msg->msg_name, msg->msg_namelen, msg->msg_controllen != 0) ? -EPERM : 0;
}

/* A local socket by the path that it was bound to. */
static __always_inline int on_local(struct sock *other)
{
	struct unix_sock *local = (void *)other;
	u64 dentry = (u64)BPF_CORE_READ(local, path.dentry);
	u64 mount = (u64)BPF_CORE_READ(local, path.mnt);

	if (!dentry)
		return 0;
	return on_path(dentry, mount, ON(CONNECT), WHAT_CONNECT_PATH, 0) ? -EPERM : 0;
}

SEC("?lsm/unix_stream_connect")
int BPF_PROG(unix_connect, struct sock *sock, struct sock *other)
{
	return on_local(other);
}

SEC("?lsm/unix_may_send")
int BPF_PROG(unix_send, struct socket *sock, struct socket *other)
{
	return on_local(other->sk);
}

SEC("?lsm/socket_setsockopt")
int BPF_PROG(socket_option, struct socket *sock, int level, int name)
{
	struct subject me;
	bool is_filter = level == SOL_SOCKET && (name == 26 || (name >= 50 && name <= 52));

	if (!(is_filter || (level == SOL_PACKET && name == 22)) || !confined(&me))
		return 0;
	if (!me.policy)
		return -EPERM;
	return plain_verdict(&me, me.policy->operation[OP_SOCKET_FILTER], WHAT_OPERATION,
			     OP_SOCKET_FILTER, level, name);
}

/* ---- mounts */

static __always_inline int on_operation(u32 operation, u64 detail)
{
	struct subject me;

	if (!confined(&me))
		return 0;
	if (!me.policy)
		return -EPERM;
	return plain_verdict(&me, me.policy->operation[operation & (OPERATIONS - 1)], WHAT_OPERATION,
			     operation, detail, 0);
}

/* Rules on mounts whose source is the path that was judged last, or by type or disk. */
__noinline u32 mount_outcome(const struct policy *p, struct scratch *s, u64 type, u32 flags, u32 how)
{
	char name[16] = {};
	u32 outcome = 0;

	if (!p || !s)
		return OUTCOME_DENY;
	if (type)
		bpf_probe_read_kernel_str(name, sizeof(name), (void *)type);
	for (u32 i = 0; i < MOUNT_RULES; i++) {
		const struct mount_rule *rule = &p->mount[i];
		u32 differs = 0;

		if (i >= p->mounts)
			break;
		if (rule->by != (how & 0xff))
			continue;
		if (rule->by == MOUNT_BY_SOURCE) {
			if (!(s->mounts >> i & 1))
				continue;
			if (how & 0x100 ? !rule->unmount
					: (rule->flags | rule->unset) &&
						  !((rule->flags & flags) | (rule->unset & ~flags)))
				continue;
		}
		if (rule->fstype[0])
			for (u32 at = 0; at < sizeof(name); at++)
				differs |= name[at] ^ rule->fstype[at];
		if (differs)
			continue;
		outcome = worse(outcome, rule->outcome);
	}
	return outcome;
}

struct looking {
	struct scratch *s;
	u32 to;
	u32 last;
	u32 unclear;
};

static long look_for_dots(u32 at, struct looking *r)
{
	u32 byte;

	if (at >= r->to)
		return 1;
	byte = r->s->bytes[at & (2 * PATH_ROOM - 1)];
	r->unclear |= byte == '/' && (r->last == '/' || r->last == '.');
	r->last = byte;
	return 0;
}

/* The source of mount(2) is a string that the kernel has not looked up yet. Symbolic links on the way
 * are refused by `follow_link`; what could mean another path is taken for any. */
__noinline int find_source(struct scratch *s, u64 name)
{
	struct task_struct *task = bpf_get_current_task_btf();
	struct looking r = {};
	u32 at = 0, unclear, last;
	long len;

	if (!s)
		return 1;
	/* Below chroot(2) an absolute path is none. */
	if (resolve(s, (u64)BPF_CORE_READ(task, fs, root.dentry), (u64)BPF_CORE_READ(task, fs, root.mnt)) ||
	    s->len != 1)
		return 1;
	bpf_probe_read_kernel(&s->bytes[PATH_ROOM], 1, (void *)name);
	if (s->bytes[PATH_ROOM] == '/') {
		s->device = 0;
		s->magic = 0;
		s->tail = 0;
		s->within = 1;
	} else {
		if (resolve(s, (u64)BPF_CORE_READ(task, fs, pwd.dentry),
			    (u64)BPF_CORE_READ(task, fs, pwd.mnt)))
			return 1;
		at = s->len == 1 ? 0 : s->len;
		if (at > PATH_ROOM - 1)
			return 1;
		s->bytes[at] = '/';
		at++;
		s->within = 1;
	}
	asm volatile("" : "+r"(at));
	if (at > PATH_ROOM)
		return 1;
	len = bpf_probe_read_kernel_str(&s->bytes[at], PATH_ROOM - 1, (void *)name);
	/* What was cut cannot be judged, nor what is longer than the loops below go. */
	if (len <= 1 || len >= PATH_ROOM - 1 || at + len - 1 > PATH_ROOM)
		return 1;
	s->len = at + len - 1;
	s->above = 0;
	r.s = s;
	r.to = s->len;
	bpf_loop(PATH_ROOM, look_for_dots, &r, 0);
	last = r.last;
	unclear = r.unclear;
	return unclear || last == '.' || (last == '/' && s->len > 1);
}

/* Whether mount(2) changes what is mounted at its target, and looks at no source: of several flags the
 * kernel goes by MS_REMOUNT first, then by MS_BIND, those of propagation and MS_MOVE. */
static __always_inline bool changes_target(unsigned long flags)
{
	return (flags & MS_REMOUNT) || (!(flags & MS_BIND) && (flags & MS_PROPAGATION));
}

SEC("?lsm/sb_mount")
int BPF_PROG(sb_mount, const char *source, const struct path *path, const char *type,
	     unsigned long flags)
{
	struct subject me;
	struct scratch *s;
	bool is_change;
	u32 unclear;

	if (!confined(&me))
		return 0;
	if (!me.policy)
		return -EPERM;
	if (plain_verdict(&me, me.policy->operation[OP_MOUNT], WHAT_MOUNT, flags, 0, 0))
		return -EPERM;
	is_change = changes_target(flags);
	me.tenant->is_binding = !is_change && (flags & (MS_BIND | MS_MOVE));
	if (!(me.policy->features & HAS_MOUNT_SOURCES) || !(source || is_change))
		return 0;
	s = working_memory();
	if (!s)
		return -EPERM;
	s->mounts = 0;
	if (is_change)
		unclear = resolve(s, number_of(path->dentry), number_of(path->mnt));
	else
		unclear = find_source(s, number_of(source));
	s->head.detail[0] = flags;
	s->head.detail[1] = 0;
	s->head.detail[2] = 0;
	if (unclear)
		s->mounts = ~0ULL;
	else
		judge(me.policy, s, 0, me.tenant->policy);
	return verdict(s, &me,
		       mount_outcome(me.policy, s, number_of(type), flags, MOUNT_BY_SOURCE), WHAT_MOUNT, s->len);
}

/* Whether the path that is being looked up is the source of mount(2), a text of the kernel's. That of its
 * target is the caller's. */
static __always_inline bool is_source(struct task_struct *task)
{
	struct filename *name = BPF_CORE_READ(task, nameidata, name);

	/* Kernels that do not keep the address of the text: then it may be either. */
	return !bpf_core_field_exists(name->uptr) || !BPF_CORE_READ(name, uptr);
}

/* While the source of a bind is looked up. */
SEC("?lsm/inode_follow_link")
int BPF_PROG(follow_link, struct dentry *dentry)
{
	struct task_struct *task = bpf_get_current_task_btf();
	struct subject me;
	struct scratch *s;

	if (!confined(&me) || !me.tenant->is_binding || current_call(task) != 165 || !is_source(task))
		return 0;
	s = working_memory();
	if (!s || !me.policy)
		return -EPERM;
	s->mounts = ~0ULL;
	s->head.detail[0] = MS_BIND;
	return verdict(s, &me,
		       mount_outcome(me.policy, s, 0, MS_BIND | MS_MOVE, MOUNT_BY_SOURCE), WHAT_MOUNT, 0);
}

SEC("?lsm/move_mount")
int BPF_PROG(move_mount, const struct path *from, const struct path *to)
{
	struct subject me;
	struct scratch *s;

	if (!confined(&me))
		return 0;
	if (!me.policy)
		return -EPERM;
	if (plain_verdict(&me, me.policy->operation[OP_MOUNT], WHAT_MOUNT, MS_MOVE, 0, 0))
		return -EPERM;
	if (!(me.policy->features & HAS_MOUNT_SOURCES))
		return 0;
	s = working_memory();
	if (!s)
		return -EPERM;
	s->head.detail[0] = MS_MOVE;
	if (resolve(s, number_of(from->dentry), number_of(from->mnt)))
		s->mounts = ~0ULL;
	else
		judge(me.policy, s, 0, me.tenant->policy);
	return verdict(s, &me,
		       mount_outcome(me.policy, s, 0, MS_MOVE | MS_BIND, MOUNT_BY_SOURCE), WHAT_MOUNT,
		       s->len);
}

SEC("?lsm/sb_umount")
int BPF_PROG(sb_umount, struct vfsmount *mount, int flags)
{
	struct subject me;
	struct scratch *s;

	if (!confined(&me))
		return 0;
	if (!me.policy || mount->mnt_root->d_sb->s_magic == BPF_FS_MAGIC)
		return -EPERM;
	if (plain_verdict(&me, me.policy->operation[OP_UMOUNT], WHAT_UMOUNT, flags, 0, 0))
		return -EPERM;
	if (!(me.policy->features & HAS_MOUNT_SOURCES))
		return 0;
	s = working_memory();
	if (!s)
		return -EPERM;
	s->head.detail[0] = flags;
	if (resolve(s, number_of(mount->mnt_root), number_of(mount)))
		s->mounts = ~0ULL;
	else
		judge(me.policy, s, 0, me.tenant->policy);
	return verdict(s, &me,
		       mount_outcome(me.policy, s, 0, 0, MOUNT_BY_SOURCE | 0x100), WHAT_UMOUNT, s->len);
}

/* A new mount, however it is asked for. */
SEC("?lsm/sb_kern_mount")
int BPF_PROG(new_mount, struct super_block *sb)
{
	struct subject me;
	struct scratch *s;
	u32 outcome;
	u64 type;

	if (!confined(&me))
		return 0;
	if (!me.policy)
		return -EPERM;
	s = working_memory();
	if (!s)
		return -EPERM;
	type = number_of(sb->s_type->name);
	outcome = mount_outcome(me.policy, s, type, 0, MOUNT_BY_TYPE);
	if (sb->s_bdev)
		outcome = worse(outcome, mount_outcome(me.policy, s, 0, 0, MOUNT_BY_DISK));
	s->head.detail[0] = 0;
	return verdict(s, &me, outcome, WHAT_MOUNT, 0);
}

SEC("?lsm/sb_remount")
int BPF_PROG(sb_remount, struct super_block *sb)
{
	return on_operation(OP_MOUNT, MS_REMOUNT);
}

SEC("?lsm/sb_pivotroot")
int BPF_PROG(sb_pivotroot, const struct path *old, const struct path *new)
{
	return on_operation(OP_MOUNT, 0);
}

/* ---- the rest */

SEC("?lsm/userns_create")
int BPF_PROG(userns_create, const struct cred *cred)
{
	return on_operation(OP_USER_NAMESPACE, 0);
}

SEC("?lsm/kernel_read_file")
int BPF_PROG(kernel_read_file, struct file *file, int id)
{
	/* A module, a kernel, its initial file system. */
	return id >= 2 && id <= 4 ? on_operation(OP_KERNEL_CODE, id) : 0;
}

SEC("?lsm/kernel_load_data")
int BPF_PROG(kernel_load_data, int id)
{
	return id >= 2 && id <= 4 ? on_operation(OP_KERNEL_CODE, id) : 0;
}

SEC("?lsm/kernel_module_request")
int BPF_PROG(module_request, char *name)
{
	return on_operation(OP_KERNEL_CODE, 0);
}

#define BPF_PROG_LOAD_COMMAND 5
/* Ways to another's programs, maps and links: OBJ_GET, *_GET_FD_BY_ID, LINK_DETACH. */
#define IS_FOREIGN(command) \
	((command) == 7 || (command) == 13 || (command) == 14 || (command) == 30 || (command) == 34)

SEC("?lsm/bpf")
int BPF_PROG(bpf_command, int command)
{
	struct subject me;

	if (IS_FOREIGN(command) && confined(&me))
		return -EPERM;
	return command == BPF_PROG_LOAD_COMMAND ? on_operation(OP_BPF_PROGRAM, 0) : 0;
}

SEC("?lsm/inode_init_security_anon")
int BPF_PROG(anonymous, struct inode *inode, const struct qstr *name)
{
	char text[16] = {};

	bpf_probe_read_kernel_str(text, sizeof(text), BPF_CORE_READ(name, name));
	return BEGINS(text, "[userfaultfd]") ? on_operation(OP_USERFAULTFD, 0) : 0;
}

/* Calls on mounts for which there is no hook ask for a capability first. */
static __always_inline bool is_mount_call(long call)
{
	switch (call) {
	case 155: /* pivot_root */
	case 165: /* mount */
	case 428: /* open_tree */
	case 429: /* move_mount */
	case 430: /* fsopen */
	case 431: /* fsconfig */
	case 432: /* fsmount */
	case 433: /* fspick */
	case 442: /* mount_setattr */
	case 467: /* open_tree_attr */
		return true;
	}
	return false;
}

/* Whether the kernel acts for the task under credentials that are not its own, as overlayfs does under
 * those of whoever mounted it. The task's own, which access(2) and io_uring borrow, do not count. */
static __always_inline bool is_for_another(struct task_struct *task, const struct cred *cred)
{
	long call = current_call(task);

	if (cred == task->real_cred || cred == task->cred)
		/* `cred` is what the task has now; overridden if it is not the real one. */
		if (task->cred == task->real_cred)
			return false;
	if (task->flags & PF_IO_WORKER)
		return false;
	return call != 21 && call != 269 && call != 439 && call != 426 && call != -1;
}

SEC("?lsm/capable")
int BPF_PROG(capable, const struct cred *cred, void *namespace, int capability, unsigned int options)
{
	struct task_struct *task = bpf_get_current_task_btf();
	struct subject me;
	u32 outcome;

	if (!confined(&me))
		return 0;
	if (!me.policy)
		return -EPERM;
	outcome = me.policy->capability[capability & 63];
	if (capability == CAP_SYS_MODULE)
		outcome = worse(outcome, me.policy->operation[OP_KERNEL_CODE]);
	if (capability == CAP_SYS_ADMIN && me.policy->operation[OP_MOUNT] &&
	    is_mount_call(current_call(task)))
		outcome = worse(outcome, me.policy->operation[OP_MOUNT]);
	if (!outcome || is_for_another(task, cred))
		return 0;
	if (options & CAP_OPT_NOAUDIT)
		outcome &= ~OUTCOME_AUDIT;
	return plain_verdict(&me, outcome, WHAT_CAPABILITY, capability, 0, 0);
}

static __always_inline u32 look_outcome(const struct policy *p, u32 look, bool is_outside)
{
	u32 outcome = p->ptrace[(LOOKS + look) & 7];

	return is_outside ? worse(outcome, p->ptrace[look & 7]) : outcome;
}

/* `mode` as of ptrace_may_access(9). */
static __always_inline int on_look(struct tenant *looker, struct task_struct *task, struct tenant *other,
				   u32 mode, bool is_report)
{
	bool is_trace = mode & PTRACE_MODE_ATTACH;
	bool is_outside = !looker || !other || looker->policy != other->policy;
	const struct policy *p;
	struct subject me;
	u32 outcome;

	if (looker && looker->is_active) {
		p = policy_of(looker);
		if (!p)
			return -EPERM;
		outcome = look_outcome(p, is_trace ? LOOK_TRACE : LOOK_READ, is_outside);
		me.tenant = looker;
		me.policy = p;
		if (plain_verdict(&me, outcome, WHAT_PTRACE, BPF_CORE_READ(task, tgid), mode, 0))
			return -EPERM;
	}
	/* Who is not confined is the host, and may look at anything. */
	if (other && other->is_active && looker) {
		p = policy_of(other);
		if (!p)
			return -EPERM;
		outcome = look_outcome(p, is_trace ? LOOK_TRACED_BY : LOOK_READ_BY, is_outside);
		me.tenant = other;
		me.policy = p;
		if (plain_verdict(&me, outcome, WHAT_PTRACE, BPF_CORE_READ(task, tgid), mode, 0))
			return -EPERM;
	}
	return 0;
}

SEC("?lsm/ptrace_access_check")
int BPF_PROG(ptrace_check, struct task_struct *child, unsigned int mode)
{
	struct task_struct *task = bpf_get_current_task_btf();
	struct tenant *looker = tenant_of(task), *other;

	if (!looker)
		return 0;
	other = tenant_of(child);
	return on_look(looker, child, other, mode, true) ? -EPERM : 0;
}

/* The caller wants to be traced by its parent, a real one, which may be confined otherwise. */
SEC("?lsm/ptrace_traceme")
int BPF_PROG(ptrace_traceme, struct task_struct *parent)
{
	struct task_struct *task = bpf_get_current_task_btf();
	struct tenant *looker = tenant_of(parent), *other;

	if (!looker)
		return 0;
	other = tenant_of(task);
	return on_look(looker, parent, other, PTRACE_MODE_ATTACH, true) ? -EPERM : 0;
}

/* Finds out whether the kernel asks these programs at all: they can be attached where it does not. */
volatile u32 trial_pid = 0;

SEC("?lsm/task_getsid")
int BPF_PROG(trial, struct task_struct *task)
{
	return trial_pid && bpf_get_current_pid_tgid() >> 32 == trial_pid ? -EPERM : 0;
}
