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
_Static_assert(sizeof(struct row) == 40 + 4 * 32 + 8 * FETCHES + 32 * TESTS, "see tables.rs");
_Static_assert(sizeof(struct control) == 32, "see tables.rs");

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
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct scratch);
} scratch SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct control);
} control SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct calls);
} calls SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, BANKS * ROWS);
	__type(key, u32);
	__type(value, struct row);
} rows SEC(".maps");

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

static __always_inline struct control *controls(void)
{
	u32 zero = 0;

	return bpf_map_lookup_elem(&control, &zero);
}

static __always_inline struct scratch *working_memory(void)
{
	u32 zero = 0;

	return bpf_map_lookup_elem(&scratch, &zero);
}

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
	if (bpf_probe_read_user(at_offset(s, at + sizeof(struct piece)), len, (void *)address)) {
		count(COUNT_UNREADABLE);
		seal(s, at, PIECE_ABSENT_MEMORY, 0, 0, address);
		return -1;
	}
	seal(s, at, PIECE_MEMORY, len, 0, address);
	return 0;
}

/* Components of a path from its last one up to the root of the process. Answers with their length
 * in the low 16 bits and FILE_* flags above. */
__noinline int take_components(u64 dentry_address, u64 mount_address, u32 at)
{
	struct scratch *s = working_memory();
	struct dentry *dentry = (void *)dentry_address;
	struct vfsmount *vfsmount = (void *)mount_address;
	struct task_struct *task = (void *)bpf_get_current_task();
	struct dentry *root_dentry;
	struct vfsmount *root_mount;
	struct mount *mount;
	struct fs_struct *fs;
	u32 flags = 0;

	if (!s || at > START_LIMIT + 256)
		return 0;
	s->used = 0;
	fs = BPF_CORE_READ(task, fs);
	root_dentry = BPF_CORE_READ(fs, root.dentry);
	root_mount = BPF_CORE_READ(fs, root.mnt);
	mount = (void *)vfsmount - bpf_core_field_offset(struct mount, mnt);
	for (int i = 0; i < COMPONENTS; i++) {
		struct dentry *parent, *mount_root;
		u32 used = s->used;
		const u8 *name;
		long len;

		if (dentry == root_dentry && vfsmount == root_mount)
			return used | flags << 16;
		parent = BPF_CORE_READ(dentry, d_parent);
		mount_root = BPF_CORE_READ(vfsmount, mnt_root);
		if (dentry == mount_root || dentry == parent) {
			struct mount *above = BPF_CORE_READ(mount, mnt_parent);

			if (dentry != mount_root || above == mount || !above)
				return used | (flags | FILE_UNREACHABLE) << 16;
			dentry = BPF_CORE_READ(mount, mnt_mountpoint);
			mount = above;
			vfsmount = (void *)mount + bpf_core_field_offset(struct mount, mnt);
			continue;
		}
		if (used > PIECE_LIMIT - COMPONENT_LIMIT)
			break;
		name = BPF_CORE_READ(dentry, d_name.name);
		len = bpf_probe_read_kernel_str(at_offset(s, at + used), COMPONENT_LIMIT, name);
		if (len <= 0)
			break;
		s->used = used + len;
		dentry = parent;
	}
	s->header.flags |= FLAG_TRUNCATED;
	return s->used | (flags | FILE_PATH_CUT) << 16;
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
	found = take_components((u64)dentry, (u64)mount,
				at + sizeof(struct piece) + sizeof(struct file_facts));
	len = found & 0xffff;
	if (len > PIECE_LIMIT)
		len = PIECE_LIMIT;
	facts = at_offset(s, at + sizeof(struct piece));
	facts->flags |= found >> 16;
	seal(s, at, kind, sizeof(*facts) + len, 0, number);
	return 0;
}

