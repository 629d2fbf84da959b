/* The kernel's types as far as the programs here use them.
 *
 * Each structure names only the members that are read. `preserve_access_index` has the compiler
 * note every access, and the loader replaces offsets and sizes by those of the running kernel, from
 * its BTF. So this is no copy of a kernel header and fits any version that has the members.
 */
#ifndef TOLLGATE_KERNEL_H
#define TOLLGATE_KERNEL_H

typedef unsigned char __u8;
typedef signed char __s8;
typedef unsigned short __u16;
typedef short __s16;
typedef unsigned int __u32;
typedef int __s32;
typedef unsigned long long __u64;
typedef long long __s64;
typedef __u16 __be16;
typedef __u32 __be32;
typedef __u64 __be64;
typedef __u32 __wsum;
typedef __u16 __sum16;
typedef __u8 u8;
typedef __u16 u16;
typedef __u32 u32;
typedef __s32 s32;
typedef __u64 u64;
typedef __s64 s64;
typedef _Bool bool;

#define true 1
#define false 0
#define NULL ((void *)0)

enum bpf_map_type {
	BPF_MAP_TYPE_HASH = 1,
	BPF_MAP_TYPE_ARRAY = 2,
	BPF_MAP_TYPE_PROG_ARRAY = 3,
	BPF_MAP_TYPE_PERCPU_ARRAY = 6,
	BPF_MAP_TYPE_LRU_HASH = 9,
	BPF_MAP_TYPE_LPM_TRIE = 11,
	BPF_MAP_TYPE_ARRAY_OF_MAPS = 12,
	BPF_MAP_TYPE_HASH_OF_MAPS = 13,
	BPF_MAP_TYPE_RINGBUF = 27,
	BPF_MAP_TYPE_TASK_STORAGE = 29,
};

enum {
	BPF_ANY = 0,
	BPF_NOEXIST = 1,
	BPF_F_NO_PREALLOC = 1,
};

#define BPF_LOCAL_STORAGE_GET_F_CREATE 1

#define BPF_RB_NO_WAKEUP (1ULL << 0)
#define BPF_RB_FORCE_WAKEUP (1ULL << 1)
#define BPF_RB_AVAIL_DATA 0
#define BPF_RB_RING_SIZE 1
#define BPF_RB_CONS_POS 2
#define BPF_RB_PROD_POS 3

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

#if defined(__TARGET_ARCH_x86)
struct pt_regs {
	unsigned long r10;
	unsigned long r9;
	unsigned long r8;
	unsigned long bp;
	unsigned long bx;
	unsigned long cx;
	unsigned long dx;
	unsigned long si;
	unsigned long di;
	unsigned long ax;
	unsigned long orig_ax;
	unsigned long ip;
};

struct thread_info {
	u32 status;
};
#elif defined(__TARGET_ARCH_arm64)
struct pt_regs {
	u64 regs[31];
	u64 sp;
	u64 pc;
	u64 pstate;
	u64 orig_x0;
	s32 syscallno;
};

/* Set in `pstate` of a 32-bit program (arch/arm64/include/uapi/asm/ptrace.h). */
#define PSR_MODE32_BIT 0x10

struct thread_info {
	unsigned long flags;
};
#endif

struct qstr {
	u32 len;
	const unsigned char *name;
};

struct list_head {
	struct list_head *next, *prev;
};

struct hlist_bl_node {
	struct hlist_bl_node *next, **pprev;
};

struct file_system_type {
	const char *name;
};

struct super_block {
	u32 s_dev;
	unsigned long s_flags;
	unsigned long s_magic;
	struct dentry *s_root;
	struct file_system_type *s_type;
	struct block_device *s_bdev;
};

typedef struct {
	u32 val;
} kuid_t;

typedef struct {
	u32 val;
} kgid_t;

struct timespec64 {
	s64 tv_sec;
	long tv_nsec;
};

struct inode {
	u16 i_mode;
	kuid_t i_uid;
	kgid_t i_gid;
	u32 i_flags;
	u32 i_nlink;
	u32 i_rdev;
	struct super_block *i_sb;
	unsigned long i_ino;
	u32 i_generation;
	/* Since 6.11 in two members; until 6.6 i_ctime was public. */
	struct timespec64 i_ctime;
	struct timespec64 i_mtime;
};

struct inode___6_6 {
	struct timespec64 __i_ctime;
};

struct inode___6_7 {
	struct timespec64 __i_mtime;
};

struct inode___6_11 {
	s64 i_ctime_sec;
	u32 i_ctime_nsec;
	s64 i_mtime_sec;
	u32 i_mtime_nsec;
};

struct dentry {
	struct hlist_bl_node d_hash;
	struct dentry *d_parent;
	struct qstr d_name;
	struct inode *d_inode;
	struct super_block *d_sb;
};

/* Of an overlay's file: what it has it from. */
struct ovl_path {
	struct dentry *dentry;
};

struct ovl_entry {
	u32 __numlower;
	struct ovl_path __lowerstack[0];
};

struct ovl_inode {
	struct inode vfs_inode;
	struct dentry *__upperdentry;
	/* Since 6.5. */
	struct ovl_entry *oe;
};

struct ovl_inode___6_4 {
	struct ovl_path lowerpath;
};

struct vfsmount {
	struct dentry *mnt_root;
	int mnt_flags;
};

struct mount {
	struct mount *mnt_parent;
	struct dentry *mnt_mountpoint;
	struct vfsmount mnt;
	int mnt_id;
};

struct mount___6_8 {
	u64 mnt_id_unique;
};

struct path {
	struct vfsmount *mnt;
	struct dentry *dentry;
};

