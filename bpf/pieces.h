/* What goes along with a record: memory of the caller, open files, paths. */
#ifndef TOLLGATE_PIECES_H
#define TOLLGATE_PIECES_H

#include "maps.h"

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
#define bounded_or(number, limit, answer)        \
	do {                                     \
		asm volatile("" : "+r"(number)); \
		if ((number) > (limit))          \
			return answer;           \
	} while (0)
#define bounded(number, limit) bounded_or(number, limit, 0)

/* A string of the caller's. Answers with its first byte, or -1 if it could not be read. */
__noinline int take_text(u64 address, u32 limit)
{
	struct scratch *s = working_memory();
	u32 at;
	u8 *text;
	long len;

	if (!s)
		return -1;
	at = room(s);
	if (at > START_LIMIT)
		return -1;
	text = at_offset(s, at + sizeof(struct piece));
	if (limit == 0 || limit > PIECE_LIMIT)
		limit = PIECE_LIMIT;
	bounded(limit, PIECE_LIMIT);
	len = bpf_probe_read_user_str(text, limit, (void *)address);
	if (len <= 0 && !address)
		return -1;
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

/* The parent of a dentry, and its name. Without loads one read where the kernel keeps them side by side. */
static __always_inline struct dentry *parent_and_name(struct dentry *dentry, const u8 **name)
{
	struct dentry *loaded;
	struct {
		struct dentry *parent;
		u64 hash_and_len;
		const u8 *name;
	} near = {};

	if (LOADS) {
		loaded = at_kernel(dentry, struct dentry);
		*name = loaded->d_name.name;
		return loaded->d_parent;
	}
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

/* The mount that a struct vfsmount is part of. */
static __always_inline struct mount *mount_around(u64 vfsmount)
{
	return kernel_pointer(vfsmount - bpf_core_field_offset(struct mount, mnt), struct mount);
}

/* Whether the path that take_path answered with is not the whole one. */
#define is_partial(found) (((found) >> 16 & ~FILE_DETACHED) != 0)

/* Notes the names on a part of the way up from a dentry. Answers with 1 if that was the last part. */
__noinline int climb(void)
{
	struct scratch *s = working_memory();
	struct dentry *dentry, *root_dentry, *mount_root;
	struct mount *mount, *root_mount;
	struct task_struct *task = (void *)bpf_get_current_task();
	struct fs_struct *fs = READ(task, fs);

	if (!s)
		return 1;
	dentry = kernel_pointer(s->at_dentry, struct dentry);
	mount = kernel_pointer(s->at_mount, struct mount);
	root_dentry = READ(fs, root.dentry);
	root_mount = mount_around((u64)READ(fs, root.mnt));
	mount_root = READ(mount, mnt.mnt_root);
	for (u32 i = 0; i < PART; i++) {
		/* Read again in each turn: what the verifier knows of it would be another way to follow. */
		u64 stop = *(volatile u64 *)&s->stop;
		struct dentry *parent;
		const u8 *name;
		u32 count;

		if (stop ? (u64)dentry == stop : dentry == root_dentry && mount == root_mount) {
			s->path_flags = 0;
			return 1;
		}
		if (dentry == mount_root && stop <= WHOLE_PATH) {
			struct mount *above = READ(mount, mnt_parent);

			if (above == mount || !above) {
				s->path_flags = above ? FILE_DETACHED : FILE_UNREACHABLE;
				return 1;
			}
			dentry = READ(mount, mnt_mountpoint);
			mount = above;
			mount_root = READ(mount, mnt.mnt_root);
			continue;
		}
		parent = parent_and_name(dentry, &name);
		count = s->count;
		s->name[count & (COMPONENTS - 1)] = name;
		s->count = count + 1;
		if (dentry == parent) {
			s->path_flags = FILE_UNREACHABLE;
			return 1;
		}
		dentry = parent;
	}
	s->at_dentry = (u64)dentry;
	s->at_mount = (u64)mount;
	return 0;
}

/* Writes a path at `at`, as the process sees it, or from where the working memory says. Answers with its length in the
 * low 16 bits and FILE_* flags above. */
__noinline u32 take_path(u64 dentry_address, u64 mount_address, u32 at)
{
	struct scratch *s = working_memory();
	u32 flags, count;

	if (!s || at > START_LIMIT + 256)
		return 0;
	s->count = 0;
	s->path_flags = FILE_PATH_CUT;
	s->at_dentry = dentry_address;
	s->at_mount = mount_address - bpf_core_field_offset(struct mount, mnt);
	for (u32 i = 0; i < COMPONENTS / PART; i++)
		if (climb())
			break;
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
	struct socket *socket = READ(file, private_data);
	struct sock *sk = READ(socket, sk);

	facts->flags |= FILE_SOCKET;
	facts->family = READ(sk, __sk_common.skc_family);
	facts->type = READ(sk, sk_type);
	facts->protocol = READ(sk, sk_protocol);
	facts->state = READ(sk, __sk_common.skc_state);
	if (facts->family == 2) {
		bpf_core_read(facts->local, 4, &sk->__sk_common.skc_rcv_saddr);
		bpf_core_read(facts->remote, 4, &sk->__sk_common.skc_daddr);
	} else if (facts->family == 10) {
		bpf_core_read(facts->local, 16, &sk->__sk_common.skc_v6_rcv_saddr);
		bpf_core_read(facts->remote, 16, &sk->__sk_common.skc_v6_daddr);
	}
	if (facts->family == 2 || facts->family == 10) {
		facts->local_port = READ(sk, __sk_common.skc_num);
		facts->remote_port = __builtin_bswap16(READ(sk, __sk_common.skc_dport));
	}
}

/* The address that a unix socket, or else its peer, is bound to. */
static __always_inline u32 unix_path(struct file_facts *facts, void *to, struct file *file)
{
	struct socket *socket = READ(file, private_data);
	struct unix_sock *own = (void *)READ(socket, sk);
	struct unix_sock *peer = (void *)READ(own, peer);
	struct unix_address *address = READ(own, addr);
	int len;

	facts->has_peer = peer != NULL;
	if (!address && peer)
		address = READ(peer, addr);
	if (!address)
		return 0;
	len = READ(address, len);
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
		facts->ctime_sec = READ(newest, i_ctime_sec);
		facts->ctime_nsec = READ(newest, i_ctime_nsec);
		facts->mtime_sec = READ(newest, i_mtime_sec);
		facts->mtime_nsec = READ(newest, i_mtime_nsec);
		return;
	}
	if (field_exists(newer->__i_ctime)) {
		facts->ctime_sec = READ(newer, __i_ctime.tv_sec);
		facts->ctime_nsec = READ(newer, __i_ctime.tv_nsec);
	} else if (field_exists(inode->i_ctime)) {
		facts->ctime_sec = READ(inode, i_ctime.tv_sec);
		facts->ctime_nsec = READ(inode, i_ctime.tv_nsec);
	}
	if (field_exists(newer_m->__i_mtime)) {
		facts->mtime_sec = READ(newer_m, __i_mtime.tv_sec);
		facts->mtime_nsec = READ(newer_m, __i_mtime.tv_nsec);
	} else if (field_exists(inode->i_mtime)) {
		facts->mtime_sec = READ(inode, i_mtime.tv_sec);
		facts->mtime_nsec = READ(inode, i_mtime.tv_nsec);
	}
}

#define S_IFMT 0170000
#define S_IFSOCK 0140000
#define OVERLAYFS_MAGIC 0x794c7630
#define SOCKFS_MAGIC 0x534f434b

/* Whether an open file is a socket, and not a path that one is bound to. */
static __always_inline bool is_socket(struct file *file)
{
	struct inode *inode = READ(file, f_inode);

	return (READ(inode, i_mode) & S_IFMT) == S_IFSOCK &&
	       READ(inode, i_sb, s_magic) == SOCKFS_MAGIC &&
	       READ(file, f_path.mnt, mnt_root) != READ(file, f_path.dentry);
}

/* include/linux/fs.h */
#define FMODE_CREATED (1U << 20)

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
	inode = READ(file, f_inode);
	super = READ(inode, i_sb);
	facts->inode = READ(inode, i_ino);
	facts->device = READ(super, s_dev);
	facts->mode = READ(inode, i_mode);
	facts->uid = READ(inode, i_uid.val);
	facts->gid = READ(inode, i_gid.val);
	facts->open_flags = READ(file, f_flags);
	facts->flags = READ(file, f_mode) & FMODE_CREATED ? FILE_CREATED : 0;
	facts->magic = READ(super, s_magic);
	facts->inode_flags = READ(inode, i_flags);
	facts->super_flags = READ(super, s_flags);
	dentry = READ(file, f_path.dentry);
	mount = READ(file, f_path.mnt);
	facts->mount_flags = READ(mount, mnt_flags);
	if (is_socket(file)) {
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
	if (!READ(dentry, d_hash.pprev))
		facts->flags |= FILE_DELETED;
	found = take_path(address_of(s, dentry), address_of(s, mount),
			  at + sizeof(struct piece) + sizeof(struct file_facts));
	len = found & 0xffff;
	if (len > PIECE_LIMIT)
		len = PIECE_LIMIT;
	facts = at_offset(s, at + sizeof(struct piece));
	facts->flags |= found >> 16;
	seal(s, at, kind, sizeof(*facts) + len, 0, number);
	return 0;
}

/* The address of an open file of the calling task, 0 if there is none of this number. */
static __always_inline u64 file_of_caller(struct scratch *s, struct task_struct *caller, int number)
{
	struct fdtable *table = caller->files->fdt;
	struct file **slot;
	struct file *file = NULL;

	if (number < 0 || (u32)number >= table->max_fds)
		return 0;
	slot = table->fd + number;
	if (LOADS) {
		/* Any structure that begins with a pointer. */
		return address_of(s, at_kernel(slot, struct list_head)->next);
	}
	bpf_probe_read_kernel(&file, sizeof(file), slot);
	return (u64)file;
}

static __always_inline u64 file_of(struct scratch *s, int number)
{
	return file_of_caller(s, caller_task(), number);
}

/* Writes the directory that relative paths start at to `at`; as take_path does, and 0 if there is none. */
static __always_inline u32 take_base(struct scratch *s, int number, u32 at)
{
	struct task_struct *task = (void *)bpf_get_current_task();
	struct dentry *dentry;
	struct vfsmount *mount;

	if (number == AT_FDCWD) {
		dentry = READ(task, fs, pwd.dentry);
		mount = READ(task, fs, pwd.mnt);
	} else {
		struct file *file = (void *)file_of(s, number);

		if (!file)
			return 0;
		dentry = READ(file, f_path.dentry);
		mount = READ(file, f_path.mnt);
	}
	return take_path(address_of(s, dentry), address_of(s, mount), at);
}

/* The directory that relative paths start at. */
__noinline int take_directory(int number)
{
	struct scratch *s = working_memory();
	u32 at, len, found;

	if (!s)
		return -1;
	at = room(s);
	if (at > START_LIMIT)
		return -1;
	found = take_base(s, number, at + sizeof(struct piece));
	if (!found)
		return -1;
	len = found & 0xffff;
	if (len > PIECE_LIMIT)
		len = PIECE_LIMIT;
	seal(s, at, PIECE_DIRECTORY, len, found >> 16, (s64)number);
	return 0;
}

#define STREAMS 3

/* What the standard streams are. */
__noinline int take_streams(void)
{
	struct scratch *s = working_memory();

	if (!s)
		return -1;
	for (u32 number = 0; number < STREAMS; number++) {
		u64 file = file_of(s, number);

		if (file)
			take_file(file, PIECE_STREAM, number);
		else
			seal(s, room(s), PIECE_STREAM, 0, 0, number);
	}
	return 0;
}

#endif
