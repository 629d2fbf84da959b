/* Files and directories that rules name, by inode: whatever name leads to them. */
#ifndef TOLLGATE_INODES_H
#define TOLLGATE_INODES_H

#include "pieces.h"

#define ALL_SLOTS (~0ULL)
/* Where paths stand while they are looked at: where pieces begin, later. */
#define TRUE_PATH sizeof(struct header)
#define PASSED_PATH (sizeof(struct header) + 2 * PIECE_LIMIT)

/* Overlays on overlays: FILESYSTEM_MAX_STACK_DEPTH. */
#define LAYERS 2

/* The dentry that an overlay has a file from: of its upper layer, or of the uppermost lower one. 0: none, or no
 * overlay. A file that was copied up has both. */
static __always_inline u64 layer_of(struct scratch *s, u64 dentry_address, bool is_upper)
{
	struct dentry *dentry = (void *)dentry_address;
	struct inode *inode = READ(dentry, d_inode);
	struct ovl_inode *overlay;
	struct ovl_inode___6_4 *older;
	struct ovl_entry *entry;
	struct ovl_path *lower;

	if (READ(dentry, d_sb, s_magic) != OVERLAYFS_MAGIC)
		return 0;
	if (!bpf_core_type_exists(struct ovl_inode)) {
		u64 place = (u64)inode + bpf_core_type_size(struct inode), found = 0;

		/* A module that was not loaded: as it is since 6.5. What is read elsewhere is no known inode. */
		bpf_probe_read_kernel(&found, sizeof(found), (void *)(is_upper ? place : place + 8));
		if (!is_upper && found) {
			place = found;
			found = 0;
			bpf_probe_read_kernel(&found, sizeof(found), (void *)(place + 16));
		}
		return found;
	}
	overlay = (void *)inode - bpf_core_field_offset(struct ovl_inode, vfs_inode);
	if (is_upper)
		return address_of(s, BPF_CORE_READ(overlay, __upperdentry));
	if (field_exists(overlay->oe)) {
		entry = BPF_CORE_READ(overlay, oe);
		if (!entry || !BPF_CORE_READ(entry, __numlower))
			return 0;
		/* The first of a flexible array. */
		lower = (void *)entry + bpf_core_field_offset(struct ovl_entry, __lowerstack);
		return address_of(s, BPF_CORE_READ(lower, dentry));
	}
	older = (void *)overlay;
	if (field_exists(older->lowerpath))
		return address_of(s, BPF_CORE_READ(older, lowerpath.dentry));
	return 0;
}

/* Tells the file of a dentry from all others. That of an overlay is told by those of its layers. */
static __always_inline bool identify_inode(struct inode_key *key, struct dentry *dentry, struct inode *inode)
{
	struct super_block *super = READ(dentry, d_sb);

	key->inode = READ(inode, i_ino);
	key->device = READ(super, s_dev);
	key->generation = READ(inode, i_generation);
	return READ(super, s_magic) != OVERLAYFS_MAGIC;
}

/* Most inodes that rules do not name leave here, without a look-up. */
static __always_inline bool may_be_named(u64 inode, u32 device)
{
	u64 hash = (inode ^ (u64)device << 40) * 0x9e3779b97f4a7c15ULL >> 48;

	return inode_bits[hash >> 6 & (INODE_WORDS - 1)] >> (hash & 63) & 1;
}

/* Whether the text at `place` leads below the directory whose name is in the working memory: then it was judged by
 * that name. */
__noinline int is_text_below(u32 place)
{
	struct scratch *s = working_memory();
	const u64 *text;
	u32 len;

	if (!s)
		return 0;
	bounded(place, PASSED_PATH);
	text = at_offset(s, place);
	len = s->below.len;
	if (len < 1 || len > INODE_TEXT)
		return 0;
#pragma unroll
	for (u32 i = 0; i < INODE_TEXT / 8; i++) {
		u64 differ;

		if (i * 8 >= len)
			break;
		differ = text[i] ^ s->below.text[i];
		if (len - i * 8 < 8)
			differ <<= 64 - 8 * (len - i * 8);
		if (differ)
			return 0;
	}
	bounded(len, INODE_TEXT);
	return *((u8 *)text + len) == '/';
}

