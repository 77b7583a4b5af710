"""`tailgate up`: engine and gateway as one thing that starts and ends together, whatever ends it."""

import asyncio
import contextlib
import io
import os
import signal
import subprocess
import sys
from pathlib import Path

import httpx
import psutil  # type: ignore[import-untyped]
import pytest
from rich.console import Console
from typer.testing import CliRunner

from gateway.cli import app
from gateway.engine_process import EngineError
from gateway.up import Progress
from tests.support.processes import Process, running

from .tiny_replica import until

FAKE_ENGINE = """
import http.server, json, os, signal, sys, threading
print("loading weights", file=sys.stderr, flush=True)
mode = sys.argv[sys.argv.index("--mode") + 1] if "--mode" in sys.argv else "good"
folder = sys.argv[sys.argv.index("--export-tokenizer") + 1]
if mode == "dies":
    print("no such model: frobnicate", file=sys.stderr)
    sys.exit(3)
if mode == "stuck":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
from tokenizers import Tokenizer, models
Tokenizer(models.BPE()).save(folder + "/tokenizer.json")
PAGES = {"/health": {}, "/v1/models": {"data": [{"id": "fake", "owned_by": "tailgate"}]}}
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        body = json.dumps(PAGES.get(self.path, {})).encode()
        self.send_response(200 if self.path in PAGES else 404)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def log_message(self, *_): pass
server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
print(f"tailgate-backend ready url=http://127.0.0.1:{server.server_port} model=fake", flush=True)
server.serve_forever()
"""


def up(engine: Path, *engine_arguments: str) -> contextlib.AbstractContextManager[Process]:
    code = (
        "import sys, gateway.up as up, gateway.cli as cli, gateway.engine_process as engine_process\n"
        f"up._command = lambda options, folder: [sys.executable, {str(engine)!r},"
        " '--export-tokenizer', folder, *options.engine_arguments]\n"
        "engine_process.STOP_GRACE_S = 1.0\n"
        "cli.main()"
    )
    return running("-c", code, "up", "--port", "0", "--", *engine_arguments)


@pytest.fixture
def engine(tmp_path: Path) -> Path:
    file = tmp_path / "engine.py"
    file.write_text(FAKE_ENGINE)
    return file


def child_of(process: Process) -> psutil.Process:
    (child,) = psutil.Process(process.popen.pid).children()
    return child


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--help"], "tailgate-backend serve --help"),
        (["--threads", "1", "--help"], "tailgate-backend serve --help"),
        (["--export-tokenizer", "/tmp/x"], "--export-tokenizer can't be given here"),
        (["--export-tokenizer=/tmp/x"], "--export-tokenizer can't be given here"),
    ],
)
def test_up_refuses_engine_options_that_it_could_not_follow(arguments: list[str], told: str) -> None:
    """In words, before an engine is started: it would show its help to nobody, or export to where nobody looks."""
    result = CliRunner().invoke(app, ["up", "--port", "0", "--", *arguments])
    assert result.exit_code == 1
    assert told in result.output
    assert "exit code" not in result.output


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
async def test_up_starts_and_ends_both(engine: Path, number: signal.Signals) -> None:
    """Ready means that requests can be served; one signal ends the gateway, then the engine."""
    with up(engine) as process:
        url = await process.url()
        child = child_of(process)
        async with httpx.AsyncClient(base_url=url, trust_env=False) as client:
            assert (await client.get("/readyz")).status_code == 200
        process.popen.send_signal(number)
        assert await process.ended() == 0
        assert not child.is_running()


async def test_up_kills_an_engine_that_does_not_end(engine: Path) -> None:
    """After its grace."""
    with up(engine, "--mode", "stuck") as process:
        await process.url()
        child = child_of(process)
        process.popen.send_signal(signal.SIGTERM)
        assert await process.ended() == 0
        assert not child.is_running()


async def test_up_shows_why_the_engine_died(engine: Path) -> None:
    """Its own words, and exit code 1."""
    with up(engine, "--mode", "dies") as process:
        assert await process.ended() == 1
        errors = process.errors()
        assert "the engine ended with exit code 3" in errors
        assert errors.count("no such model: frobnicate") == 1


def test_what_passed_by_on_a_terminal_is_shown_when_the_engine_dies(monkeypatch: pytest.MonkeyPatch) -> None:
    """The moving line shows one at a time; the reason is among those before."""
    output = io.StringIO()
    monkeypatch.setattr("gateway.up.Console", lambda **_: Console(file=output, force_terminal=True))
    progress = Progress()

    def load() -> None:
        with progress.loading():
            progress.line("no such model: frobnicate")
            progress.line("known: others")
            raise EngineError("the engine ended with exit code 3")

    with pytest.raises(EngineError):
        load()
    assert "engine: no such model: frobnicate\nengine: known: others\n" in output.getvalue()


async def test_up_ends_when_the_engine_dies_later(engine: Path) -> None:
    """A gateway in front of nothing is no use."""
    with up(engine) as process:
        await process.url()
        child_of(process).kill()
        assert await process.ended() == 1
        assert "killed by signal 9" in process.errors()


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux can tie a process to its parent")
async def test_a_killed_gateway_takes_the_engine_with_it(engine: Path) -> None:
    """Even by SIGKILL."""
    with up(engine) as process:
        await process.url()
        child = child_of(process)
        os.kill(process.popen.pid, signal.SIGKILL)
        await process.ended()
        await until(lambda: not child.is_running() or child.status() == psutil.STATUS_ZOMBIE)


async def test_up_can_be_interrupted_while_the_engine_loads(tmp_path: Path) -> None:
    """Nothing is left behind."""
    slow = tmp_path / "engine.py"
    slow.write_text("import sys, time\nprint('loading', file=sys.stderr, flush=True)\ntime.sleep(600)\n")
    with up(slow) as process:
        assert process.popen.stderr is not None
        line = await asyncio.to_thread(process.popen.stderr.readline)
        assert "engine: loading" in line
        child = child_of(process)
        process.popen.send_signal(signal.SIGTERM)
        assert await process.ended() == 130
        assert not child.is_running()


def test_the_guard_refuses_a_parent_that_is_gone() -> None:
    """The engine isn't started for nobody."""
    result = subprocess.run(
        [sys.executable, "-m", "gateway.guard", "1", sys.executable, "-c", "print('ran')"],
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert (result.returncode, result.stdout) == (1, "")
