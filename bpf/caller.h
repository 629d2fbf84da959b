/* Who makes a call: everything about the process that an event may be asked for. */
#ifndef TOLLGATE_CALLER_H
#define TOLLGATE_CALLER_H

#include "pieces.h"

static __always_inline u32 namespaced(struct pid *pid, u32 level)
{
	/* struct upid has another size than here. */
	u64 at = (u64)&pid->numbers[0] + level * bpf_core_type_size(struct upid);
	u32 number = 0;

	if (LOADS)
		return at_kernel(at, struct upid)->nr;
	bpf_probe_read_kernel(&number, sizeof(number), (void *)at);
	return number;
}

static __always_inline u64 start_of(struct task_struct *leader)
{
	struct task_struct___5_4 *old = (void *)leader;

	if (field_exists(leader->start_boottime))
		return READ(leader, start_boottime);
	return READ(old, real_start_time);
}

static __always_inline u32 terminal_of(struct signal_struct *signal)
{
	struct tty_struct *tty = READ(signal, tty);
	u32 major, minor;

	if (!tty)
		return 0;
	major = READ(tty, driver, major);
	minor = READ(tty, driver, minor_start) + READ(tty, index);
	return (minor & 0xff) | major << 8 | (minor & ~0xffU) << 12;
}

static __always_inline s32 foreground_of(struct signal_struct *signal)
{
	struct tty_struct *tty = READ(signal, tty);
	struct tty_struct___5_9 *old = (void *)tty;
	struct pid *group;

	if (!tty)
		return -1;
	group = field_exists(old->pgrp) ? READ(old, pgrp) : READ(tty, ctrl.pgrp);
	return group ? (s32)namespaced(group, 0) : -1;
}

#define PIDTYPE_PGID 2
#define PIDTYPE_SID 3

/* The process group or session. */
static __always_inline struct pid *pid_of(struct signal_struct *signal, u32 type)
{
	struct pid *pid = NULL;

	if (LOADS)
		return at_kernel(signal, struct signal_struct)->pids[type];
	bpf_core_read(&pid, sizeof(pid), &signal->pids[type]);
	return pid;
}

static __always_inline void ids(struct header *h, struct task_struct *task,
				struct task_struct *leader)
{
	struct signal_struct *signal = READ(task, signal);
	struct pid *group = pid_of(signal, PIDTYPE_PGID), *session = pid_of(signal, PIDTYPE_SID);
	struct pid *own = READ(leader, thread_pid);
	u32 level = h->level;

	if (level > 32)
		level = 32;
	h->pgid = namespaced(group, 0);
	h->sid = namespaced(session, 0);
	if (level) {
		h->vpid = namespaced(own, level);
		h->vtid = namespaced(READ(task, thread_pid), level);
		h->vpgid = READ(group, level) >= level ? namespaced(group, level) : 0;
		h->vsid = READ(session, level) >= level ? namespaced(session, level) : 0;
	} else {
		h->vpid = h->pid;
		h->vtid = h->tid;
		h->vpgid = h->pgid;
		h->vsid = h->sid;
	}
	h->threads = READ(signal, nr_threads);
	h->tty = terminal_of(signal);
	h->tpgid = foreground_of(signal);
}

static __always_inline void credentials(struct header *h, struct task_struct *task)
{
	struct cred *cred = (void *)READ(task, cred);

	h->real_uid = READ(cred, uid.val);
	h->uid = READ(cred, euid.val);
	h->gid = READ(cred, egid.val);
	h->fs_uid = READ(cred, fsuid.val);
	h->fs_gid = READ(cred, fsgid.val);
	if (LOADS && field_exists(cred->cap_bset.val)) {
		h->caps[0] = READ(cred, cap_inheritable.val);
		h->caps[1] = READ(cred, cap_permitted.val);
		h->caps[2] = READ(cred, cap_effective.val);
		h->caps[3] = READ(cred, cap_bset.val);
	} else {
		bpf_core_read(&h->caps[0], 8, &cred->cap_inheritable);
		bpf_core_read(&h->caps[1], 8, &cred->cap_permitted);
		bpf_core_read(&h->caps[2], 8, &cred->cap_effective);
		bpf_core_read(&h->caps[3], 8, &cred->cap_bset);
	}
	if (field_exists(task->loginuid))
		h->login_uid = READ(task, loginuid.val);
	else
		h->login_uid = -1;
}

