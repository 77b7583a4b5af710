"""`tailgate up`: the bundled engine and a gateway in front of it, as one thing that starts and ends together."""

import os
import signal
import tempfile
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from rich.console import Console

from .app import build_app
from .config import GatewayConfig, parse_config
from .engine_process import EngineError, EngineProcess, Ready, engine_program
from .server import bind, serve, url_of

TRY_IT = """\
tailgate ready url={url} model={model}

  curl {url}/v1/chat/completions -H 'content-type: application/json' -d '{{"model": "{model}",
    "messages": [{{"role": "user", "content": "What is the capital of France?"}}], "temperature": 0}}'

Where a request's time went: curl -i shows it in server-timing; more at {url} and {url}/metrics
Ctrl-C stops both.\
"""
# One Zen 4 core, bf16, the embedded model: 690 prompt tokens/s in chunks of 512, 209 output tokens/s at 8 sequences.
# Only their ratio decides lanes and order; the policies' defaults are those of a GPU, where prompts are cheaper.
ENGINE_COST = {"prefill_s_per_token": 0.0015, "decode_s_per_token": 0.005}
# The engine's own step budget: more prompt tokens than one step computes would only wait inside it.
ENGINE_PREFILL_TOKENS = 512


@dataclass(frozen=True, slots=True)
class UpOptions:
    """What `tailgate up` was asked for."""

    host: str
    port: int
    engine_port: int
    model: str
    access_log: str | None
    engine_arguments: Sequence[str]


class Progress:
    """What the engine says while it loads: one moving line on a terminal, plain lines elsewhere; later, its log.

    Where it dies loading, its last lines are shown in either case, once.
    """

    def __init__(self) -> None:
        self._passed: deque[str] = deque(maxlen=40)
        self._console = Console(stderr=True, highlight=False, markup=False)
        self._status = self._console.status("starting the engine …")
        self._lock = threading.Lock()
        self._is_loading = False

    @contextmanager
    def loading(self) -> Iterator[None]:
        self._is_loading = True
        try:
            if self._console.is_terminal:
                with self._status:
                    yield
            else:
                yield
        except EngineError:
            for text in self._passed:
                self._print(text)
            raise
        finally:
            with self._lock:
                self._is_loading = False

    def line(self, text: str) -> None:
        """A line of the engine's, from whichever thread."""
        with self._lock:
            if self._is_loading and self._console.is_terminal:
                self._status.update(text)
                self._passed.append(text)
            else:
                self._print(text)

    def _print(self, text: str) -> None:
        self._console.print(f"engine: {text}", soft_wrap=True)


def run_up(options: UpOptions) -> int:
    """Runs until a signal, or until the engine dies. The exit code. Raises ListenError, EngineError, ConfigError."""
    # Before an engine is loaded for nothing.
    _check_engine_arguments(options.engine_arguments)
    parse_config(
        {"replicas": [{"url": "http://127.0.0.1"}], "log": {"access": options.access_log}}, source="tailgate up"
    )
    sock = bind(options.host, options.port)
    progress = Progress()
    with sock, _ends_by_exception(), tempfile.TemporaryDirectory(prefix="tailgate-") as folder:
        engine = EngineProcess(_command(options, folder), progress.line)
        try:
            with progress.loading():
                engine.start()
                ready = engine.wait_ready()
            engine.watch(on_death=lambda: os.kill(os.getpid(), signal.SIGTERM))
            config = _config(options, ready, Path(folder))
            gateway = build_app(config)
            text = TRY_IT.format(url=url_of(sock), model=ready.model)

            async def announce() -> None:
                await gateway.pool.wait_available()
                print(text, flush=True)  # noqa: T201 - the command's output

            is_good = serve(gateway, gateway.front, sock, on_listening=announce)
            if engine.has_died:
                raise EngineError(engine.how_it_ended())
            return 0 if is_good else 1
        except KeyboardInterrupt:
            if engine.has_died:
                raise EngineError(engine.how_it_ended()) from None
            return 130
        finally:
            engine.stop()


def _check_engine_arguments(arguments: Sequence[str]) -> None:
    """Raises EngineError for what the engine would take, and the gateway then miss."""
    given = {argument.partition("=")[0] for argument in arguments}
    if "--help" in given:
        raise EngineError("the engine's options are listed by: tailgate-backend serve --help")
    if "--export-tokenizer" in given:
        raise EngineError(
            "--export-tokenizer can't be given here: the gateway needs the engine's tokenizer in a folder of its own; "
            "for another copy: tailgate-backend serve --export-tokenizer FOLDER"
        )


def _command(options: UpOptions, folder: str) -> list[str]:
    return [
        *(engine_program(), "serve", "--model", options.model, "--port", str(options.engine_port)),
        *("--export-tokenizer", folder, *options.engine_arguments),
    ]


def _config(options: UpOptions, ready: Ready, folder: Path) -> GatewayConfig:
    arguments = " ".join(options.engine_arguments)
    replica = {
        "id": "engine",
        "url": ready.url,
        "kind": "tailgate-backend",
        "max_prefill_tokens": ENGINE_PREFILL_TOKENS,
        "priority_scheduling": "--policy priority" in arguments or "--policy=priority" in arguments,
    }
    return parse_config(
        {
            "replicas": [replica],
            "models": [{"name": ready.model, "tokenizer": str(folder)}],
            "default_model": ready.model,
            "policy": {"options": {"cost": ENGINE_COST}},
            "log": {"access": options.access_log},
        },
        source="tailgate up",
    )


@contextmanager
def _ends_by_exception() -> Iterator[None]:
    """SIGTERM and SIGHUP end the command as Ctrl-C does, so that the engine is stopped and nothing is left behind."""

    def interrupt(_signal: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = {number: signal.signal(number, interrupt) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
