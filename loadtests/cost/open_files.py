"""How many files, and so sockets, a process may have open."""

import resource

from ..errors import TargetError

OTHER_FILES = 200
"""Open beside connections."""


def allow_files(wanted: int) -> None:
    """Raises this process's soft limit where it is lower. Raises `TargetError` where the hard limit is too low."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    check_files(wanted)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def check_files(wanted: int) -> None:
    """Raises `TargetError` where the hard limit, which children inherit, is lower."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < wanted:
        raise TargetError(
            f"{wanted} open files are needed and the hard limit is {hard}; raise it (ulimit -Hn {wanted})"
        )