static __always_inline struct file *file_of(int number)
{
	struct task_struct *task = (void *)bpf_get_current_task();
	struct files_struct *files = BPF_CORE_READ(task, files);
	struct fdtable *table = BPF_CORE_READ(files, fdt);
	struct file **slots = BPF_CORE_READ(table, fd);
	struct file *file = NULL;

	if (number < 0 || (u32)number >= BPF_CORE_READ(table, max_fds))
		return NULL;
	bpf_probe_read_kernel(&file, sizeof(file), slots + number);
	return file;
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
		struct file *file = file_of(number);

		if (!file)
			return -1;
		dentry = BPF_CORE_READ(file, f_path.dentry);
		mount = BPF_CORE_READ(file, f_path.mnt);
	}
	found = take_components((u64)dentry, (u64)mount, at + sizeof(struct piece));
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
	h->cgroup = BPF_CORE_READ(task, cgroups, dfl_cgrp, kn, id);
	h->socketcall = 0;
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
static __always_inline bool in_scope(struct control *c, s32 pid)
{
	if (pid == c->agent)
		return false;
	return !c->scoped || bpf_map_lookup_elem(&scope, &pid) != NULL;
}

/* Sends the record that is in the working memory. */
static __always_inline long send(struct scratch *s, struct control *c, bool is_critical)
{
	u32 size = s->header.size;

	if (size > SCRATCH - 8)
		return -1;
	if (s->header.flags & FLAG_TRUNCATED)
		count(COUNT_TRUNCATED);
	if (is_critical)
		return bpf_ringbuf_output(&critical, s, size, 0);
	/* Waking the agent costs more than the record: for a crowd, once. */
	if (bpf_ringbuf_query(&bulk, BPF_RB_AVAIL_DATA) < c->wake_bytes)
		return bpf_ringbuf_output(&bulk, s, size, BPF_RB_NO_WAKEUP);
	return bpf_ringbuf_output(&bulk, s, size, BPF_RB_FORCE_WAKEUP);
}

/* --- calls ----------------------------------------------------------------------------------- */

#define TS_COMPAT 2
#define X32_BIT 0x40000000

