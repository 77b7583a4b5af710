"""The commands as real processes, on port 0."""

import asyncio
import contextlib
import queue
import subprocess
import sys
import threading
from collections.abc import Iterator

import httpx

DEADLINE_S = 30.0


class Process:
    """A command whose output is read as it comes."""

    def __init__(self, *arguments: str) -> None:
        self.popen = subprocess.Popen(
            [sys.executable, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    async def url(self) -> str:
        """From the line that says it is ready."""
        assert self.popen.stdout is not None
        async with asyncio.timeout(DEADLINE_S):
            line = await asyncio.to_thread(self.popen.stdout.readline)
        assert line.startswith("tailgate ready url="), line
        return line.split()[2].removeprefix("url=")

    async def ended(self) -> int:
        """Its exit code, once it has ended."""
        async with asyncio.timeout(DEADLINE_S):
            return await asyncio.to_thread(self.popen.wait)

    def errors(self) -> str:
        """What it wrote to stderr, to its end."""
        assert self.popen.stderr is not None
        return self.popen.stderr.read()


def first_line(process: subprocess.Popen[str], deadline_s: float) -> str:
    """Of its output, which is a pipe. Raises queue.Empty where none comes in time."""
    lines: queue.Queue[str] = queue.Queue()
    stdout = process.stdout
    assert stdout is not None
    threading.Thread(target=lambda: lines.put(stdout.readline()), daemon=True).start()
    return lines.get(timeout=deadline_s)


@contextlib.contextmanager
def running(*arguments: str) -> Iterator[Process]:
    """Python with these arguments; killed where it still runs at the end."""
    process = Process(*arguments)
    try:
        yield process
    finally:
        if process.popen.poll() is None:
            process.popen.kill()
        process.popen.communicate()


def tailgate(*arguments: str) -> contextlib.AbstractContextManager[Process]:
    """The gateway's command."""
    return running("-c", "from gateway.cli import main; main()", *arguments)


async def ready(client: httpx.AsyncClient, status: int = 200) -> None:
    """Waits for this status of /readyz."""
    async with asyncio.timeout(DEADLINE_S):
        while (await client.get("/readyz")).status_code != status:  # noqa: ASYNC110 - another process's state
            await asyncio.sleep(0.01)
