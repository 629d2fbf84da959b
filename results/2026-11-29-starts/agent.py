#!/usr/bin/env python3
"""Measures the processor time of the agent alone for each start, in a new order each round.

    agent.py ROUNDS SAMPLES OPERATIONS RULES TOLLGATE NAME[=VARIABLE]...

VARIABLE is set for the command of that name. The time of a process is that of its threads in /proc/PID/task/TID/schedstat.
"""

import json
import os
import random
import statistics
import subprocess
import sys


def children(pid):
    tasks = os.listdir(f"/proc/{pid}/task")
    return [int(child) for task in tasks for child in open(f"/proc/{pid}/task/{task}/children").read().split()]


def time_of(pid):
    tasks = os.listdir(f"/proc/{pid}/task")
    return sum(int(open(f"/proc/{pid}/task/{task}/schedstat").read().split()[0]) for task in tasks)


def once(tollgate, rules, operations, variable):
    """The shell waits for a line before the load and after it, so that the agent is read while nothing starts."""
    load = f"echo ready; read go; {tollgate} workload fork_exec --operations {operations} >&2; echo done; read end"
    command = [tollgate, "run", "-q", "-r", rules, "--", "/bin/sh", "-c", load]
    environment = {**os.environ, **({variable: "1"} if variable else {})}
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, env=environment, text=True) as run:
        run.stdout.readline()
        keeper = children(run.pid)[0]
        agent = max(children(keeper), key=lambda pid: len(os.listdir(f"/proc/{pid}/task")))
        before = time_of(agent)
        run.stdin.write("go\n")
        run.stdin.flush()
        run.stdout.readline()
        used = time_of(agent) - before
        run.stdin.close()
    return used / operations


def main():
    rounds, path, operations, rules, tollgate = int(sys.argv[1]), sys.argv[2], int(sys.argv[3]), sys.argv[4], sys.argv[5]
    commands = dict((argument.split("=", 1) + [""])[:2] for argument in sys.argv[6:])
    samples = []
    for number in range(rounds):
        order = random.sample(list(commands), len(commands))
        taken = {name: once(tollgate, rules, operations, commands[name]) for name in order}
        samples.append({"round": number, "nanoseconds_per_start": taken})
        with open(path, "w", encoding="ascii") as file:
            json.dump({"operations": operations, "commands": commands, "rounds": samples}, file)
    base = next(iter(commands))
    print("| command | µs of the agent per start | ratio, median of the rounds | range |")
    print("|---|---|---|---|")
    for name in commands:
        times = [sample["nanoseconds_per_start"][name] for sample in samples]
        ratios = sorted(sample["nanoseconds_per_start"][name] / sample["nanoseconds_per_start"][base] for sample in samples)
        row = f"{statistics.median(times) / 1000:.0f} | {statistics.median(ratios):.3f} | {ratios[0]:.3f} to {ratios[-1]:.3f}"
        print(f"| {name} | {row} |", flush=True)


if __name__ == "__main__":
    main()