static __always_inline u32 abi_of(u32 nr)
{
#if defined(__TARGET_ARCH_x86)
	struct task_struct *task;

	if (nr & X32_BIT)
		return ABI_X32;
	task = (void *)bpf_get_current_task();
	if (BPF_CORE_READ(task, thread_info.status) & TS_COMPAT)
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
		take_file((u64)file_of(value), PIECE_FILE, (s64)(int)value);
		break;
	case FETCH_RESULT:
		if ((s64)s->header.result >= 0)
			take_file((u64)file_of(s->header.result), PIECE_FILE, s->header.result);
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

SEC("tp_btf/sys_exit")
int BPF_PROG(sys_exit, struct pt_regs *regs, long result)
{
	struct arguments arguments = {};
	struct control *c;
	struct calls *table;
	struct scratch *s;
	struct row *row;
	u32 zero = 0, nr, abi, key, operation = 0;
	u64 slots;
	s32 pid;

#if defined(__TARGET_ARCH_x86)
	nr = regs->orig_ax;
#else
	nr = regs->syscallno;
#endif
	c = controls();
	table = bpf_map_lookup_elem(&calls, &zero);
	if (!c || !table || (nr & ~X32_BIT) >= CALLS)
		return 0;
	key = c->bank & 1;
	{
		u32 low = nr & (CALLS - 1);

		/* Most calls are of no interest under any convention. */
		if (!(table->row[key][ABI_NATIVE][low] | table->row[key][ABI_I386][low] |
		      table->row[key][ABI_X32][low]))
			return 0;
		abi = abi_of(nr);
		key = key * ROWS + table->row[key][abi][low];
	}
	if ((key & (ROWS - 1)) == 0)
		return 0;
	row = bpf_map_lookup_elem(&rows, &key);
	if (!row)
		return 0;
	count(COUNT_SEEN);
	registers(regs, abi, arguments.value);
	if (row->flags & ROW_EXEC && result == 0)
		return 0;
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
	slots = by_arguments(row, &arguments);
	slots &= result < 0 && result >= -4095 ? row->failed : row->succeeded;
	if (!slots) {
		count(COUNT_REGISTERS);
		return 0;
	}
	pid = bpf_get_current_pid_tgid() >> 32;
	if (!in_scope(c, pid)) {
		count(COUNT_SCOPE);
		return 0;
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
	if (send(s, c, row->flags & ROW_CRITICAL)) {
		u64 *losses = bpf_map_lookup_elem(&lost, &key);

		count(row->flags & ROW_CRITICAL ? COUNT_LOST_CRITICAL : COUNT_LOST_BULK);
		if (losses)
			*losses += 1;
	} else {
		count(COUNT_SENT);
	}
	return 0;
}

/* --- processes ------------------------------------------------------------------------------- */

static __always_inline void send_state(struct scratch *s, struct control *c)
{
	if (send(s, c, true))
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
	if (len > PIECE_LIMIT * 2)
		return -1;
	if (bpf_probe_read_user(at_offset(s, at + sizeof(struct piece)), len, (void *)start)) {
		count(COUNT_UNREADABLE);
		return -1;
	}
	seal(s, at, kind, len, status, start);
	return 0;
}

SEC("tp_btf/sched_process_exec")
int BPF_PROG(sched_process_exec, struct task_struct *task, int old_pid, struct linux_binprm *bprm)
{
	struct control *c = controls();
	struct scratch *s = working_memory();
	struct mm_struct *mm;
	u64 arg_start, arg_end, env_start, env_end;

	if (!c || !s || !c->states || !in_scope(c, BPF_CORE_READ(task, tgid)))
		return 0;
	describe(bpf_get_current_task(), RECORD_EXEC);
	mm = BPF_CORE_READ(task, mm);
	arg_start = BPF_CORE_READ(mm, arg_start);
	arg_end = BPF_CORE_READ(mm, arg_end);
	env_start = BPF_CORE_READ(mm, env_start);
	env_end = BPF_CORE_READ(mm, env_end);
	take_file((u64)BPF_CORE_READ(mm, exe_file), PIECE_EXECUTABLE, 0);
	take_stack(arg_start, arg_end, PIECE_ARGUMENTS, PIECE_LIMIT * 2);
	take_directory(AT_FDCWD);
	if (c->environment)
		take_stack(env_start, env_end, PIECE_ENVIRONMENT, c->environment);
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
	send_state(s, c);
	return 0;
}

SEC("tp_btf/sched_process_fork")
int BPF_PROG(sched_process_fork, struct task_struct *parent, struct task_struct *child)
{
	struct control *c = controls();
	struct scratch *s = working_memory();
	s32 pid = BPF_CORE_READ(child, tgid), from = BPF_CORE_READ(parent, tgid);
	u64 address;
	u8 yes = 1;

	/* A thread. */
	if (!c || !s || BPF_CORE_READ(child, pid) != pid)
		return 0;
	if (!in_scope(c, from))
		return 0;
	if (c->scoped)
		bpf_map_update_elem(&scope, &pid, &yes, BPF_ANY);
	if (!c->states)
		return 0;
	/* As a number: functions of their own take no kernel pointers. */
	if (bpf_probe_read_kernel(&address, sizeof(address), ctx + 1))
		return 0;
	describe(address, RECORD_FORK);
	send_state(s, c);
	return 0;
}

SEC("tp_btf/sched_process_exit")
int BPF_PROG(sched_process_exit, struct task_struct *task)
{
	struct control *c = controls();
	struct scratch *s = working_memory();
	s32 pid = BPF_CORE_READ(task, tgid);

	/* The last thread takes the process along. */
	if (!c || !s || BPF_CORE_READ(task, signal, live.counter) != 0 || !in_scope(c, pid))
		return 0;
	if (c->scoped)
		bpf_map_delete_elem(&scope, &pid);
	if (!c->states)
		return 0;
	describe(bpf_get_current_task(), RECORD_EXIT);
	send_state(s, c);
	return 0;
}
