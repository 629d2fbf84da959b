#!/usr/bin/env python3
"""Times a workload of `tollgate workload` below several commands, in a new order each round, and compares them.

    starts.py ROUNDS SAMPLES BASE=COMMAND NAME=COMMAND... -- WORKLOAD
    starts.py --against NAME SAMPLES

The second form measures nothing: it compares the commands of an earlier run with another one of them. Each sample is the list of times per operation of the workload's windows. A round counts with its lower quartile, which is what the
load costs while others leave the processors alone; each command is compared with BASE round by round, and the ratio is the median of the
rounds'. The interval resamples rounds.
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


def compare(run, base):
    samples = run["rounds"]
    random.seed(1)
    print(f"{' '.join(run['workload'])}: {len(samples)} rounds, {run['failed']} left out")
    print(f"| command | µs per operation | ratio to {base} | 95 % interval | rounds in which it is slower |")
    print("|---|---|---|---|---|")
    for name in run["commands"]:
        low = lambda sample, one: quantile(sample["windows_ns"][one], 0.25)
        ratios = lambda some: [low(one, name) / low(one, base) for one in some]
        ratio = lambda some: statistics.median(ratios(some))
        time = statistics.median(low(one, name) for one in samples) / 1000
        lower, upper = interval(samples, ratio)
        slower = sum(each > 1 for each in ratios(samples))
        print(f"| {name} | {time:.0f} | {ratio(samples):.3f} | {lower:.3f} to {upper:.3f} | {slower} |")


def main():
    if sys.argv[1] == "--against":
        with open(sys.argv[3], encoding="ascii") as file:
            compare(json.load(file), sys.argv[2])
        return
    rounds, path = int(sys.argv[1]), sys.argv[2]
    split = sys.argv.index("--")
    commands = dict(argument.split("=", 1) for argument in sys.argv[3:split])
    workload = sys.argv[split + 1 :]
    samples, failed = measure(rounds, commands, workload)
    run = {"workload": workload, "commands": commands, "failed": failed, "rounds": samples}
    with open(path, "w", encoding="ascii") as file:
        json.dump(run, file)
    compare(run, next(iter(commands)))


if __name__ == "__main__":
    main()
