"""`tailgate-backend serve` as a process of its own."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.support.processes import first_line

START_DEADLINE_S = 120.0
STOP_DEADLINE_S = 20.0
COMMAND = str(Path(sys.executable).parent / "tailgate-backend")


@dataclass
class EngineProcess:
    """A server that is ready."""

    process: subprocess.Popen[str]
    url: str
    model: str


@contextmanager
def engine_process(*arguments: str) -> Iterator[EngineProcess]:
    """Start on a free port, wait for the ready line; stop with SIGTERM at the end if it still runs."""
    process = subprocess.Popen(
        [COMMAND, "serve", "--port", "0", "--threads", "1", *arguments],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    try:
        line = first_line(process, START_DEADLINE_S)
        match = re.fullmatch(r"tailgate-backend ready url=(http://127\.0\.0\.1:\d+) model=(\S+)\n", line)
        assert match, f"not a ready line: {line!r}"
        yield EngineProcess(process, match[1], match[2])
    finally:
        if process.poll() is None:
            process.terminate()
        status = process.wait(STOP_DEADLINE_S)
    assert status == 0
