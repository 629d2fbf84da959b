/* Who makes a call: everything about the process that an event may be asked for. */
#ifndef TOLLGATE_CALLER_H
#define TOLLGATE_CALLER_H

#include "pieces.h"

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

static __always_inline struct cgroup *cgroup_of(struct css_set *set, u32 subsystem)
{
	struct cgroup_subsys_state *state = NULL;

	/* The kernel may have fewer than there is room for here. */
	if (subsystem >= bpf_core_field_size(set->subsys) / sizeof(state))
		return NULL;
	bpf_core_read(&state, sizeof(state), &set->subsys[subsystem]);
	return state ? BPF_CORE_READ(state, cgroup) : NULL;
}

static __always_inline struct kernfs_node *cgroup_node(struct css_set *set, u32 subsystem)
{
	struct cgroup *group = cgroup_of(set, subsystem);

	return group ? BPF_CORE_READ(group, kn) : NULL;
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

/* Where a process is, as a key for what the agent has found out about it. */
static __always_inline void locate(struct place_key *place, struct task_struct *task)
{
	struct nsproxy *namespaces = BPF_CORE_READ(task, nsproxy);

	place->cgroup = cgroups_of(task);
	place->cgroup_namespace = BPF_CORE_READ(namespaces, cgroup_ns, ns.inum);
	place->mount_namespace = BPF_CORE_READ(namespaces, mnt_ns, ns.inum);
	place->level = BPF_CORE_READ(task, group_leader, thread_pid, level);
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

/* Fills in everything about a task that an event may be asked for. */
__noinline int describe(u64 task_address, u32 kind)
{
	struct scratch *s = working_memory();
	struct task_struct *task = (void *)task_address;
	struct task_struct *leader, *parent;
	struct place_key place;
	struct header *h;

	if (!s)
		return -1;
	h = &s->header;
	h->size = sizeof(*h);
	h->kind = kind;
	locate(&place, task);
	h->flags = bpf_map_lookup_elem(&places, &place) ? 0 : FLAG_NEW_PLACE;
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
	h->cgroup = place.cgroup;
	h->socketcall = 0;
	h->nr = 0;
	bpf_core_read(&h->comm, sizeof(h->comm), &leader->comm);
	h->mount_namespace = place.mount_namespace;
	h->cgroup_namespace = place.cgroup_namespace;
	ids(h, task, leader);
	credentials(h, task);
	h->vm_pages = 0;
	h->resident_pages = 0;
	memory_use(h, task);
	return 0;
}

/* The path of a cgroup, as components from the last to the first. */
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
	take_cgroup((u64)first, BPF_CORE_READ(group, root, hierarchy_id));
	for (u32 i = 0; i < SUBSYSTEMS; i++) {
		struct kernfs_node *node;

		group = cgroup_of(set, i);
		node = group ? BPF_CORE_READ(group, kn) : NULL;
		if (!node || node == last)
			continue;
		last = node;
		take_cgroup((u64)node, BPF_CORE_READ(group, root, hierarchy_id));
	}
	return 0;
}

#endif
