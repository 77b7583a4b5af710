"""What a process and its children use: processor time, memory, sockets. Linux, from /proc."""

import os
import time
from collections import defaultdict
from pathlib import Path

_PROC = Path("/proc")
_PPID_FIELD = 1  # of /proc/PID/stat, counted behind the command's name


def tree(root: int) -> list[int]:
    """Ids of the process and its descendants that live; empty once it has ended."""
    children = defaultdict(list)
    for entry in os.listdir(_PROC):
        if entry.isdigit() and (fields := _stat(int(entry))) is not None:
            children[int(fields[_PPID_FIELD])].append(int(entry))
    if _stat(root) is None:
        return []
    found = [root]
    for pid in found:
        found += children[pid]
    return found


def cpu_s(pids: list[int]) -> float:
    """Processor seconds so far of those that live, user and system, all threads; to the nanosecond.

    The clock's id is that of clock_getcpuclockid(3): the process id inverted, and 2 for the scheduler's clock.
    """
    total_s = 0.0
    for pid in pids:
        try:
            total_s += time.clock_gettime((~pid << 3) | 2)
        except OSError:  # it has ended
            continue
    return total_s


def resident_bytes(pids: list[int]) -> int:
    """Memory of those that live that is in RAM; pages that they share count for each."""
    total = 0
    for pid in pids:
        try:
            total += int((_PROC / str(pid) / "statm").read_text(encoding="ascii").split()[1])
        except OSError:
            continue
    return total * os.sysconf("SC_PAGE_SIZE")


def num_sockets(pids: list[int]) -> int:
    """Sockets that those that live have open, listening ones included."""
    total = 0
    for pid in pids:
        folder = _PROC / str(pid) / "fd"
        try:
            entries = os.listdir(folder)
        except OSError:
            continue
        total += sum(_is_socket(folder / entry) for entry in entries)
    return total


def _is_socket(path: Path) -> bool:
    try:
        return os.readlink(path).startswith("socket:")
    except OSError:  # closed since it was listed
        return False


def _stat(pid: int) -> list[str] | None:
    """Fields of /proc/PID/stat from the state on; None for a process that has ended, or waits only to be reaped."""
    try:
        # The command's name, in brackets, may hold anything.
        fields = (_PROC / str(pid) / "stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] == "Z" else fields
