#!/usr/bin/env python3
"""Puts a shell command that a coding agent is about to run behind `tollgate guard`.

Reads the tool call as JSON from the standard input, and writes the answer to the standard output. Exit
status 2 refuses the call: nothing runs unguarded because this program failed.
"""

import json
import shlex
import shutil
import sys


def main():
    call = json.load(sys.stdin)
    command = call.get("tool_input", {}).get("command")
    if call.get("tool_name") != "Bash" or not command:
        return
    if shutil.which("tollgate") is None:
        sys.exit("tollgate is not in PATH")
    if command.startswith("tollgate guard "):
        return
    guarded = "tollgate guard -- sh -c " + shlex.quote(command)
    answer = {
        "hookEventName": "PreToolUse",
        "permissionDecision": "allow",
        "updatedInput": {**call["tool_input"], "command": guarded},
    }
    json.dump({"hookSpecificOutput": answer}, sys.stdout)


try:
    main()
except (SystemExit, Exception) as error:
    if isinstance(error, SystemExit) and not error.code:
        raise
    print(f"guard-hook: {error}", file=sys.stderr)
    sys.exit(2)
