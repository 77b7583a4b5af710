"""The access log: a JSON line per request. Never a prompt, an answer, or anything else a client wrote.

The event loop only puts records into a bounded queue; a thread writes. A disk that can't keep up costs lines, which
are counted, and never a request's time.
"""

import logging
import queue
import sys
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import IO

import orjson

from .attribution import Record

logger = logging.getLogger(__name__)

MAX_WAITING = 10_000
BATCH = 256
CLOSE_TIMEOUT_S = 2.0

_Item = tuple[float, Record] | None


class AccessLog:
    """`target`: "stderr", a file that is appended to, or None for no log. `wall_clock` gives Unix seconds."""

    def __init__(self, target: str | None, *, wall_clock: Callable[[], float] = time.time) -> None:
        self._target = target
        self._wall_clock = wall_clock
        self._queue: queue.Queue[_Item] = queue.Queue(MAX_WAITING)
        self._thread: threading.Thread | None = None
        self.num_dropped = 0
        """Lines that were lost because writing couldn't keep up or failed."""

    def start(self) -> None:
        """Opens the target. Raises OSError."""
        if self._target is None:
            return
        if self._target == "stderr":
            file: IO[str] = sys.stderr
        else:
            file = Path(self._target).open("a", encoding="utf-8")  # noqa: SIM115 - the thread closes it
        self._thread = threading.Thread(target=self._write_all, args=(file,), name="access-log", daemon=True)
        self._thread.start()

    def write(self, record: Record) -> None:
        """Takes a finished record; it must not change any more."""
        if self._thread is None:
            return
        try:
            self._queue.put_nowait((self._wall_clock(), record))
        except queue.Full:
            self.num_dropped += 1

    def close(self) -> None:
        """Writes what waits, for at most two seconds. Idempotent."""
        thread, self._thread = self._thread, None
        if thread is None:
            return
        try:
            self._queue.put(None, timeout=CLOSE_TIMEOUT_S)
        except queue.Full:
            return  # the target is stuck; the thread is a daemon
        thread.join(CLOSE_TIMEOUT_S)

    def _write_all(self, file: IO[str]) -> None:
        is_open = True
        while is_open:
            batch = [self._queue.get()]
            while len(batch) < BATCH and not self._queue.empty():
                batch.append(self._queue.get())
            is_open = None not in batch
            lines = [_line(*item) for item in batch if item is not None]
            try:
                file.write("".join(lines))
                file.flush()
            except (OSError, ValueError) as error:  # ValueError: somebody closed stderr
                if not self.num_dropped:
                    logger.warning("the access log can't be written: %s", error)
                self.num_dropped += len(lines)
        if file is not sys.stderr:
            file.close()


def _line(unix_s: float, record: Record) -> str:
    when = datetime.fromtimestamp(unix_s, UTC).isoformat(timespec="milliseconds")
    return orjson.dumps({"time": when, **record.to_dict()}).decode() + "\n"
