#!/usr/bin/env python3
"""Times a workload of `tollgate workload` below several commands, in a new order each round, and compares them.

    starts.py ROUNDS SAMPLES BASE=COMMAND NAME=COMMAND... -- WORKLOAD

Each sample is the list of times per operation of the workload's windows. A round counts with its lower quartile, which is what the
load costs while others leave the processors alone; BASE is compared with the other commands round by round. The interval resamples rounds.
"""

import json
import random
import shlex
import statistics
import subprocess
import sys


def quantile(values, part):
    values = sorted(values)
    return values[min(len(values) - 1, int(part * len(values)))]


def measure(rounds, commands, workload):
    """Leaves out a round in which a command fails."""
    samples, failed = [], 0
    for number in range(rounds):
        order = list(commands)
        random.shuffle(order)
        windows = {}
        for name in order:
            command = shlex.split(commands[name]) + workload
            run = subprocess.run(command, capture_output=True, text=True, timeout=120)
            try:
                windows[name] = json.loads(run.stdout)["windows"]
            except (ValueError, KeyError):
                failed += 1
                break
        if len(windows) == len(commands):
            samples.append({"round": number, "order": order, "windows_ns": windows})
    return samples, failed


def interval(samples, compare):
    found = sorted(compare(random.choices(samples, k=len(samples))) for _ in range(2000))
    return found[50], found[-51]


def main():
    rounds, path = int(sys.argv[1]), sys.argv[2]
    split = sys.argv.index("--")
    commands = dict(argument.split("=", 1) for argument in sys.argv[3:split])
    workload = sys.argv[split + 1 :]
    samples, failed = measure(rounds, commands, workload)
    with open(path, "w", encoding="ascii") as file:
        json.dump({"workload": workload, "commands": commands, "failed": failed, "rounds": samples}, file)
    base = next(iter(commands))
    print(f"{' '.join(workload)}: {len(samples)} rounds, {failed} left out")
    print("| command | µs per operation | ratio | 95 % interval |")
    print("|---|---|---|---|")
    for name in commands:
        low = lambda sample, one: quantile(sample["windows_ns"][one], 0.25)
        compare = lambda some: statistics.median(low(one, name) / low(one, base) for one in some)
        time = statistics.median(low(one, name) for one in samples) / 1000
        lower, upper = interval(samples, compare)
        print(f"| {name} | {time:.0f} | {compare(samples):.3f} | {lower:.3f} to {upper:.3f} |")


if __name__ == "__main__":
    main()