/* Adds what is known of a named directory or file to the record: which one it is, and the way from it. */
__noinline int take_named(u64 from_address, u64 to_address)
{
	struct scratch *s = working_memory();
	struct dentry *dentry = (void *)to_address;
	struct inode *inode = READ(dentry, d_inode);
	struct inode_key *key;
	u32 at, found = 0, len;

	if (!s)
		return -1;
	at = room(s);
	if (at > START_LIMIT)
		return -1;
	key = at_offset(s, at + sizeof(struct piece));
	key->inode = READ(inode, i_ino);
	key->device = READ(dentry, d_sb, s_dev);
	key->generation = READ(inode, i_generation);
	key->bank = 0;
	key->_pad = 0;
	if (from_address != to_address) {
		s->stop = to_address;
		found = take_path(from_address, 0, at + sizeof(struct piece) + sizeof(struct inode_key));
		s->stop = 0;
		if (is_partial(found))
			return -1;
	}
	len = found & 0xffff;
	if (len > PIECE_LIMIT)
		len = PIECE_LIMIT;
	seal(s, at, PIECE_NAMED, sizeof(struct inode_key) + len, 0, 0);
	return 0;
}

/* Slots that take a name which rules have for a file, or for a directory that it is below. */
__noinline u64 slots_of_named(u64 dentry_address, u32 bank, u32 place)
{
	struct scratch *s = working_memory();
	struct dentry *dentry = (void *)dentry_address;
	struct inode *inode = READ(dentry, d_inode);
	struct inode_key key = {
		.inode = READ(inode, i_ino),
		.device = READ(dentry, d_sb, s_dev),
		.generation = READ(inode, i_generation),
		.bank = bank,
	};
	struct inode_name *name = bpf_map_lookup_elem(&inodes, &key);

	if (!name)
		return 0;
	if (!s)
		return ALL_SLOTS;
	if (!place) {
		u32 count = s->named;

		s->named_from[count & (NAMED - 1)] = s->file_dentry;
		s->named_to[count & (NAMED - 1)] = dentry_address;
		s->named = count + 1;
	}
	if (s->file_dentry == dentry_address)
		return name->own;
	if (!place || !name->below)
		return name->below;
	s->below = *name;
	return is_text_below(place) ? 0 : name->below;
}

/* The same for a part of the directories that a file is below, from the one in the working memory on, which is then the
 * next or none. `place`: of the text that was judged already; 0: the names go along with the record. */
__noinline u64 slots_of_part(u32 bank, u32 place, u32 device)
{
	struct scratch *s = working_memory();
	struct dentry *dentry;
	u64 slots = 0;

	if (!s)
		return ALL_SLOTS;
	dentry = kernel_pointer(s->at_dentry, struct dentry);
	for (u32 i = 0; i < PART; i++) {
		struct dentry *parent = READ(dentry, d_parent);

		if (may_be_named(READ(dentry, d_inode, i_ino), device))
			slots |= slots_of_named(address_of(s, dentry), bank, place);
		if (parent == dentry) {
			s->at_dentry = 0;
			return slots;
		}
		dentry = parent;
	}
	s->at_dentry = (u64)dentry;
	return slots;
}

/* The same for all of them. */
static __always_inline u64 slots_of_inodes(struct scratch *s, u64 dentry_address, u32 bank, u32 place)
{
	struct dentry *dentry = (void *)dentry_address;
	u64 slots = 0;
	u32 device;

	/* That of an overlay is told by those of its layers. */
	if (!dentry || READ(dentry, d_sb, s_magic) == OVERLAYFS_MAGIC)
		return 0;
	device = READ(dentry, d_sb, s_dev);
	s->file_dentry = dentry_address;
	s->at_dentry = dentry_address;
	for (u32 i = 0; i < COMPONENTS / PART; i++) {
		slots |= slots_of_part(bank, place, device);
		if (!s->at_dentry)
			return slots;
	}
	/* Deeper than is looked. */
	return ALL_SLOTS;
}

