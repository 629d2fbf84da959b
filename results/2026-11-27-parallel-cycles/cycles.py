#!/usr/bin/env python3
"""Measures life cycles of containers, side by side: cycles.py BUNDLE STATE ROUNDS CYCLES PARALLEL OUT NAME=COMMAND...

A cycle is `create`, `start` and `delete --force` of a container of the bundle. PARALLEL callers make CYCLES of them in
turn; then comes the next command. The order is reversed in every second round. The first command is what the others
are compared with. Containers that were made before the first round keep what the commands start once.
"""

import json
import os
import statistics
import subprocess
import sys
import threading
import time

GROUP = "/sys/fs/cgroup/cpuacct/cycles"


def processor_ms():
    """The time of the processors that this process, and all that it has started, has used: of the program, of the kernel."""
    with open(f"{GROUP}/cpuacct.usage_user") as user, open(f"{GROUP}/cpuacct.usage_sys") as kernel:
        return [int(user.read()) / 1e6, int(kernel.read()) / 1e6]


def call(command, words):
    begin = time.monotonic()
    subprocess.run(command + words, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                   stderr=subprocess.DEVNULL, check=True)
    return (time.monotonic() - begin) * 1000


def measure(name, command, bundle, number, cycles, parallel):
    verbs = {"create": [], "start": [], "delete": []}
    failures = []

    def caller(which):
        try:
            for cycle in range(cycles // parallel):
                id = f"{name}-{number}-{which}-{cycle}"
                verbs["create"].append(call(command, ["create", "--bundle", bundle, id]))
                verbs["start"].append(call(command, ["start", id]))
                verbs["delete"].append(call(command, ["delete", "--force", id]))
        except subprocess.CalledProcessError as failure:
            failures.append(failure)

    callers = [threading.Thread(target=caller, args=(which,)) for which in range(parallel)]
    before, begin = processor_ms(), time.monotonic()
    for one in callers:
        one.start()
    for one in callers:
        one.join()
    wall = (time.monotonic() - begin) * 1000
    if failures:
        sys.exit(f"cannot measure {name}: {failures[0]}")
    # What the commands have left behind ends.
    time.sleep(0.3)
    used = [(after - early) / cycles for after, early in zip(processor_ms(), before)]
    return {
        "round": number, "subject": name, "wall_ms_per_cycle": round(wall / cycles, 2),
        "user_ms_per_cycle": round(used[0], 2), "kernel_ms_per_cycle": round(used[1], 2),
        "median_ms": {verb: round(statistics.median(times), 2) for verb, times in verbs.items()},
        "load": round(os.getloadavg()[0], 2),
    }


def main():
    bundle, state, rounds, cycles, parallel, out = sys.argv[1:7]
    subjects = [word.split("=", 1) for word in sys.argv[7:]]
    subjects = [(name, command.split() + ["--root", f"{state}/{name}"]) for name, command in subjects]
    os.makedirs(GROUP, exist_ok=True)
    with open(f"{GROUP}/cgroup.procs", "w") as group:
        group.write(str(os.getpid()))
    for name, command in subjects:
        call(command, ["create", "--bundle", bundle, f"first-{name}"])
        call(command, ["start", f"first-{name}"])
    samples = []
    for number in range(int(rounds)):
        for name, command in subjects if number % 2 == 0 else reversed(subjects):
            samples.append(measure(name, command, bundle, number, int(cycles), int(parallel)))
            print(json.dumps(samples[-1]), flush=True)
    for name, command in subjects:
        call(command, ["delete", "--force", f"first-{name}"])
    plan = {"rounds": int(rounds), "cycles": int(cycles), "parallel": int(parallel),
            "subjects": [name for name, _ in subjects]}
    with open(out, "w") as file:
        lines = ",\n".join(json.dumps(sample) for sample in samples)
        file.write(f'{{"plan": {json.dumps(plan)},\n"samples": [\n{lines}\n]}}\n')
    base = {sample["round"]: sample for sample in samples if sample["subject"] == subjects[0][0]}
    for name, _ in subjects:
        own = [sample for sample in samples if sample["subject"] == name]
        wall = statistics.median(sample["wall_ms_per_cycle"] for sample in own)
        ratio = statistics.median(
            sample["wall_ms_per_cycle"] / base[sample["round"]]["wall_ms_per_cycle"] for sample in own)
        used = statistics.median(sample["user_ms_per_cycle"] + sample["kernel_ms_per_cycle"] for sample in own)
        print(f"{name}: wall {wall:.1f} ms a cycle, {ratio:.2f} times; processor {used:.1f} ms a cycle")


main()
