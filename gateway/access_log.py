"""The access log: a JSON line per request. Never a prompt, an answer, or anything else a client wrote.

The event loop makes the lines and a thread writes them, several at once, since waking it for each would cost more than
the line. What waits is bounded: a disk that can't keep up costs lines, which are counted, and never a request's time.
"""

import logging
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import IO

import orjson

from .attribution import Record
from .config_errors import ConfigError

logger = logging.getLogger(__name__)

MAX_WAITING = 10_000
GATHER_S = 0.1
"""A line waits so long for others to be written with."""
CLOSE_TIMEOUT_S = 2.0


class AccessLog:
    """`target`: "stderr", a file that is appended to, or None for no log. `wall_clock` gives Unix seconds."""

    def __init__(self, target: str | None, *, wall_clock: Callable[[], float] = time.time) -> None:
        self._target = target
        self._wall_clock = wall_clock
        self._second = -1
        self._second_text = b""
        self._waiting: deque[bytes] = deque()
        self._has_lines = threading.Event()
        self._is_closing = threading.Event()
        self._thread: threading.Thread | None = None
        self.num_dropped = 0
        """Lines that were lost because writing couldn't keep up or failed."""

    def start(self) -> None:
        """Opens the target. Raises ConfigError."""
        if self._target is None:
            return
        if self._target == "stderr":
            file: IO[str] = sys.stderr
        else:
            try:
                file = Path(self._target).open("a", encoding="utf-8")  # noqa: SIM115 - the thread closes it
            except OSError as error:
                problem = f"log.access: {self._target!r} can't be written: {error.strerror}"
                raise ConfigError("the configuration", [problem]) from error
        self._thread = threading.Thread(target=self._write_all, args=(file,), name="access-log", daemon=True)
        self._thread.start()

    def write(self, record: Record) -> None:
        """Takes a finished record. On the event loop."""
        if self._thread is None:
            return
        if len(self._waiting) >= MAX_WAITING:
            self.num_dropped += 1
            return
        fields = orjson.dumps(record.to_dict(), option=orjson.OPT_APPEND_NEWLINE)
        self._waiting.append(b'{"time":"%b",%b' % (self._time(), fields[1:]))
        if not self._has_lines.is_set():
            self._has_lines.set()

    def close(self) -> None:
        """Writes what waits, for at most two seconds. Idempotent."""
        thread, self._thread = self._thread, None
        if thread is not None:
            self._is_closing.set()
            self._has_lines.set()
            thread.join(CLOSE_TIMEOUT_S)  # where the target is stuck, the thread is a daemon

    def _time(self) -> bytes:
        unix_s = self._wall_clock()
        second = int(unix_s)
        if second != self._second:
            self._second = second
            self._second_text = datetime.fromtimestamp(second, UTC).strftime("%Y-%m-%dT%H:%M:%S").encode()
        return b"%b.%03d+00:00" % (self._second_text, int((unix_s - second) * 1e3))

    def _write_all(self, file: IO[str]) -> None:
        while not (self._is_closing.is_set() and not self._waiting):
            self._has_lines.wait()
            self._is_closing.wait(GATHER_S)
            self._has_lines.clear()  # before taking them: one that comes now wakes this thread again
            lines = [self._waiting.popleft() for _ in range(len(self._waiting))]
            try:
                file.write(b"".join(lines).decode())
                file.flush()
            except (OSError, ValueError) as error:  # ValueError: somebody closed stderr
                if not self.num_dropped:
                    logger.warning("the access log can't be written: %s", error)
                self.num_dropped += len(lines)
        if file is not sys.stderr:
            file.close()
