/* Capture engine `ebpf`: what of all system calls goes to the agent, and with which facts.
 *
 * One program sees every call on its way back to the caller: the arguments are still in the
 * registers, the result is known, and an opened file is there to be looked at. It leaves at the
 * first of these that says no: the call's number, its arguments and result, who calls, the path.
 * All of them are tables that the agent made from the rules (crates/capture/src/ebpf/tables.rs).
 * Whatever cannot be read counts as yes.
 */
#include "kernel.h"
#include "record.h"
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_tracing.h>

char LICENSE[] SEC("license") = "Dual BSD/GPL";

/* What the other side of the ring reckons with. */
_Static_assert(sizeof(struct header) == 272, "see HEADER_SIZE");
_Static_assert(sizeof(struct piece) == 16, "see PIECE_SIZE");
_Static_assert(sizeof(struct file_facts) == 120, "see FACTS_SIZE");
_Static_assert(sizeof(struct test) == 32, "see tables.rs");
_Static_assert(sizeof(struct row) == 32 + 4 * 32 + 8 * FETCHES + 32 * TESTS, "see tables.rs");
_Static_assert(sizeof(struct control) == 80, "see programs.rs");

/* A value of a per-processor map may have 32 KiB. */
#define SCRATCH 32000
/* Longest string or other piece: PATH_MAX. */
#define PIECE_LIMIT 4096
/* Pieces start below this, so that the longest one fits. */
#define START_LIMIT (SCRATCH - 2 * PIECE_LIMIT - 64)
#define COMPONENTS 64
#define COMPONENT_LIMIT 256
#define TEXTS 20
#define TEXT_LIMIT 1024
#define AT_FDCWD -100

