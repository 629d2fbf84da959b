// The least that a supervisor by seccomp user notification can do for the calls that the stock rules
// need of a program that starts others: take the notification, read the path, let the call go on. What
// it costs is the kernel's share of the price of `tollgate run`; see floor.toml.
//
//   cc -O2 -o target/floor crates/bench/plans/floor.c && target/floor CMD ARGS...
//
// With FLOOR_STOP=1 in the environment every execve is also stopped once by ptrace, which is what
// it takes to see that the new program has been reached. With FLOOR_CONFIRM=1 it is not stopped: the next
// call of the process, its end, or the first look after FLOOR_CONFIRM_US microseconds (2000) shows whether
// it has another address space than before. With FLOOR_CONFIRM=believe its next call is believed to be the new
// program's. The totals go to standard error (docs/adr/0090).
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/kcmp.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#ifndef SECCOMP_IOCTL_NOTIF_SET_FLAGS
#define SECCOMP_IOCTL_NOTIF_SET_FLAGS SECCOMP_IOW(4, __u64)
#define SECCOMP_USER_NOTIF_FD_SYNC_WAKE_UP 1
#endif

#define NOTIFY(nr)                               \
    BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, nr, 0, 1), \
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_USER_NOTIF)

struct passing {
    struct msghdr message;
    struct iovec byte;
    char control[CMSG_SPACE(sizeof(int))];
    char data;
};

static struct cmsghdr *prepare(struct passing *passing)
{
    memset(passing, 0, sizeof *passing);
    passing->byte = (struct iovec){&passing->data, 1};
    passing->message.msg_iov = &passing->byte;
    passing->message.msg_iovlen = 1;
    passing->message.msg_control = passing->control;
    passing->message.msg_controllen = sizeof passing->control;
    return (struct cmsghdr *)passing->control;
}

static void fail(const char *what)
{
    perror(what);
    _exit(99);
}

static void send_descriptor(int over, int fd)
{
    struct passing passing;
    struct cmsghdr *header = prepare(&passing);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof fd);
    memcpy(CMSG_DATA(header), &fd, sizeof fd);
    if (sendmsg(over, &passing.message, 0) != 1)
        fail("floor: sendmsg");
}

static int receive_descriptor(int over)
{
    struct passing passing;
    struct cmsghdr *header = prepare(&passing);
    int fd;
    if (recvmsg(over, &passing.message, 0) != 1)
        fail("floor: recvmsg");
    memcpy(&fd, CMSG_DATA(header), sizeof fd);
    return fd;
}

static int listener;
static int stops;
static int confirms;
static int believes;

// An exec that was let go, until it is known whether it happened.
struct awaited {
    pid_t pid;
    pid_t parent;
    int pidfd;
    // Its address space before: reads end at once when nobody has that any more.
    int memory;
    // A mapped address in it.
    __u64 address;
    int shared;
};

enum { SLOTS = 4096 };
static struct awaited awaited[SLOTS];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
enum outcome { OPEN, HAPPENED, FAILED, ENDED, UNCLEAR, OUTCOMES };
static const char *const names[] = {"open", "happened", "failed", "ended", "unclear"};
enum { AT_CALL, AT_LOOK, PLACES };
static long totals[PLACES][OUTCOMES];
static long lost, readlinks;

static pid_t parent_of(pid_t pid)
{
    char path[64], text[512];
    snprintf(path, sizeof path, "/proc/%d/stat", pid);
    int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0)
        return 0;
    ssize_t got = read(file, text, sizeof text - 1);
    close(file);
    text[got > 0 ? got : 0] = 0;
    char *end = strrchr(text, ')');
    return end ? atoi(end + 4) : 0;
}

static int has_same_memory(pid_t one, pid_t other)
{
    return syscall(SYS_kcmp, one, other, KCMP_VM, 0, 0) == 0;
}

static void await(pid_t pid, __u64 address)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/mem", pid);
    struct awaited *slot = &awaited[pid % SLOTS];
    pthread_mutex_lock(&lock);
    lost += slot->pid != 0;
    slot->pid = pid;
    if (believes) {
        pthread_mutex_unlock(&lock);
        return;
    }
    slot->pidfd = (int)syscall(SYS_pidfd_open, pid, 0);
    slot->memory = open(path, O_RDONLY | O_CLOEXEC);
    slot->address = address;
    slot->parent = parent_of(pid);
    slot->shared = slot->parent && has_same_memory(pid, slot->parent);
    pthread_mutex_unlock(&lock);
}

static enum outcome look(struct awaited *slot)
{
    char byte;
    // An address space that somebody else keeps says nothing; the parent of a vfork waits for the exec.
    if (slot->shared)
        return has_same_memory(slot->pid, slot->parent) ? OPEN : HAPPENED;
    return pread(slot->memory, &byte, 1, (off_t)slot->address) == 0 ? HAPPENED : OPEN;
}

