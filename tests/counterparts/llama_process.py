"""llama.cpp's own server as a process: the package xllamacpp has it inside a Python module."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from backend.weights import embedded_path
from tests.support.processes import first_line

START_DEADLINE_S = 60.0
STOP_DEADLINE_S = 10.0
MODEL = "smollm2"


@dataclass(frozen=True, slots=True)
class LlamaProcess:
    """A running server."""

    process: subprocess.Popen[str]
    url: str
    model: str = MODEL


def start(port: int) -> subprocess.Popen[str]:
    """Begins to start it."""
    return subprocess.Popen(
        [sys.executable, "-m", "tests.counterparts.llama_server", str(port), MODEL, str(embedded_path())],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        cwd=Path(__file__).parents[2],
    )


@contextmanager
def llama_process() -> Iterator[LlamaProcess]:
    """A server that is ready, on a port of its own choice; it ends with its standard input."""
    process = start(0)
    try:
        yield LlamaProcess(process, first_line(process, START_DEADLINE_S).strip())
    finally:
        stop(process)


def stop(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.close()
    try:
        process.wait(STOP_DEADLINE_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
