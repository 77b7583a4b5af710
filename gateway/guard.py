"""Becomes another program that can't outlive its parent: `python -m gateway.guard PARENT_PID PROGRAM [ARGUMENT …]`.

On Linux the kernel is asked to kill this process when its parent dies, however that dies; the request survives exec.
Other systems have nothing like it: there, a parent that is killed hard leaves the program running.
"""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1  # linux/prctl.h


def main(arguments: list[str]) -> None:
    """Doesn't return. Exits with 1 when the parent is gone already."""
    parent, program = int(arguments[0]), arguments[1:]
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it died before the kernel was asked
        sys.exit(1)
    os.execv(program[0], program)


if __name__ == "__main__":
    main(sys.argv[1:])