struct file {
	struct path f_path;
	struct inode *f_inode;
	u32 f_flags;
	u32 f_mode;
	void *private_data;
};

struct fdtable {
	unsigned int max_fds;
	struct file **fd;
};

struct files_struct {
	struct fdtable *fdt;
};

struct fs_struct {
	struct path root, pwd;
};

struct in6_addr {
	union {
		u8 u6_addr8[16];
	} in6_u;
};

struct sock_common {
	u32 skc_daddr;
	u32 skc_rcv_saddr;
	u16 skc_dport;
	u16 skc_num;
	u16 skc_family;
	int skc_bound_dev_if;
	volatile unsigned char skc_state;
	struct in6_addr skc_v6_daddr;
	struct in6_addr skc_v6_rcv_saddr;
};

struct sock {
	struct sock_common __sk_common;
	u16 sk_type;
	u16 sk_protocol;
};

struct inet_sock {
	/* The device that IP_UNICAST_IF names. */
	int uc_index;
};

struct socket {
	short type;
	struct sock *sk;
};

struct sockaddr_un {
	u16 sun_family;
	char sun_path[108];
};

struct unix_address {
	int len;
	struct sockaddr_un name[0];
};

struct unix_sock {
	struct unix_address *addr;
	struct path path;
	struct sock *peer;
};

struct sockaddr {
	u16 sa_family;
	char sa_data[14];
};

struct msghdr {
	void *msg_name;
	int msg_namelen;
	unsigned long msg_controllen;
};

struct kernfs_node {
	struct kernfs_node *parent;
	const char *name;
	u64 id;
};

struct kernfs_node___6_15 {
	struct kernfs_node *__parent;
};

struct cgroup_root {
	int hierarchy_id;
};

struct cgroup {
	struct kernfs_node *kn;
	struct cgroup_root *root;
};

struct cgroup_subsys_state {
	struct cgroup *cgroup;
};

struct css_set {
	struct cgroup_subsys_state *subsys[16];
	struct cgroup *dfl_cgrp;
};

struct ns_common {
	unsigned int inum;
};

struct upid {
	int nr;
};

struct pid_namespace {
	unsigned int level;
	struct ns_common ns;
};

struct pid {
	unsigned int level;
	struct upid numbers[1];
};

struct uts_namespace {
	struct ns_common ns;
};

struct mnt_namespace {
	struct ns_common ns;
};

struct cgroup_namespace {
	struct ns_common ns;
};

struct nsproxy {
	struct mnt_namespace *mnt_ns;
	struct pid_namespace *pid_ns_for_children;
	struct cgroup_namespace *cgroup_ns;
};

/* Two words until 6.3, one since. */
typedef struct {
	u64 val;
} kernel_cap_t;

struct cred {
	kuid_t uid;
	kgid_t gid;
	kuid_t euid;
	kgid_t egid;
	kuid_t fsuid;
	kgid_t fsgid;
	kernel_cap_t cap_inheritable;
	kernel_cap_t cap_permitted;
	kernel_cap_t cap_effective;
	kernel_cap_t cap_bset;
};

struct tty_struct {
	struct tty_driver *driver;
	int index;
	struct {
		struct pid *pgrp;
	} ctrl;
};

struct tty_struct___5_9 {
	struct pid *pgrp;
};

struct tty_driver {
	int major;
	int minor_start;
};

typedef struct {
	int counter;
} atomic_t;

struct signal_struct {
	atomic_t live;
	int nr_threads;
	struct pid *pids[4];
	struct tty_struct *tty;
};

struct percpu_counter {
	s64 count;
};

struct mm_struct {
	unsigned long arg_start, arg_end, env_start, env_end;
	struct file *exe_file;
	unsigned long total_vm;
	struct percpu_counter rss_stat[4];
};

typedef struct {
	s64 counter;
} atomic_long_t;

struct mm_rss_stat {
	atomic_long_t count[4];
};

struct mm_struct___6_1 {
	struct mm_rss_stat rss_stat;
};

struct task_struct {
	struct thread_info thread_info;
	int pid;
	int tgid;
	struct task_struct *real_parent;
	struct task_struct *group_leader;
	u64 start_boottime;
	u64 self_exec_id;
	char comm[16];
	const struct cred *real_cred;
	const struct cred *cred;
	struct fs_struct *fs;
	struct files_struct *files;
	struct nsproxy *nsproxy;
	struct signal_struct *signal;
	struct pid *thread_pid;
	struct css_set *cgroups;
	struct mm_struct *mm;
	kuid_t loginuid;
	unsigned int flags;
	struct nameidata *nameidata;
};

/* A path that is being looked up. */
struct nameidata {
	struct filename *name;
};

/* Until 5.4 the member had another name. */
struct task_struct___5_4 {
	u64 real_start_time;
};

struct sigaction {
	void *sa_handler;
	unsigned long sa_flags;
};

struct k_sigaction {
	struct sigaction sa;
};

struct linux_binprm {
	struct file *file;
	const char *filename;
	const char *interp;
};

/* The name of a file that was asked for, in the kernel. */
struct filename {
	const char *name;
	const char *uptr;
};

struct open_how {
	u64 flags;
	u64 mode;
	u64 resolve;
};

/* A call by an io_uring, and at its beginning what an open is made of. */
struct io_kiocb {
	u8 opcode;
	struct {
		s32 res;
	} cqe;
};

struct io_open {
	int dfd;
	u32 file_slot;
	struct filename *filename;
	struct open_how how;
};

/* Since 7.0. */
struct delayed_filename {
	struct filename *__incomplete_filename;
};

struct io_open___7_0 {
	struct delayed_filename filename;
};

#pragma clang attribute pop

#endif
