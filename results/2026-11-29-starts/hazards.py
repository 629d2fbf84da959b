#!/usr/bin/env python3
"""What floor.c sees of execs that it does not stop (FLOOR_CONFIRM=1), for each hazard: 40 execs each, one a line.

    cc -O2 -o target/floor crates/bench/plans/floor.c -lpthread
    python3 results/2026-11-29-starts/hazards.py target/floor
"""

import os
import signal
import struct
import subprocess
import sys
import tempfile

TIMES = 40
BUSYBOX = "/bin/busybox"


def fork_and(start):
    """Forks a child that becomes another program, or fails and ends."""
    child = os.fork()
    if child:
        return child
    try:
        start()
    finally:
        os._exit(7)


def each(start, wait=lambda child: os.waitpid(child, 0)):
    for _ in range(TIMES):
        wait(fork_and(start))


def broken(folder):
    """A static program whose first segment is where no memory can be: the kernel kills it after it has given up the old one."""
    image = bytearray(open(BUSYBOX, "rb").read())
    offset, size, count = struct.unpack_from("<Q", image, 32)[0], *struct.unpack_from("<HH", image, 54)
    for number in range(count):
        at = offset + number * size
        if struct.unpack_from("<I", image, at)[0] == 1:
            struct.pack_into("<Q", image, at + 16, 0xFFFF800000000000)
    path = os.path.join(folder, "broken")
    with open(path, "wb") as file:
        file.write(image)
    os.chmod(path, 0o755)
    return path


def kill_at_once(child):
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)


def from_a_thread():
    import threading

    thread = threading.Thread(target=lambda: os.execv("/bin/true", ["true"]))
    thread.start()
    thread.join()


def filtered():
    """Openat fails in the new program by a filter of its own."""
    import ctypes

    code = struct.pack("<HBBI", 0x20, 0, 0, 0) + struct.pack("<HBBI", 0x15, 0, 1, 257)
    code += struct.pack("<HBBI", 6, 0, 0, 0x00050001) + struct.pack("<HBBI", 6, 0, 0, 0x7FFF0000)
    buffer = ctypes.create_string_buffer(code)
    program = struct.pack("<HxxxxxxQ", 4, ctypes.addressof(buffer))
    libc = ctypes.CDLL(None)
    libc.prctl(38, 1, 0, 0, 0)
    libc.prctl(22, 2, ctypes.c_char_p(program), 0, 0)
    os.execv("/bin/true", ["true"])


def replaced(folder):
    """Two programs, one of them static, take turns under one name."""
    name = os.path.join(folder, "turns")
    swapper = os.fork()
    if not swapper:
        for turn in range(200000):
            link = f"{name}.{turn % 2}"
            try:
                os.symlink(BUSYBOX if turn % 2 else "/bin/true", link)
                os.rename(link, name)
            except OSError:
                pass
        os._exit(0)
    each(lambda: os.execv(name, ["true"]))
    os.kill(swapper, signal.SIGKILL)
    os.waitpid(swapper, 0)


def many():
    running = [fork_and(lambda: os.execv("/bin/true", ["true"])) for _ in range(TIMES)]
    for child in running:
        os.waitpid(child, 0)


def hazards(folder):
    script = os.path.join(folder, "script")
    with open(script, "w", encoding="ascii") as file:
        file.write("#!/bin/sh\nexit 0\n")
    os.chmod(script, 0o755)
    hidden = os.path.join(folder, "hidden")
    subprocess.run(["cp", "/bin/true", hidden], check=True)
    os.chmod(hidden, 0o111)
    os.chmod(folder, 0o755)
    shell = "/bin/sh"

    def unreadable():
        os.setuid(65534)
        os.execv(hidden, ["true"])

    return {
        "nothing": lambda: None,
        "dynamic": lambda: each(lambda: os.execv("/bin/true", ["true"])),
        "vfork": lambda: [os.waitpid(os.posix_spawn("/bin/true", ["true"], {}), 0) for _ in range(TIMES)],
        "static": lambda: each(lambda: os.execv(BUSYBOX, ["busybox", "true"])),
        "script": lambda: each(lambda: os.execv(script, [script])),
        "missing": lambda: each(lambda: os.execv(script + "x", ["x"])),
        "late failure": lambda: each(lambda: os.execv(broken(folder), ["broken"])),
        "not the leader": lambda: each(from_a_thread),
        "two in a row": lambda: each(lambda: os.execv(shell, [shell, "-c", "exec /bin/true"])),
        "two static in a row": lambda: each(lambda: os.execv(BUSYBOX, ["sh", "-c", "exec /bin/busybox true"])),
        "killed at once": lambda: each(lambda: os.execv("/bin/true", ["true"]), kill_at_once),
        "replaced": lambda: replaced(folder),
        "unreadable": lambda: each(unreadable),
        "own filter": lambda: each(filtered),
        "in parallel": many,
    }


def main():
    if sys.argv[1] == "--play":
        hazards(sys.argv[3])[sys.argv[2]]()
        return
    floor = os.path.abspath(sys.argv[1])
    heads = ["happened", "failed", "ended", "unclear"]
    print("| hazard | " + " | ".join(f"{at}: {head}" for at in ("call", "look") for head in heads) + " | lost |")
    print("|" + "---|" * 10)
    with tempfile.TemporaryDirectory() as folder:
        broken(folder)
        for name in hazards(folder):
            command = [floor, sys.executable, __file__, "--play", name, folder]
            run = subprocess.run(command, env={**os.environ, "FLOOR_CONFIRM": "1"}, capture_output=True, text=True, timeout=120)
            lines = dict(line.rsplit(" ", 1) for line in run.stderr.splitlines() if line[:4] in ("call", "look"))
            lost = next((line.split()[1] for line in run.stderr.splitlines() if line.startswith("lost")), "?")
            row = [lines.get(f"{at} {head}", "?") for at in ("call", "look") for head in heads]
            print(f"| {name} | " + " | ".join(row) + f" | {lost} |")


if __name__ == "__main__":
    main()
