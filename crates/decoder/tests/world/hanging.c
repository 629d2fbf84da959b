// Takes away a page of its argument strings and never answers the userfaultfd that reads of it ask.
// The first argument is some pages long, so that nothing else lies on that page.
// Prints `ready` and waits; exits with 77 where that is not possible.
#define _GNU_SOURCE
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

int main(int argc, char **argv) {
    if (argc < 2 || strlen(argv[1]) < 16384) return 3;
    int fd = (int)syscall(SYS_userfaultfd, O_CLOEXEC);
    struct uffdio_api api = {.api = UFFD_API};
    if (fd < 0 || ioctl(fd, UFFDIO_API, &api)) return 77;
    unsigned long page = ((unsigned long)argv[1] + 4095) & ~4095UL;
    struct uffdio_register range = {
        .range = {.start = page, .len = 4096},
        .mode = UFFDIO_REGISTER_MODE_MISSING,
    };
    if (ioctl(fd, UFFDIO_REGISTER, &range)) return 77;
    if (madvise((void *)page, 4096, MADV_DONTNEED)) return 77;
    puts("ready");
    fflush(stdout);
    pause();
    return 0;
}