struct scratch {
	struct header header;
	u8 pieces[SCRATCH - sizeof(struct header)];
	/* Length of the path that is being taken. Kept in memory, where the verifier forgets what it
	 * knew: else it would follow every length through every turn of the loop. */
	volatile u32 used;
	volatile u32 count;
	volatile u32 path_flags;
	volatile u64 found;
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
/* By number: not 0 if some convention has a row for it. Of all calls of the machine this is all that
 * most come to. */
u8 interest[CALLS] SEC(".data.interest");

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

struct name_key {
	char comm[16];
	u32 bank;
	u32 _pad;
};

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

#define field_exists(expression) bpf_core_field_exists(expression)

/* --- pieces ---------------------------------------------------------------------------------- */

/* Where the next piece starts, or SCRATCH if there is no room for one. */
static __always_inline u32 room(struct scratch *s)
{
	u32 at = s->header.size;

	if (at > START_LIMIT) {
		s->header.flags |= FLAG_TRUNCATED;
		return SCRATCH;
	}
	return at;
}

static __always_inline void *at_offset(struct scratch *s, u32 at)
{
	return (void *)s + at;
}

/* Completes the piece that starts at `at`. */
static __always_inline void seal(struct scratch *s, u32 at, u16 kind, u32 len, u32 status,
				 u64 address)
{
	struct piece *piece;

	if (at > START_LIMIT || len > PIECE_LIMIT * 2)
		return;
	piece = at_offset(s, at);
	piece->kind = kind;
	piece->len = len;
	piece->status = status;
	piece->address = address;
	s->header.size = (at + sizeof(*piece) + len + 7) & ~7U;
}

/* Says again what was made sure of: verifiers before 6.8 forget it where a number leaves the registers,
 * and the compiler would leave out a test that it knows the answer of. */
#define bounded(number, limit)                 \
	do {                                   \
		asm volatile("" : "+r"(number)); \
		if ((number) > (limit))        \
			return 0;              \
	} while (0)

/* A string of the caller's. Answers with its first byte, or -1 if it could not be read. */
__noinline int take_text(u64 address, u32 limit)
{
	struct scratch *s = working_memory();
	u32 at;
	u8 *text;
	long len;

	if (!s || !address)
		return -1;
	at = room(s);
	if (at > START_LIMIT)
		return -1;
	text = at_offset(s, at + sizeof(struct piece));
	if (limit == 0 || limit > PIECE_LIMIT)
		limit = PIECE_LIMIT;
	bounded(limit, PIECE_LIMIT);
	len = bpf_probe_read_user_str(text, limit, (void *)address);
	if (len <= 0) {
		count(COUNT_UNREADABLE);
		seal(s, at, PIECE_ABSENT_MEMORY, 0, 0, address);
		return -1;
	}
	/* A string that fills the limit has lost its end. */
	seal(s, at, PIECE_MEMORY, len, PIECE_STRING | (len == limit ? PIECE_CUT : 0), address);
	return *text;
}

/* Bytes of the caller's memory. */
__noinline int take_bytes(u64 address, u32 len)
{
	struct scratch *s = working_memory();
	u32 at;

	if (!s || !address || len == 0)
		return -1;
	at = room(s);
	if (at > START_LIMIT)
		return -1;
	if (len > 255)
		len = 255;
	bounded(len, 255);
	if (bpf_probe_read_user(at_offset(s, at + sizeof(struct piece)), len, (void *)address)) {
		count(COUNT_UNREADABLE);
		seal(s, at, PIECE_ABSENT_MEMORY, 0, 0, address);
		return -1;
	}
	seal(s, at, PIECE_MEMORY, len, 0, address);
	return 0;
}

/* The parent of a dentry, and its name. One read where the kernel keeps them side by side. */
static __always_inline struct dentry *parent_and_name(struct dentry *dentry, const u8 **name)
{
	struct {
		struct dentry *parent;
		u64 hash_and_len;
		const u8 *name;
	} near = {};

	if (bpf_core_field_offset(struct dentry, d_name) ==
		    bpf_core_field_offset(struct dentry, d_parent) + 8 &&
	    bpf_core_field_offset(struct qstr, name) == 8) {
		bpf_probe_read_kernel(&near, sizeof(near),
				      (void *)dentry + bpf_core_field_offset(struct dentry, d_parent));
		*name = near.name;
		return near.parent;
	}
	*name = BPF_CORE_READ(dentry, d_name.name);
	return BPF_CORE_READ(dentry, d_parent);
}

/* Writes a path at `at`, as the process sees it. Answers with its length in the low 16 bits and
 * FILE_* flags above. */
__noinline u32 take_path(u64 dentry_address, u64 mount_address, u32 at)
{
	struct scratch *s = working_memory();
	struct dentry *dentry = (void *)dentry_address, *root_dentry, *mount_root;
	struct vfsmount *vfsmount = (void *)mount_address, *root_mount;
	struct task_struct *task = (void *)bpf_get_current_task();
	struct fs_struct *fs;
	struct mount *mount;
	u32 flags, count;

	if (!s || at > START_LIMIT + 256)
		return 0;
	s->count = 0;
	s->path_flags = FILE_PATH_CUT;
	fs = BPF_CORE_READ(task, fs);
	root_dentry = BPF_CORE_READ(fs, root.dentry);
	root_mount = BPF_CORE_READ(fs, root.mnt);
	mount = (void *)vfsmount - bpf_core_field_offset(struct mount, mnt);
	mount_root = BPF_CORE_READ(vfsmount, mnt_root);
	for (u32 i = 0; i < COMPONENTS; i++) {
		struct dentry *parent;
		const u8 *name;

		if (dentry == root_dentry && vfsmount == root_mount) {
			s->path_flags = 0;
			break;
		}
		if (dentry == mount_root) {
			struct mount *above = BPF_CORE_READ(mount, mnt_parent);

			if (above == mount || !above) {
				s->path_flags = FILE_UNREACHABLE;
				break;
			}
			dentry = BPF_CORE_READ(mount, mnt_mountpoint);
			mount = above;
			vfsmount = (void *)mount + bpf_core_field_offset(struct mount, mnt);
			mount_root = BPF_CORE_READ(vfsmount, mnt_root);
			continue;
		}
		parent = parent_and_name(dentry, &name);
		count = s->count;
		s->name[count & (COMPONENTS - 1)] = name;
		s->count = count + 1;
		if (dentry == parent) {
			s->path_flags = FILE_UNREACHABLE;
			break;
		}
		dentry = parent;
	}
	count = s->count;
	s->used = 0;
	for (u32 i = 0; i < COMPONENTS; i++) {
		u32 used = s->used;
		u8 *to;
		long len;

		if (i >= count)
			break;
		if (used > PIECE_LIMIT - COMPONENT_LIMIT) {
			s->path_flags |= FILE_PATH_CUT;
			break;
		}
		used += at;
		/* Said again: verifiers before 6.8 forget it where the number leaves the registers. */
		asm volatile("" : "+r"(used));
		if (used > START_LIMIT + 256 + PIECE_LIMIT)
			break;
		to = at_offset(s, used);
		*to = '/';
		len = bpf_probe_read_kernel_str(to + 1, COMPONENT_LIMIT,
						s->name[(count - 1 - i) & (COMPONENTS - 1)]);
		if (len <= 0) {
			s->path_flags |= FILE_PATH_CUT;
			break;
		}
		s->used += len;
	}
	if (s->used == 0) {
		bounded(at, START_LIMIT + 256);
		*(u8 *)at_offset(s, at) = '/';
		s->used = 1;
	}
	flags = s->path_flags;
	if (flags & FILE_PATH_CUT)
		s->header.flags |= FLAG_TRUNCATED;
	return s->used | flags << 16;
}

static __always_inline void socket_facts(struct file_facts *facts, struct file *file)
{
	struct socket *socket = BPF_CORE_READ(file, private_data);
	struct sock *sk = BPF_CORE_READ(socket, sk);

	facts->flags |= FILE_SOCKET;
	facts->family = BPF_CORE_READ(sk, __sk_common.skc_family);
	facts->type = BPF_CORE_READ(sk, sk_type);
	facts->protocol = BPF_CORE_READ(sk, sk_protocol);
	facts->state = BPF_CORE_READ(sk, __sk_common.skc_state);
	if (facts->family == 2) {
		bpf_core_read(facts->local, 4, &sk->__sk_common.skc_rcv_saddr);
		bpf_core_read(facts->remote, 4, &sk->__sk_common.skc_daddr);
	} else if (facts->family == 10) {
		bpf_core_read(facts->local, 16, &sk->__sk_common.skc_v6_rcv_saddr);
		bpf_core_read(facts->remote, 16, &sk->__sk_common.skc_v6_daddr);
	}
	if (facts->family == 2 || facts->family == 10) {
		facts->local_port = BPF_CORE_READ(sk, __sk_common.skc_num);
		facts->remote_port = __builtin_bswap16(BPF_CORE_READ(sk, __sk_common.skc_dport));
	}
}

/* The address that a unix socket, or else its peer, is bound to. */
static __always_inline u32 unix_path(struct file_facts *facts, void *to, struct file *file)
{
	struct socket *socket = BPF_CORE_READ(file, private_data);
	struct unix_sock *own = (void *)BPF_CORE_READ(socket, sk);
	struct unix_sock *peer = (void *)BPF_CORE_READ(own, peer);
	struct unix_address *address = BPF_CORE_READ(own, addr);
	int len;

	facts->has_peer = peer != NULL;
	if (!address && peer)
		address = BPF_CORE_READ(peer, addr);
	if (!address)
		return 0;
	len = BPF_CORE_READ(address, len);
	if (len <= 2)
		return 0;
	len -= 2;
	if (len > 108)
		len = 108;
	if (bpf_probe_read_kernel(to, len & 127, &address->name[0].sun_path))
		return 0;
	return len & 127;
}

static __always_inline void times(struct file_facts *facts, struct inode *inode)
{
	struct inode___6_11 *newest = (void *)inode;
	struct inode___6_6 *newer = (void *)inode;
	struct inode___6_7 *newer_m = (void *)inode;

	if (field_exists(newest->i_ctime_sec)) {
		facts->ctime_sec = BPF_CORE_READ(newest, i_ctime_sec);
		facts->ctime_nsec = BPF_CORE_READ(newest, i_ctime_nsec);
		facts->mtime_sec = BPF_CORE_READ(newest, i_mtime_sec);
		facts->mtime_nsec = BPF_CORE_READ(newest, i_mtime_nsec);
		return;
	}
	if (field_exists(newer->__i_ctime)) {
		facts->ctime_sec = BPF_CORE_READ(newer, __i_ctime.tv_sec);
		facts->ctime_nsec = BPF_CORE_READ(newer, __i_ctime.tv_nsec);
	} else if (field_exists(inode->i_ctime)) {
		facts->ctime_sec = BPF_CORE_READ(inode, i_ctime.tv_sec);
		facts->ctime_nsec = BPF_CORE_READ(inode, i_ctime.tv_nsec);
	}
	if (field_exists(newer_m->__i_mtime)) {
		facts->mtime_sec = BPF_CORE_READ(newer_m, __i_mtime.tv_sec);
		facts->mtime_nsec = BPF_CORE_READ(newer_m, __i_mtime.tv_nsec);
	} else if (field_exists(inode->i_mtime)) {
		facts->mtime_sec = BPF_CORE_READ(inode, i_mtime.tv_sec);
		facts->mtime_nsec = BPF_CORE_READ(inode, i_mtime.tv_nsec);
	}
}

#define S_IFMT 0170000
#define S_IFSOCK 0140000
#define OVERLAYFS_MAGIC 0x794c7630

/* Facts about an open file and its path, as a piece of this kind. */
__noinline int take_file(u64 file_address, u32 kind, u64 number)
{
	struct scratch *s = working_memory();
	struct file *file = (void *)file_address;
	struct inode *inode;
	struct super_block *super;
	struct dentry *dentry;
	struct vfsmount *mount;
	struct file_facts *facts;
	u32 at, len = 0, found;

	if (!s || !file)
		return -1;
	at = room(s);
	if (at > START_LIMIT)
		return -1;
	facts = at_offset(s, at + sizeof(struct piece));
	__builtin_memset(facts, 0, sizeof(*facts));
	inode = BPF_CORE_READ(file, f_inode);
	super = BPF_CORE_READ(inode, i_sb);
	facts->inode = BPF_CORE_READ(inode, i_ino);
	facts->device = BPF_CORE_READ(super, s_dev);
	facts->mode = BPF_CORE_READ(inode, i_mode);
	facts->uid = BPF_CORE_READ(inode, i_uid.val);
	facts->gid = BPF_CORE_READ(inode, i_gid.val);
	facts->links = BPF_CORE_READ(inode, i_nlink);
	facts->magic = BPF_CORE_READ(super, s_magic);
	facts->inode_flags = BPF_CORE_READ(inode, i_flags);
	facts->super_flags = BPF_CORE_READ(super, s_flags);
	dentry = BPF_CORE_READ(file, f_path.dentry);
	mount = BPF_CORE_READ(file, f_path.mnt);
	facts->mount_flags = BPF_CORE_READ(mount, mnt_flags);
	if ((facts->mode & S_IFMT) == S_IFSOCK && BPF_CORE_READ(mount, mnt_root) != dentry &&
	    facts->magic == 0x534f434b) {
		socket_facts(facts, file);
		if (facts->family == 1) {
			len = unix_path(facts, (void *)(facts + 1), file);
			facts->unix_len = len;
		}
		seal(s, at, kind, sizeof(*facts) + len, 0, number);
		return 0;
	}
	if (kind == PIECE_EXECUTABLE)
		times(facts, inode);
	if (facts->magic == OVERLAYFS_MAGIC) {
		/* struct ovl_inode goes on with the dentry of the upper layer, until 6.4 behind
		 * other members; the member is found by its place because overlay may be a module. */
		void *upper = NULL;

		bpf_probe_read_kernel(&upper, sizeof(upper),
				      (void *)inode + bpf_core_type_size(struct inode));
		if (upper)
			facts->flags |= FILE_OVERLAY_UPPER;
	}
	if (!BPF_CORE_READ(dentry, d_hash.pprev))
		facts->flags |= FILE_DELETED;
	found = take_path((u64)dentry, (u64)mount,
				at + sizeof(struct piece) + sizeof(struct file_facts));
	len = found & 0xffff;
	if (len > PIECE_LIMIT)
		len = PIECE_LIMIT;
	facts = at_offset(s, at + sizeof(struct piece));
	facts->flags |= found >> 16;
	seal(s, at, kind, sizeof(*facts) + len, 0, number);
	return 0;
}

/* The address of an open file, 0 if there is none of this number. */
static __always_inline u64 file_of(struct scratch *s, int number)
{
	struct fdtable *table = bpf_get_current_task_btf()->files->fdt;
	struct file **slot;
	struct file *file = NULL;

	if (number < 0 || (u32)number >= table->max_fds)
		return 0;
	slot = table->fd + number;
	if (LOADS) {
		/* Any structure that begins with a pointer; and a detour that makes a number of it, because
		 * functions of their own take no pointers. */
		s->found = (u64)at_kernel(slot, struct list_head)->next;
		return s->found;
	}
	bpf_probe_read_kernel(&file, sizeof(file), slot);
	return (u64)file;
}

/* The directory that relative paths start at. */
__noinline int take_directory(int number)
{
	struct scratch *s = working_memory();
	struct task_struct *task = (void *)bpf_get_current_task();
	struct dentry *dentry;
	struct vfsmount *mount;
	u32 at, len, found;

	if (!s)
		return -1;
	at = room(s);
	if (at > START_LIMIT)
		return -1;
	if (number == AT_FDCWD) {
		dentry = BPF_CORE_READ(task, fs, pwd.dentry);
		mount = BPF_CORE_READ(task, fs, pwd.mnt);
	} else {
		struct file *file = (void *)file_of(s, number);

		if (!file)
			return -1;
		dentry = BPF_CORE_READ(file, f_path.dentry);
		mount = BPF_CORE_READ(file, f_path.mnt);
	}
	found = take_path((u64)dentry, (u64)mount, at + sizeof(struct piece));
	len = found & 0xffff;
	if (len > PIECE_LIMIT)
		len = PIECE_LIMIT;
	seal(s, at, PIECE_DIRECTORY, len, found >> 16, (s64)number);
	return 0;
}

/* --- the caller ------------------------------------------------------------------------------ */

static __always_inline u32 namespaced(struct pid *pid, u32 level)
{
	u32 number = 0;

	/* struct upid has another size than here. */
	bpf_probe_read_kernel(&number, sizeof(number),
			      (void *)&pid->numbers[0] +
				      level * bpf_core_type_size(struct upid));
	return number;
}

static __always_inline u64 start_of(struct task_struct *leader)
{
	struct task_struct___5_4 *old = (void *)leader;

	if (field_exists(leader->start_boottime))
		return BPF_CORE_READ(leader, start_boottime);
	return BPF_CORE_READ(old, real_start_time);
}

static __always_inline u32 terminal_of(struct signal_struct *signal)
{
	struct tty_struct *tty = BPF_CORE_READ(signal, tty);
	u32 major, minor;

	if (!tty)
		return 0;
	major = BPF_CORE_READ(tty, driver, major);
	minor = BPF_CORE_READ(tty, driver, minor_start) + BPF_CORE_READ(tty, index);
	return (minor & 0xff) | major << 8 | (minor & ~0xffU) << 12;
}

static __always_inline s32 foreground_of(struct signal_struct *signal)
{
	struct tty_struct *tty = BPF_CORE_READ(signal, tty);
	struct tty_struct___5_9 *old = (void *)tty;
	struct pid *group;

	if (!tty)
		return -1;
	group = field_exists(old->pgrp) ? BPF_CORE_READ(old, pgrp) : BPF_CORE_READ(tty, ctrl.pgrp);
	return group ? (s32)namespaced(group, 0) : -1;
}

#define PIDTYPE_PGID 2
#define PIDTYPE_SID 3

static __always_inline void ids(struct header *h, struct task_struct *task,
				struct task_struct *leader)
{
	struct signal_struct *signal = BPF_CORE_READ(task, signal);
	struct pid *group = NULL, *session = NULL, *own = BPF_CORE_READ(leader, thread_pid);
	u32 level = BPF_CORE_READ(own, level);

