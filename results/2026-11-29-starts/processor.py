#!/usr/bin/env python3
"""Measures the processor time of a command and all that it starts, in a new order each round; prints medians for each operation.

    processor.py ROUNDS SAMPLES OPERATIONS NAME=COMMAND...
"""

import json
import random
import resource
import shlex
import statistics
import subprocess
import sys


def used(command):
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(shlex.split(command), stdout=subprocess.DEVNULL, check=True, timeout=120)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime


def main():
    rounds, path, operations = int(sys.argv[1]), sys.argv[2], int(sys.argv[3])
    commands = dict(argument.split("=", 1) for argument in sys.argv[4:])
    samples = []
    for number in range(rounds):
        order = random.sample(list(commands), len(commands))
        samples.append({"round": number, "seconds": {name: used(commands[name]) for name in order}})
        with open(path, "w", encoding="ascii") as file:
            json.dump({"operations": operations, "commands": commands, "rounds": samples}, file)
    for name in commands:
        times = sorted(sample["seconds"][name] / operations * 1e6 for sample in samples)
        print(f"| {name} | {statistics.median(times):.0f} | {times[0]:.0f} to {times[-1]:.0f} |", flush=True)


if __name__ == "__main__":
    main()