/* The same for what an overlay has the file from. */
__noinline u64 slots_of_layers(u64 dentry_address, u32 bank, u32 place)
{
	struct scratch *s = working_memory();
	u64 slots = 0, at = dentry_address;

	if (!s)
		return ALL_SLOTS;
	for (u32 i = 0; i < LAYERS; i++) {
		u64 upper = layer_of(s, at, true);

		at = layer_of(s, at, false);
		if (upper)
			slots |= slots_of_inodes(s, upper, bank, place);
		if (!at)
			break;
		slots |= slots_of_inodes(s, at, bank, place);
	}
	return slots;
}

/* Slots that take any name that rules have for an open file. */
static __always_inline u64 by_inodes(struct scratch *s, u32 bank, struct file *file, u32 place)
{
	u64 dentry = address_of(s, READ(file, f_path.dentry));

	if (READ(file, f_inode, i_sb, s_magic) == OVERLAYFS_MAGIC)
		return slots_of_layers(dentry, bank, place);
	return slots_of_inodes(s, dentry, bank, place);
}

/* Whether paths of the calling task begin where those of its mount namespace do. */
static __always_inline bool has_whole_root(struct task_struct *caller)
{
	struct dentry *dentry = READ(caller, fs, root.dentry);
	struct vfsmount *vfsmount = READ(caller, fs, root.mnt);

	for (u32 i = 0; i < 4; i++) {
		struct mount *mount = (void *)vfsmount - bpf_core_field_offset(struct mount, mnt), *above;

		if (dentry != READ(vfsmount, mnt_root))
			return false;
		above = READ(mount, mnt_parent);
		if (above == mount)
			return true;
		dentry = READ(mount, mnt_mountpoint);
		vfsmount = (void *)above + bpf_core_field_offset(struct mount, mnt);
	}
	return false;
}

/* Writes the path of an open file at `at`, from the root of the mount namespace; as take_path does. */
static __always_inline u32 take_whole_path(struct scratch *s, struct file *file, u32 at)
{
	u32 found;

	s->stop = WHOLE_PATH;
	found = take_path(address_of(s, READ(file, f_path.dentry)), address_of(s, READ(file, f_path.mnt)), at);
	s->stop = 0;
	return found;
}

/* Adds the other names of an opened file to the record. */
__noinline int take_names(u64 file_address, u32 bank)
{
	struct scratch *s = working_memory();
	struct file *file = (void *)file_address;
	u32 at, found, len;

	if (!s || !file)
		return -1;
	s->named = 0;
	by_inodes(s, bank, file, 0);
	for (u32 i = 0; i < NAMED && i < s->named; i++)
		take_named(s->named_from[i], s->named_to[i]);
	if (has_whole_root(caller_task()))
		return 0;
	at = room(s);
	if (at > START_LIMIT)
		return -1;
	found = take_whole_path(s, file, at + sizeof(struct piece));
	len = found & 0xffff;
	if (len > PIECE_LIMIT)
		len = PIECE_LIMIT;
	if (!is_partial(found))
		seal(s, at, PIECE_WHOLE_PATH, len, 0, 0);
	return 0;
}

/* The agent asks what tells a file, that it has open, from all others: run by BPF_PROG_TEST_RUN. */
SEC("raw_tp")
int show_file(u64 *ctx)
{
	struct scratch *s = working_memory();
	struct file *file;
	struct dentry *dentry;
	u64 at;
	u32 count = 0;

	if (!s)
		return 0;
	file = (void *)file_of_caller(s, caller_task(), (int)ctx[0]);
	if (!file)
		return 0;
	dentry = READ(file, f_path.dentry);
	if (identify_inode(&shown.key[0], dentry, READ(dentry, d_inode)))
		return 1;
	at = address_of(s, dentry);
	for (u32 i = 0; i < LAYERS; i++) {
		u64 upper = layer_of(s, at, true);

		at = layer_of(s, at, false);
		if (upper && count < SHOWN) {
			dentry = (void *)upper;
			if (identify_inode(&shown.key[count & (SHOWN - 1)], dentry, READ(dentry, d_inode)))
				count++;
		}
		if (!at)
			break;
		dentry = (void *)at;
		if (count < SHOWN && identify_inode(&shown.key[count & (SHOWN - 1)], dentry, READ(dentry, d_inode)))
			count++;
	}
	return count;
}

#endif
