#!/usr/bin/env python3
"""Counts the agent's system calls for each start in traces of `strace -f -p AGENT -o FILE` below a load of starts.

    calls.py BEFORE AFTER
"""

import collections
import re
import sys


def count(path):
    """Counts from the first to the last exec, without the calls that only a debug build makes (fcntl, getpid)."""
    lines = [line for line in open(path, errors="replace") if "resumed>" not in line]
    stops = [number for number, line in enumerate(lines) if "PTRACE_SEIZE" in line]
    # The first belong to the shell that starts the load.
    first, last = stops[len(stops) // 5], stops[-1]
    starts = sum(first <= stop < last for stop in stops)
    thread = lines[first].split()[0]
    calls = collections.Counter()
    for line in lines[first:last]:
        found = re.match(r"(\d+) +(\w+)\((\w*)", line)
        if not found or found[1] != thread or found[2] in ("fcntl", "getpid"):
            continue
        name = found[2]
        for request in re.findall(r"SECCOMP_IOCTL_NOTIF_\w+|PTRACE_(?:SEIZE|INTERRUPT|DETACH|GET_SYSCALL_INFO)", line[:120]):
            name += " " + request
            break
        calls[name] += 1
    return {name: number / starts for name, number in calls.items()}, starts


def main():
    before, starts = count(sys.argv[1])
    after, again = count(sys.argv[2])
    print(f"| call | before ({starts} starts) | after ({again} starts) |")
    print("|---|---|---|")
    for name in sorted(before | after, key=lambda name: -before.get(name, 0)):
        print(f"| {name} | {before.get(name, 0):.2f} | {after.get(name, 0):.2f} |")
    print(f"| all | {sum(before.values()):.1f} | {sum(after.values()):.1f} |")


if __name__ == "__main__":
    main()