/* One of the counts of pages that are there. */
static __always_inline s64 resident_pages(struct mm_struct *mm, u32 kind)
{
	struct mm_struct___6_1 *old = (void *)mm;
	u64 at;
	s64 pages = 0;

	if (!field_exists(mm->rss_stat[0].count)) {
		bpf_core_read(&pages, sizeof(pages), &old->rss_stat.count[kind].counter);
		return pages;
	}
	/* They are of another size than here. */
	at = (u64)mm + bpf_core_field_offset(struct mm_struct, rss_stat) +
	     kind * bpf_core_type_size(struct percpu_counter);
	if (LOADS)
		return at_kernel(at, struct percpu_counter)->count;
	bpf_core_read(&pages, sizeof(pages), &((struct percpu_counter *)at)->count);
	return pages;
}

#define MM_FILEPAGES 0
#define MM_ANONPAGES 1
#define MM_SHMEMPAGES 3

/* In pages. */
static __always_inline void memory_use(struct header *h, struct task_struct *task)
{
	struct mm_struct *mm = READ(task, mm);
	s64 resident;

	if (!mm)
		return;
	h->vm_pages = READ(mm, total_vm);
	resident = resident_pages(mm, MM_FILEPAGES) + resident_pages(mm, MM_ANONPAGES) +
		   resident_pages(mm, MM_SHMEMPAGES);
	h->resident_pages = resident > 0 ? resident : 0;
}

#define SUBSYSTEMS 16

static __always_inline struct cgroup *cgroup_of(struct css_set *set, u32 subsystem)
{
	struct cgroup_subsys_state *state = NULL;
	u64 at = (u64)set + bpf_core_field_offset(struct css_set, subsys) +
		 subsystem * sizeof(state);

	/* The kernel may have fewer than there is room for here. */
	if (subsystem >= bpf_core_field_size(set->subsys) / sizeof(state))
		return NULL;
	/* Any structure that begins with a pointer. */
	if (LOADS)
		state = (void *)at_kernel(at, struct list_head)->next;
	else
		bpf_probe_read_kernel(&state, sizeof(state), (void *)at);
	return state ? READ(state, cgroup) : NULL;
}

static __always_inline struct kernfs_node *cgroup_node(struct css_set *set, u32 subsystem)
{
	struct cgroup *group = cgroup_of(set, subsystem);

	return group ? READ(group, kn) : NULL;
}

/* A number for the cgroups of a task in all hierarchies together. On a machine with cgroup v2 alone
 * they are one and the same. */
static __always_inline u64 cgroups_of(struct task_struct *task)
{
	struct css_set *set = READ(task, cgroups);
	struct kernfs_node *first = READ(set, dfl_cgrp, kn), *last = first;
	u64 all = READ(first, id);

	for (u32 i = 0; i < SUBSYSTEMS; i++) {
		struct kernfs_node *node = cgroup_node(set, i);

		if (!node || node == last)
			continue;
		last = node;
		/* The prime of FNV-1a. */
		all = (all ^ READ(node, id)) * 0x100000001b3ULL;
	}
	return all;
}

/* Where a process is, as a key for what the agent has found out about it. */
static __always_inline void locate(struct place_key *place, struct task_struct *task)
{
	struct nsproxy *namespaces = READ(task, nsproxy);

	place->cgroup = cgroups_of(task);
	place->cgroup_namespace = READ(namespaces, cgroup_ns, ns.inum);
	place->mount_namespace = READ(namespaces, mnt_ns, ns.inum);
	place->level = READ(task, group_leader, thread_pid, level);
	place->_pad = 0;
}

/* What the place of the calling process is: PLACE_* flags, and 0 if nothing is known. */
__noinline int place_of_caller(void)
{
	struct place_key place;
	u32 *known;

	locate(&place, (void *)bpf_get_current_task());
	known = bpf_map_lookup_elem(&places, &place);
	return known ? *known : 0;
}