	if (level > 32)
		level = 32;
	bpf_core_read(&group, sizeof(group), &signal->pids[PIDTYPE_PGID]);
	bpf_core_read(&session, sizeof(session), &signal->pids[PIDTYPE_SID]);
	h->level = level;
	h->pgid = namespaced(group, 0);
	h->sid = namespaced(session, 0);
	if (level) {
		h->vpid = namespaced(own, level);
		h->vtid = namespaced(BPF_CORE_READ(task, thread_pid), level);
		h->vpgid = BPF_CORE_READ(group, level) >= level ? namespaced(group, level) : 0;
		h->vsid = BPF_CORE_READ(session, level) >= level ? namespaced(session, level) : 0;
	} else {
		h->vpid = h->pid;
		h->vtid = h->tid;
		h->vpgid = h->pgid;
		h->vsid = h->sid;
	}
	h->threads = BPF_CORE_READ(signal, nr_threads);
	h->tty = terminal_of(signal);
	h->tpgid = foreground_of(signal);
}

static __always_inline void credentials(struct header *h, struct task_struct *task)
{
	const struct cred *cred = BPF_CORE_READ(task, cred);

	h->real_uid = BPF_CORE_READ(cred, uid.val);
	h->uid = BPF_CORE_READ(cred, euid.val);
	h->gid = BPF_CORE_READ(cred, egid.val);
	h->fs_uid = BPF_CORE_READ(cred, fsuid.val);
	h->fs_gid = BPF_CORE_READ(cred, fsgid.val);
	bpf_core_read(&h->caps[0], 8, &cred->cap_inheritable);
	bpf_core_read(&h->caps[1], 8, &cred->cap_permitted);
	bpf_core_read(&h->caps[2], 8, &cred->cap_effective);
	bpf_core_read(&h->caps[3], 8, &cred->cap_bset);
	if (field_exists(task->loginuid))
		h->login_uid = BPF_CORE_READ(task, loginuid.val);
	else
		h->login_uid = -1;
}

/* In pages. */
static __always_inline void memory_use(struct header *h, struct task_struct *task)
{
	struct mm_struct *mm = BPF_CORE_READ(task, mm);
	struct mm_struct___6_1 *old = (void *)mm;
	s64 resident = 0, part = 0;

	if (!mm)
		return;
	h->vm_pages = BPF_CORE_READ(mm, total_vm);
	/* MM_FILEPAGES, MM_ANONPAGES, MM_SHMEMPAGES; in between are swapped ones. */
	for (int i = 0; i < 4; i++) {
		if (i == 2)
			continue;
		if (field_exists(mm->rss_stat[0].count))
			bpf_core_read(&part, sizeof(part), &mm->rss_stat[i].count);
		else
			bpf_core_read(&part, sizeof(part), &old->rss_stat.count[i].counter);
		resident += part;
	}
	h->resident_pages = resident > 0 ? resident : 0;
}

#define SUBSYSTEMS 16

static __always_inline struct kernfs_node *cgroup_node(struct css_set *set, u32 subsystem)
{
	struct cgroup_subsys_state *state = NULL;

	/* The kernel may have fewer than there is room for here. */
	if (subsystem >= bpf_core_field_size(set->subsys) / sizeof(state))
		return NULL;
	bpf_core_read(&state, sizeof(state), &set->subsys[subsystem]);
	return state ? BPF_CORE_READ(state, cgroup, kn) : NULL;
}

/* A number for the cgroups of a task in all hierarchies together. On a machine with cgroup v2 alone
 * they are one and the same. */
static __always_inline u64 cgroups_of(struct task_struct *task)
{
	struct css_set *set = BPF_CORE_READ(task, cgroups);
	struct kernfs_node *first = BPF_CORE_READ(set, dfl_cgrp, kn), *last = first;
	u64 all = BPF_CORE_READ(first, id);

	for (u32 i = 0; i < SUBSYSTEMS; i++) {
		struct kernfs_node *node = cgroup_node(set, i);

		if (!node || node == last)
			continue;
		last = node;
		/* The prime of FNV-1a. */
		all = (all ^ BPF_CORE_READ(node, id)) * 0x100000001b3ULL;
	}
	return all;
}

/* Fills in everything about a task that an event may be asked for. */
__noinline int describe(u64 task_address, u32 kind)
{
	struct scratch *s = working_memory();
	struct task_struct *task = (void *)task_address;
	struct task_struct *leader, *parent;
	struct nsproxy *namespaces;
	struct header *h;

	if (!s)
		return -1;
	h = &s->header;
	h->size = sizeof(*h);
	h->kind = kind;
	h->flags = 0;
	h->time = bpf_ktime_get_boot_ns();
	h->cpu = bpf_get_smp_processor_id();
	h->tid = BPF_CORE_READ(task, pid);
	h->pid = BPF_CORE_READ(task, tgid);
	leader = BPF_CORE_READ(task, group_leader);
	parent = BPF_CORE_READ(leader, real_parent);
	h->ppid = BPF_CORE_READ(parent, tgid);
	h->parent_start = start_of(BPF_CORE_READ(parent, group_leader));
	h->start = start_of(leader);
	h->exec_id = BPF_CORE_READ(leader, self_exec_id);
	h->cgroup = cgroups_of(task);
	h->socketcall = 0;
	h->nr = 0;
	bpf_core_read(&h->comm, sizeof(h->comm), &leader->comm);
	namespaces = BPF_CORE_READ(task, nsproxy);
	h->mount_namespace = BPF_CORE_READ(namespaces, mnt_ns, ns.inum);
	h->cgroup_namespace = BPF_CORE_READ(namespaces, cgroup_ns, ns.inum);
	ids(h, task, leader);
	credentials(h, task);
	h->vm_pages = 0;
	h->resident_pages = 0;
	memory_use(h, task);
	return 0;
}

/* Whether the process is one to be watched. */
static __always_inline bool in_scope(s32 pid)
{
	if (pid == control.agent || control.off)
		return false;
	return !control.scoped || bpf_map_lookup_elem(&scope, &pid) != NULL;
}

/* Sends the record that is in the working memory. */
static __always_inline long send(struct scratch *s, bool is_critical)
{
	u32 size = s->header.size;

	if (size > SCRATCH - 8)
		return -1;
	if (s->header.flags & FLAG_TRUNCATED)
		count(COUNT_TRUNCATED);
	if (is_critical)
		return bpf_ringbuf_output(&critical, s, size, 0);
	/* Waking the agent costs more than the record: for a crowd, once. */
	if (bpf_ringbuf_query(&bulk, BPF_RB_AVAIL_DATA) < control.wake_bytes)
		return bpf_ringbuf_output(&bulk, s, size, BPF_RB_NO_WAKEUP);
	return bpf_ringbuf_output(&bulk, s, size, BPF_RB_FORCE_WAKEUP);
}

/* --- calls ----------------------------------------------------------------------------------- */

#define TS_COMPAT 2
#define X32_BIT 0x40000000

static __always_inline u32 abi_of(u32 nr)
{
#if defined(__TARGET_ARCH_x86)
	if (nr & X32_BIT)
		return ABI_X32;
	if (bpf_get_current_task_btf()->thread_info.status & TS_COMPAT)
		return ABI_I386;
#endif
	return ABI_NATIVE;
}

static __always_inline bool holds(const struct test *test, const u64 *args)
{
	u64 has = args[test->arg & 7], wants = test->value;

	if (test->low32) {
		has = (u32)has;
		wants = (u32)wants;
	}
	switch (test->op) {
	case OP_ALL:
		return (has & wants) == wants;
	case OP_ANY:
		return (has & wants) != 0;
	case OP_EQ:
		return has == wants;
	case OP_GE:
		return has >= wants;
	case OP_LE:
		return has <= wants;
	case OP_MASKED:
		return (has & test->mask) == wants;
	case OP_NE:
		return has != wants;
	case OP_NO:
		return (has & wants) == 0;
	}
	return true;
}

struct arguments {
	u64 value[8];
};

/* Slots of the plan that the arguments leave. */
static __always_inline u64 by_arguments(const struct row *row, const struct arguments *arguments)
{
	u64 slots = 0;
	bool group = true;

	if (row->tests == 0)
		return ~0ULL;
	for (u32 i = 0; i < TESTS; i++) {
		const struct test *test = &row->test[i];

		if (i >= row->tests)
			break;
		if (group && !holds(test, arguments->value))
			group = false;
		if (test->ends_group) {
			if (group)
				slots |= test->slots;
			group = true;
		}
	}
	return slots;
}

static __always_inline void registers(struct pt_regs *regs, u32 abi, u64 *args)
{
#if defined(__TARGET_ARCH_x86)
	if (abi == ABI_I386) {
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

/* The pointers of an array of strings, then the strings. */
static __always_inline void take_texts(u64 address, u32 width)
{
	for (u32 i = 0; i < TEXTS; i++) {
		u64 pointer = 0;

		if (bpf_probe_read_user(&pointer, width == 4 ? 4 : 8, (void *)address))
			break;
		take_bytes(address, width);
		if (!pointer || take_text(pointer, TEXT_LIMIT) < 0)
			break;
		address += width;
	}
}

/* A struct msghdr starts with the pointer to the address and its length. */
static __always_inline void take_message(u64 address, u32 width)
{
	u64 pointer = 0;
	u32 len = 0;

	take_bytes(address, width + 4);
	if (bpf_probe_read_user(&pointer, width == 4 ? 4 : 8, (void *)address))
		return;
	if (bpf_probe_read_user(&len, sizeof(len), (void *)(address + width)))
		return;
	if (pointer && len)
		take_bytes(pointer, len > 128 ? 128 : len);
}

static __always_inline void take(struct scratch *s, const struct fetch *fetch, u32 abi)
{
	u64 value = s->header.args[fetch->arg < 6 ? fetch->arg : 0];
	u64 other = s->header.args[fetch->other < 6 ? fetch->other : 0];
	u32 width = abi == ABI_NATIVE ? 8 : 4;
	u32 len = fetch->size;
	int first;

	switch (fetch->kind) {
	case FETCH_TEXT:
		take_text(value, 0);
		break;
	case FETCH_PATH:
		first = take_text(value, 0);
		if (first != '/')
			take_directory(fetch->other == NO_ARGUMENT ? AT_FDCWD : (int)other);
		break;
	case FETCH_TEXTS:
		take_texts(value, width);
		break;
	case FETCH_BYTES:
		take_bytes(value + fetch->offset, len);
		break;
	case FETCH_BUFFER:
		if ((u32)other < len)
			len = other;
		take_bytes(value, len);
		break;
	case FETCH_MESSAGE:
		take_message(value, width);
		break;
	case FETCH_FD:
		take_file(file_of(s, value), PIECE_FILE, (s64)(int)value);
		break;
	case FETCH_RESULT:
		if ((s64)s->header.result >= 0)
			take_file(file_of(s, s->header.result), PIECE_FILE, s->header.result);
		break;
	}
}

/* Takes along what one entry of a row names. Its own function, so that the verifier looks at it
 * once and not once for each entry. */
__noinline int take_one(u32 key, u32 index, u32 abi)
{
	struct scratch *s = working_memory();
	struct row *row = bpf_map_lookup_elem(&rows, &key);

	if (!s || !row || index >= FETCHES)
		return -1;
	take(s, &row->fetch[index], abi);
	return 0;
}

#define ALL_SLOTS (~0ULL)
/* Where paths stand while they are looked at: where pieces begin, later. */
#define TRUE_PATH sizeof(struct header)
#define PASSED_PATH (sizeof(struct header) + 2 * PIECE_LIMIT)

/* The state that a byte leads to. */
static __always_inline u64 next_state(const struct automaton *automaton, u64 state, u8 byte)
{
	u64 edge = state * CLASSES + (automaton->class_of[byte] & (CLASSES - 1));

	/* The compiler makes an "or" of the sum, for which verifiers know no bounds. */
	asm volatile("%0 &= %1" : "+r"(edge) : "i"(STATES * CLASSES - 1));
	return automaton->edge[edge] & (STATES - 1);
}

/* Slots with a pattern that the text at one of the two places has. */
__noinline u64 slots_of_text(u32 bank, u32 is_passed, u32 len)
{
	struct scratch *s = working_memory();
	const struct automaton *automaton = bpf_map_lookup_elem(&automata, &bank);
	const u8 *text;
	u64 found, state;

	if (!s || !automaton || len > FILTER_PATH_LIMIT)
		return ALL_SLOTS;
	text = at_offset(s, is_passed ? PASSED_PATH : TRUE_PATH);
	state = next_state(automaton, 0, 0);
	found = automaton->slots[state];
	for (u32 i = 0; i < FILTER_PATH_LIMIT; i++) {
		if (i >= len)
			break;
		state = next_state(automaton, state, text[i]);
		/* No branch: one in each turn would be two ways for the verifier to follow. */
		found |= automaton->slots[state];
	}
	return found | automaton->slots[next_state(automaton, state, 0)];
}

/* Whether both places hold the same text. */
__noinline int is_same_text(u32 len)
{
	struct scratch *s = working_memory();
	const u64 *one, *other;

	if (!s)
		return 0;
	one = at_offset(s, TRUE_PATH);
	other = at_offset(s, PASSED_PATH);
	for (u32 i = 0; i < FILTER_PATH_LIMIT / 8; i++) {
		u64 differ = one[i] ^ other[i];
		u32 left = len - i * 8;

		if (i * 8 >= len)
			break;
		if (left < 8)
			/* The rest of the word is not of the text. */
			differ <<= 64 - 8 * left;
		if (differ)
			return 0;
	}
	return 1;
}

/* Whether the path that was passed has this name of the kernel's at `at`. */
__noinline int is_name(u32 at, u64 name, u32 len)
{
	struct scratch *s = working_memory();
	const u8 *text;

	if (!LOADS || !s || at > FILTER_PATH_LIMIT)
		return 0;
	text = at_offset(s, PASSED_PATH + at);
	for (u32 i = 0; i < COMPONENT_LIMIT / 8; i++) {
		u32 left = len - i * 8;
		u64 differ;

		if (i * 8 >= len)
			return 1;
		/* Any structure that begins with a word. What is behind the end of the name may not be
		 * there: then it reads as 0. */
		differ = *(u64 *)(text + i * 8) ^
			 (u64)at_kernel(name + i * 8, struct timespec64)->tv_sec;
		if (left < 8)
			differ <<= 64 - 8 * left;
		if (differ)
			return 0;
	}
	return 0;
}

/* Whether the path that was passed, of `len` bytes, is the file's own: its names are compared from the
 * last to the first, without a copy. A no may be wrong. */
__noinline int is_at(u64 file_address, u32 len)
{
	struct scratch *s = working_memory();
	struct task_struct *task = bpf_get_current_task_btf();
	struct dentry *dentry, *root_dentry;
	struct vfsmount *vfsmount, *root_mount;

	if (!LOADS || !s || len > FILTER_PATH_LIMIT)
		return 0;
	{
		struct file *file = at_kernel(file_address, struct file);

		dentry = file->f_path.dentry;
		vfsmount = file->f_path.mnt;
		root_dentry = task->fs->root.dentry;
		root_mount = task->fs->root.mnt;
	}
	s->used = len;
	for (u32 i = 0; i < COMPONENTS; i++) {
		u32 left = s->used, name_len;

		if (dentry == root_dentry && vfsmount == root_mount)
			return left == 0;
		if (dentry == vfsmount->mnt_root) {
			struct mount *mount, *above;

			mount = at_kernel((u64)vfsmount - bpf_core_field_offset(struct mount, mnt),
					  struct mount);
			above = mount->mnt_parent;
			if (above == mount)
				return 0;
			dentry = mount->mnt_mountpoint;
			vfsmount = at_kernel((u64)above + bpf_core_field_offset(struct mount, mnt),
					     struct vfsmount);
			continue;
		}
		name_len = dentry->d_name.len;
		if (name_len >= left || name_len >= COMPONENT_LIMIT)
			return 0;
		left -= name_len;
		if (left > FILTER_PATH_LIMIT)
			return 0;
		/* A detour that makes a number of it: functions of their own take no pointers. */
		s->found = (u64)dentry->d_name.name;
		if (*(u8 *)at_offset(s, PASSED_PATH + left - 1) != '/' ||
		    !is_name(left, s->found, name_len))
			return 0;
		s->used = left - 1;
		dentry = dentry->d_parent;
	}
	return 0;
}

/* Slots that the file's own path has. */
static __always_inline u64 slots_of_file(struct scratch *s, u32 bank, struct file *file, u32 *len)
{
	u32 found;

	s->header.size = sizeof(struct header);
	found = take_path((u64)BPF_CORE_READ(file, f_path.dentry),
			  (u64)BPF_CORE_READ(file, f_path.mnt), TRUE_PATH);
	*len = found & 0xffff;
	if (found >> 16)
		return ALL_SLOTS;
	return slots_of_text(bank, 0, *len);
}

/* Slots that take the path of a call that opens a file: by the file that was opened, and by an
 * absolute path that was passed, which a symbolic link may lead elsewhere. */
__noinline u64 by_path(u32 bank, s64 result, u64 passed)
{
	struct scratch *s = working_memory();
	u64 slots, dotted = bank ? control.dotted[1] : control.dotted[0];
	struct file *file = NULL;
	u32 true_len = 0;
	long len;

	if (!s)
		return ALL_SLOTS;
	len = bpf_probe_read_user_str(at_offset(s, PASSED_PATH), FILTER_PATH_LIMIT,
				      (void *)passed);
	if (len <= 1 || len >= FILTER_PATH_LIMIT)
		return ALL_SLOTS;
	len -= 1;
	if (result >= 0) {
		file = (void *)file_of(s, result);
		if (!file)
			return ALL_SLOTS;
	}
	slots = slots_of_text(bank, 1, len);
	if (*(u8 *)at_offset(s, PASSED_PATH) == '/') {
		/* The agent makes another path of it. */
		if (slots & (SLOT_ODD | SLOT_DOTTED))
			return ALL_SLOTS;
		if (!file)
			return slots & SLOT_TRAILING ? ALL_SLOTS : slots & ~dotted;
		if (!is_at((u64)file, len))
			slots |= slots_of_file(s, bank, file, &true_len);
		return slots & ~dotted;
	}
	if (!(slots & SLOT_DOTTED))
		dotted = ~dotted;
	else
		dotted = ALL_SLOTS;
	/* What was opened says it all; a failure says nothing. */
	return (file ? slots_of_file(s, bank, file, &true_len) : ALL_SLOTS) & dotted;
}

/* Slots that take the name of the process. */
static __always_inline u64 by_name(u32 bank)
{
	struct task_struct *leader = bpf_get_current_task_btf()->group_leader;
	struct name_key key = { .bank = bank };
	u64 *slots;

	/* Older kernels leave something behind the NUL. */
	bpf_core_read_str(&key.comm, sizeof(key.comm), &leader->comm);
	slots = bpf_map_lookup_elem(&names, &key);
	return slots ? *slots : 0;
}

static __always_inline u32 number_of(struct pt_regs *regs)
{
#if defined(__TARGET_ARCH_x86)
	return regs->orig_ax;
#else
	return regs->syscallno;
#endif
}

/* Whether any rule asks for a call of this number. */
static __always_inline bool is_of_interest(u32 nr)
{
	nr &= ~X32_BIT;
	return nr < CALLS && interest[nr];
}

/* A call of a number that rules ask for has returned. */
static __noinline int returned(struct pt_regs *regs, long result)
{
	struct arguments arguments = {};
	struct scratch *s;
	struct row *row;
	u32 nr = number_of(regs), abi = abi_of(nr), bank = control.bank & 1, key, operation = 0;
	u64 slots;

	key = bank * ROWS + calls.row[bank][abi][nr & (CALLS - 1)];
	if ((key & (ROWS - 1)) == 0)
		return 0;
	row = bpf_map_lookup_elem(&rows, &key);
	if (!row)
		return 0;
	if (row->flags & ROW_EXEC && result == 0)
		return 0;
	registers(regs, abi, arguments.value);
	if (row->flags & ROW_SOCKETCALL) {
		u32 real[6] = {};

		operation = arguments.value[0];
		if (operation >= 32)
			return 0;
		if (bpf_probe_read_user(real, sizeof(real), (void *)arguments.value[1]))
			count(COUNT_UNREADABLE);
		/* Said again, because the compiler keeps the bound to itself. */
		asm volatile("%0 &= 31" : "+r"(operation));
		key = (key & ~(ROWS - 1)) | (row->socketcall[operation] & (ROWS - 1));
		if ((key & (ROWS - 1)) == 0)
			return 0;
		row = bpf_map_lookup_elem(&rows, &key);
		if (!row)
			return 0;
		for (int i = 0; i < 6; i++)
			arguments.value[i] = real[i];
	}
	slots = result < 0 && result >= -4095 ? row->failed : row->succeeded;
	slots &= by_arguments(row, &arguments);
	if (!slots) {
		count(COUNT_REGISTERS);
		return 0;
	}
	if (!in_scope(bpf_get_current_pid_tgid() >> 32)) {
		count(COUNT_SCOPE);
		return 0;
	}
	if (control.filters) {
		u64 any_name = bank ? control.any_name[1] : control.any_name[0];
		u64 any_path = bank ? control.any_path[1] : control.any_path[0];

		/* The path first: most calls end there, and the name is dear to look up. */
		if (row->flags & ROW_OPENS && !(slots & any_path & any_name)) {
			u64 passed = arguments.value[row->path_arg & 7];

			slots &= any_path | by_path(bank, result, passed);
			if (!slots) {
				count(COUNT_PATH);
				return 0;
			}
		}
		if (!(slots & any_name) && !(slots & by_name(bank))) {
			count(COUNT_NAME);
			return 0;
		}
	}
	s = working_memory();
	if (!s) {
		count(COUNT_NO_MEMORY);
		return 0;
	}
	describe(bpf_get_current_task(), RECORD_CALL);
	s->header.abi = abi;
	s->header.nr = nr;
	s->header.row = key;
	s->header.socketcall = operation;
	s->header.result = result;
#if defined(__TARGET_ARCH_x86)
	s->header.ip = regs->ip;
#else
	s->header.ip = regs->pc;
#endif
	for (int i = 0; i < 6; i++)
		s->header.args[i] = arguments.value[i];
	for (u32 i = 0; i < FETCHES; i++) {
		if (i >= row->fetches)
			break;
		take_one(key, i, abi);
	}
	if (send(s, row->flags & ROW_CRITICAL)) {
		u64 *losses = bpf_map_lookup_elem(&lost, &key);

		count(row->flags & ROW_CRITICAL ? COUNT_LOST_CRITICAL : COUNT_LOST_BULK);
		if (losses)
			*losses += 1;
	} else {
		count(COUNT_SENT);
	}
	return 0;
}

/* Ways to see calls return, of which the agent attaches one (crates/capture/src/ebpf/hooks.rs). This
 * one runs at every call of the machine: what it does before it leaves is the price of all others. */
SEC("tp_btf/sys_exit")
int BPF_PROG(sys_exit, struct pt_regs *regs, long result)
{
	if (!is_of_interest(number_of(regs)))
		return 0;
	return returned(regs, result);
}

/* For measurements: what the kernel takes for asking at all. */
SEC("?tp_btf/sys_exit")
int nothing(void *ctx)
{
	return 0;
}

struct exit_of_call {
	u64 common;
	s64 nr;
	s64 result;
};

/* Runs at the calls that it is attached to, as far as they enter by the native convention. */
SEC("?tp")
int call_exit(struct exit_of_call *ctx)
{
	struct pt_regs *regs = (void *)bpf_task_pt_regs(bpf_get_current_task_btf());

	if (!is_of_interest(number_of(regs)))
		return 0;
	return returned(regs, ctx->result);
}

/* Where functions' own programs go on; one for each type of function, see function_exit. */
struct {
	__uint(type, BPF_MAP_TYPE_PROG_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, u32);
} bodies SEC(".maps"), bodies_plain SEC(".maps");

/* Functions that carry out calls jump to one of these when they return. The kernel has two types of
 * them, and a program can go with one. */
SEC("?fexit")
int function_exit(u64 *ctx)
{
	struct pt_regs *regs = (void *)bpf_task_pt_regs(bpf_get_current_task_btf());

	if (!is_of_interest(number_of(regs)))
		return 0;
	return returned(regs, ctx[1]);
}

SEC("?fexit")
int function_exit_plain(u64 *ctx)
{
	struct pt_regs *regs = (void *)bpf_task_pt_regs(bpf_get_current_task_btf());

	if (!is_of_interest(number_of(regs)))
		return 0;
	return returned(regs, ctx[1]);
}

/* Threads of the kernel and those that it makes for a process have made no call. */
#define PF_IO_WORKER 0x10
#define PF_USER_WORKER 0x4000
#define PF_KTHREAD 0x200000

/* The new task of a clone does not come back through the function that carried the call out. */
SEC("?fexit")
int first_run(u64 *ctx)
{
	struct task_struct *task = bpf_get_current_task_btf();
	struct pt_regs *regs;

	if (task->flags & (PF_IO_WORKER | PF_USER_WORKER | PF_KTHREAD))
		return 0;
	regs = (void *)bpf_task_pt_regs(task);
	if (!is_of_interest(number_of(regs)))
		return 0;
	return returned(regs, 0);
}

/* --- processes ------------------------------------------------------------------------------- */

static __always_inline void send_state(struct scratch *s)
{
	if (send(s, true))
		count(COUNT_LOST_STATE);
}

/* Text that the kernel has put on the new stack. */
__noinline int take_stack(u64 start, u64 end, u32 kind, u32 limit)
{
	struct scratch *s = working_memory();
	u64 len = end - start;
	u32 at, status = 0;

	if (!s)
		return -1;
	at = room(s);
	if (at > START_LIMIT || start >= end)
		return -1;
	if (limit > PIECE_LIMIT * 2)
		limit = PIECE_LIMIT * 2;
	if (len > limit) {
		len = limit;
		status = PIECE_CUT;
	}
	if (len == 0)
		return -1;
	bounded(len, PIECE_LIMIT * 2);
	if (bpf_probe_read_user(at_offset(s, at + sizeof(struct piece)), len, (void *)start)) {
		count(COUNT_UNREADABLE);
		return -1;
	}
	seal(s, at, kind, len, status, start);
	return 0;
}

/* Threads that are in the rare one of the two calls that start a program. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 1024);
	__type(key, u32);
	__type(value, u8);
} at_execveat SEC(".maps");

static __always_inline void note_execveat(void)
{
	u32 tid = (u32)bpf_get_current_pid_tgid();
	u8 yes = 1;

	bpf_map_update_elem(&at_execveat, &tid, &yes, BPF_ANY);
}

/* Since 6.10. Afterwards the kernel puts another number into the register. */
SEC("?tp_btf/sched_prepare_exec")
int BPF_PROG(prepare_exec, struct task_struct *task, struct linux_binprm *bprm)
{
	struct pt_regs *regs = (void *)bpf_task_pt_regs(bpf_get_current_task_btf());
	u32 nr = number_of(regs), tid = (u32)bpf_get_current_pid_tgid();

	switch (abi_of(nr)) {
#if defined(__TARGET_ARCH_x86)
	case ABI_NATIVE:
		nr = nr == 322;
		break;
	case ABI_I386:
		nr = nr == 358;
		break;
	default:
		nr = nr == (X32_BIT | 545);
#else
	default:
		nr = nr == 281;
#endif
	}
	if (nr)
		note_execveat();
	else
		bpf_map_delete_elem(&at_execveat, &tid);
	return 0;
}

/* The same before 6.10: any hook of this kind costs every call of the machine something. */
SEC("?tracepoint/syscalls/sys_enter_execveat")
int enter_execveat(void *ctx)
{
	note_execveat();
	return 0;
}

SEC("?tracepoint/syscalls/sys_exit_execveat")
int exit_execveat(void *ctx)
{
	u32 tid = (u32)bpf_get_current_pid_tgid();

	bpf_map_delete_elem(&at_execveat, &tid);
	return 0;
}

/* The same where functions can be hooked. */
SEC("?fentry")
int function_execveat(void *ctx)
{
	note_execveat();
	return 0;
}

/* The path of a cgroup, as components from the last to the first. */
__noinline int take_cgroup(u64 node_address)
{
	struct scratch *s = working_memory();
	struct kernfs_node *node = (void *)node_address;
	u32 at;

	if (!s || !node)
		return -1;
	at = room(s);
	if (at > START_LIMIT)
		return -1;
	s->used = 0;
	for (int i = 0; i < COMPONENTS; i++) {
		struct kernfs_node___6_15 *newer = (void *)node;
		struct kernfs_node *parent;
		u32 used = s->used;
		long len;

		parent = field_exists(newer->__parent) ? BPF_CORE_READ(newer, __parent) :
							 BPF_CORE_READ(node, parent);
		if (!parent)
			break;
		if (used > PIECE_LIMIT - COMPONENT_LIMIT)
			break;
		len = bpf_probe_read_kernel_str(
			at_offset(s, at + sizeof(struct piece) + used), COMPONENT_LIMIT,
			BPF_CORE_READ(node, name));
		if (len <= 0)
			break;
		s->used = used + len;
		node = parent;
	}
	at = room(s);
	seal(s, at, PIECE_CGROUP, s->used, 0, 0);
	return 0;
}

/* The paths of the cgroups in all hierarchies. */
__noinline int take_cgroups(void)
{
	struct task_struct *task = (void *)bpf_get_current_task();
	struct css_set *set = BPF_CORE_READ(task, cgroups);
	struct kernfs_node *first = BPF_CORE_READ(set, dfl_cgrp, kn), *last = first;

	take_cgroup((u64)first);
	for (u32 i = 0; i < SUBSYSTEMS; i++) {
		struct kernfs_node *node = cgroup_node(set, i);

		if (!node || node == last)
			continue;
		last = node;
		take_cgroup((u64)node);
	}
	return 0;
}

SEC("tp_btf/sched_process_exec")
int BPF_PROG(sched_process_exec, struct task_struct *task, int old_pid, struct linux_binprm *bprm)
{
	struct scratch *s = working_memory();
	struct mm_struct *mm;
	u64 arg_start, arg_end, env_start, env_end;

	if (!s || !control.states || !in_scope(BPF_CORE_READ(task, tgid)))
		return 0;
	describe(bpf_get_current_task(), RECORD_EXEC);
	/* Which of the two calls it was is in no register any more. */
	{
		u32 tid = (u32)bpf_get_current_pid_tgid(), before = old_pid;

		if (bpf_map_lookup_elem(&at_execveat, &before)) {
			bpf_map_delete_elem(&at_execveat, &before);
			s->header.nr = EXEC_AT;
		} else if (bpf_map_lookup_elem(&at_execveat, &tid)) {
			bpf_map_delete_elem(&at_execveat, &tid);
			s->header.nr = EXEC_AT;
		}
	}
	mm = BPF_CORE_READ(task, mm);
	arg_start = BPF_CORE_READ(mm, arg_start);
	arg_end = BPF_CORE_READ(mm, arg_end);
	env_start = BPF_CORE_READ(mm, env_start);
	env_end = BPF_CORE_READ(mm, env_end);
	take_file((u64)BPF_CORE_READ(mm, exe_file), PIECE_EXECUTABLE, 0);
	take_stack(arg_start, arg_end, PIECE_ARGUMENTS, PIECE_LIMIT * 2);
	take_directory(AT_FDCWD);
	take_cgroups();
	if (control.environment)
		take_stack(env_start, env_end, PIECE_ENVIRONMENT, control.environment);
	{
		u32 at = room(s);
		const char *name = BPF_CORE_READ(bprm, filename);

		if (at <= START_LIMIT) {
			long len = bpf_probe_read_kernel_str(
				at_offset(s, at + sizeof(struct piece)), PIECE_LIMIT, name);

			if (len > 0)
				seal(s, at, PIECE_FILENAME, len, PIECE_STRING, 0);
		}
	}
	send_state(s);
	return 0;
}

SEC("tp_btf/sched_process_fork")
int BPF_PROG(sched_process_fork, struct task_struct *parent, struct task_struct *child)
{
	struct scratch *s = working_memory();
	s32 pid = BPF_CORE_READ(child, tgid), from = BPF_CORE_READ(parent, tgid);
	u64 address;
	u8 yes = 1;

	/* A thread. */
	if (!s || BPF_CORE_READ(child, pid) != pid)
		return 0;
	if (!in_scope(from))
		return 0;
	if (control.scoped)
		bpf_map_update_elem(&scope, &pid, &yes, BPF_ANY);
	if (!control.states)
		return 0;
	/* As a number: functions of their own take no kernel pointers. */
	if (bpf_probe_read_kernel(&address, sizeof(address), ctx + 1))
		return 0;
	describe(address, RECORD_FORK);
	send_state(s);
	return 0;
}

SEC("tp_btf/sched_process_exit")
int BPF_PROG(sched_process_exit, struct task_struct *task)
{
	struct scratch *s = working_memory();
	s32 pid = BPF_CORE_READ(task, tgid);

	/* The last thread takes the process along. */
	if (!s || BPF_CORE_READ(task, signal, live.counter) != 0 || !in_scope(pid))
		return 0;
	if (control.scoped)
		bpf_map_delete_elem(&scope, &pid);
	if (!control.states)
		return 0;
	describe(bpf_get_current_task(), RECORD_EXIT);
	send_state(s);
	return 0;
}