static void settle(struct awaited *slot, int at_call)
{
    enum outcome found = believes ? HAPPENED : look(slot);
    struct pollfd end = {slot->pidfd, POLLIN, 0};
    if (believes)
        ;
    else if (slot->pidfd < 0 || slot->memory < 0)
        found = UNCLEAR;
    else if (poll(&end, 1, 0) == 1)
        // Its address space is gone, too.
        found = ENDED;
    else if (at_call && found == OPEN)
        found = FAILED;
    if (found == HAPPENED) {
        char path[64], program[256];
        snprintf(path, sizeof path, "/proc/%d/exe", slot->pid);
        readlinks += readlink(path, program, sizeof program) > 0;
    }
    if (found == OPEN)
        return;
    totals[at_call ? AT_CALL : AT_LOOK][found]++;
    if (!believes) {
        close(slot->pidfd);
        close(slot->memory);
    }
    slot->pid = 0;
}

static void settle_at_call(pid_t pid)
{
    struct awaited *slot = &awaited[pid % SLOTS];
    pthread_mutex_lock(&lock);
    if (slot->pid == pid)
        settle(slot, 1);
    pthread_mutex_unlock(&lock);
}

static void look_at_all(void)
{
    pthread_mutex_lock(&lock);
    for (struct awaited *slot = awaited; slot < awaited + SLOTS; slot++)
        if (slot->pid)
            settle(slot, 0);
    pthread_mutex_unlock(&lock);
}

static void *keep_looking(void *unused)
{
    const char *pause = getenv("FLOOR_CONFIRM_US");
    for (;;) {
        usleep(pause ? (useconds_t)atoi(pause) : 2000);
        look_at_all();
    }
    return unused;
}

static void report(void)
{
    look_at_all();
    for (int at = 0; at < PLACES; at++)
        for (int what = HAPPENED; what < OUTCOMES; what++)
            fprintf(stderr, "%s %s %ld\n", at ? "look" : "call", names[what], totals[at][what]);
    fprintf(stderr, "lost %ld programs %ld\n", lost, readlinks);
}

static void *serve(void *unused)
{
    char path[256];
    (void)unused;
    for (;;) {
        struct seccomp_notif call;
        memset(&call, 0, sizeof call);
        if (ioctl(listener, SECCOMP_IOCTL_NOTIF_RECV, &call)) {
            if (errno == EINTR || errno == ENOENT)
                continue;
            return NULL;
        }
        if (call.data.nr != SYS_dup2) {
            __u64 from = call.data.args[call.data.nr == SYS_openat ? 1 : 0];
            // No further than the next multiple of 256, so that no other page is touched.
            size_t most = sizeof path - (from & (sizeof path - 1));
            struct iovec to = {path, most}, of = {(void *)from, most};
            process_vm_readv(call.pid, &to, 1, &of, 1, 0);
        }
        if (confirms)
            settle_at_call((pid_t)call.pid);
        if (confirms && call.data.nr == SYS_execve)
            await((pid_t)call.pid, call.data.args[0]);
        int stop = stops && call.data.nr == SYS_execve &&
                   !ptrace(PTRACE_SEIZE, call.pid, 0, PTRACE_O_TRACEEXEC);
        if (stop)
            ptrace(PTRACE_INTERRUPT, call.pid, 0, 0);
        struct seccomp_notif_resp answer = {
            .id = call.id, .flags = SECCOMP_USER_NOTIF_FLAG_CONTINUE};
        ioctl(listener, SECCOMP_IOCTL_NOTIF_SEND, &answer);
        if (stop) {
            int status;
            waitpid(call.pid, &status, __WALL);
            ptrace(PTRACE_DETACH, call.pid, 0, 0);
        }
    }
}

int main(int argc, char **argv)
{
    int pair[2];
    if (argc < 2) {
        fprintf(stderr, "floor: which program? floor CMD ARGS...\n");
        return 99;
    }
    stops = getenv("FLOOR_STOP") != NULL;
    const char *how = getenv("FLOOR_CONFIRM");
    confirms = how != NULL;
    believes = confirms && !strcmp(how, "believe");
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, pair))
        fail("floor: socketpair");
    pid_t child = fork();
    if (!child) {
        struct sock_filter code[] = {
            BPF_STMT(BPF_LD | BPF_W | BPF_ABS, 0), NOTIFY(SYS_openat), NOTIFY(SYS_execve),
            NOTIFY(SYS_dup2), BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)};
        struct sock_fprog filter = {sizeof code / sizeof *code, code};
        prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
        long fd = syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER,
                          SECCOMP_FILTER_FLAG_NEW_LISTENER |
                              SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV, &filter);
        if (fd < 0)
            fail("floor: seccomp");
        send_descriptor(pair[0], (int)fd);
        close((int)fd);
        execvp(argv[1], argv + 1);
        fail("floor: execvp");
    }
    listener = receive_descriptor(pair[1]);
    if (ioctl(listener, SECCOMP_IOCTL_NOTIF_SET_FLAGS, SECCOMP_USER_NOTIF_FD_SYNC_WAKE_UP))
        fail("floor: synchronous wake-up");
    pthread_t server;
    int status;
    if (pthread_create(&server, NULL, serve, NULL))
        fail("floor: pthread_create");
    pthread_t looks;
    if (confirms && !believes && pthread_create(&looks, NULL, keep_looking, NULL))
        fail("floor: pthread_create");
    // Not the stops that the serving thread waits for: they would end the wait of this one.
    if (waitpid(child, &status, __WNOTHREAD) != child)
        fail("floor: waitpid");
    if (confirms)
        report();
    _exit(WIFEXITED(status) ? WEXITSTATUS(status) : 99);
}