/* Fills in which process it is and whose child. */
static __always_inline void identify(struct header *h, struct task_struct *task, u32 kind)
{
	struct task_struct *leader = READ(task, group_leader), *parent = READ(leader, real_parent);

	h->size = sizeof(*h);
	h->kind = kind;
	h->flags = 0;
	h->time = bpf_ktime_get_boot_ns();
	h->cpu = bpf_get_smp_processor_id();
	h->tid = READ(task, pid);
	h->pid = READ(task, tgid);
	h->ppid = READ(parent, tgid);
	h->parent_start = start_of(READ(parent, group_leader));
	h->start = start_of(leader);
	h->exec_id = READ(leader, self_exec_id);
	bpf_core_read(&h->comm, sizeof(h->comm), &leader->comm);
}

/* Where paths of a task begin. */
static __always_inline void take_root(struct header *h, struct task_struct *task)
{
	struct vfsmount *vfsmount = READ(task, fs, root.mnt);
	struct mount *mount = (void *)vfsmount - bpf_core_field_offset(struct mount, mnt);
	struct mount___6_8 *newer = (void *)mount;

	h->root_inode = READ(task, fs, root.dentry, d_inode, i_ino);
	h->root_device = READ(task, fs, root.dentry, d_sb, s_dev);
	h->root_mount_id = READ(mount, mnt_id);
	h->root_mount = field_exists(newer->mnt_id_unique) ? READ(newer, mnt_id_unique) : h->root_mount_id;
}

/* Fills in everything about a task that an event may be asked for. */
__noinline int describe(u64 task_address, u32 kind)
{
	struct scratch *s = working_memory();
	struct task_struct *task = (void *)task_address;
	struct place_key place;
	struct header *h;

	if (!s)
		return -1;
	h = &s->header;
	identify(h, task, kind);
	locate(&place, task);
	h->flags = bpf_map_lookup_elem(&places, &place) ? 0 : FLAG_NEW_PLACE;
	h->level = place.level;
	h->cgroup = place.cgroup;
	h->mount_namespace = place.mount_namespace;
	h->cgroup_namespace = place.cgroup_namespace;
	h->socketcall = 0;
	h->nr = 0;
	ids(h, task, READ(task, group_leader));
	credentials(h, task);
	take_root(h, task);
	h->vm_pages = 0;
	h->resident_pages = 0;
	memory_use(h, task);
	return 0;
}

/* The same for what makes no event: no more than who it is. */
__noinline int describe_briefly(u64 task_address, u32 kind)
{
	struct scratch *s = working_memory();

	if (!s)
		return -1;
	identify(&s->header, (void *)task_address, kind);
	return 0;
}

/* The path of a cgroup, as components from the last to the first. Once for each place, so by plain reads. */
__noinline int take_cgroup(u64 node_address, u64 hierarchy)
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
	seal(s, at, PIECE_CGROUP, s->used, 0, hierarchy);
	return 0;
}

/* The paths of a task's cgroups in all hierarchies, if the agent does not know the place. */
__noinline int take_place(u64 task_address)
{
	struct scratch *s = working_memory();
	struct task_struct *task = (void *)task_address;
	struct css_set *set = BPF_CORE_READ(task, cgroups);
	struct cgroup *group = BPF_CORE_READ(set, dfl_cgrp);
	struct kernfs_node *first = BPF_CORE_READ(group, kn), *last = first;

	if (!s || !(s->header.flags & FLAG_NEW_PLACE))
		return 0;
	take_cgroup(address_of(s, first), BPF_CORE_READ(group, root, hierarchy_id));
	for (u32 i = 0; i < SUBSYSTEMS; i++) {
		struct kernfs_node *node;

		group = cgroup_of(set, i);
		node = group ? BPF_CORE_READ(group, kn) : NULL;
		if (!node || node == last)
			continue;
		last = node;
		take_cgroup(address_of(s, node), BPF_CORE_READ(group, root, hierarchy_id));
	}
	return 0;
}

#endif
