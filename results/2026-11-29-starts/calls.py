#!/usr/bin/env python3
"""Counts the receiver's system calls for each start in traces of `strace -f -p AGENT -o FILE` below a load of starts.

    calls.py BEFORE AFTER
"""

import collections
import gzip
import re
import statistics
import sys


REQUESTS = re.compile("SECCOMP_IOCTL_NOTIF_[A-Z_]+|PTRACE_(?:SEIZE|INTERRUPT|DETACH|GET_SYSCALL_INFO)")


def count(path):
    """Counts from exec to exec of the receiver that has most of them, without fcntl(F_GETFD), by which the standard library
    of a debug build checks each descriptor that it closes; a release makes all the others. The medians leave out the lookups of the files that rules name, which come once a second."""
    with (gzip.open if path.endswith(".gz") else open)(path, "rt", errors="replace") as file:
        lines = [line.split(None, 1) for line in file if "resumed>" not in line]
    seized = collections.Counter(thread for thread, text in lines if "PTRACE_SEIZE" in text)
    receiver = seized.most_common(1)[0][0]
    starts = []
    for thread, text in lines:
        name = re.match(r"\w+", text)
        if thread != receiver or not name or name[0] == "fcntl" and "F_GETFD" in text:
            continue
        request = REQUESTS.search(text[:120])
        if request and request[0] == "PTRACE_SEIZE":
            starts.append(collections.Counter())
        if starts:
            starts[-1][f"{name[0]} {request[0]}" if request else name[0]] += 1
    # The first are those of the shell that starts the load, the last is cut off.
    starts = starts[len(starts) // 5 : -1]
    names = set().union(*starts)
    medians = {name: statistics.median(start[name] for start in starts) for name in names}
    return {name: median for name, median in medians.items() if median}, len(starts)


def main():
    before, starts = count(sys.argv[1])
    after, again = count(sys.argv[2])
    print(f"| call | before ({starts} starts) | after ({again} starts) |")
    print("|---|---|---|")
    for name in sorted(before | after, key=lambda name: (-before.get(name, 0), name)):
        print(f"| {name} | {before.get(name, 0):g} | {after.get(name, 0):g} |")
    print(f"| all | {sum(before.values()):g} | {sum(after.values()):g} |")


if __name__ == "__main__":
    main()
