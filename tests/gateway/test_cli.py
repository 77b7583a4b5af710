"""The command line: what it teaches, what it refuses, and how it ends. Processes are real ones on port 0."""

import asyncio
import signal
import socket
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

import httpx
import pytest
from typer.testing import CliRunner

from gateway.cli import app
from gateway.server import ListenError, _allow_files, bind, url_of
from tests.support.fake_replica import FakeReplica, answers
from tests.support.processes import DEADLINE_S, ready, tailgate

from .tiny_replica import models_page, tiny_replica


def test_help_teaches() -> None:
    """Every command shows how it is used."""
    runner = CliRunner()
    for arguments, taught in (
        (["--help"], "tailgate serve --replica http://gpu1:8000"),
        (["serve", "--help"], "tailgate serve --config gateway.yaml --port 9000"),
        (["check", "--help"], "- url: http://gpu1:8000"),
        (["up", "--help"], "tailgate up -- --threads 1"),
        (["keys", "--help"], "tailgate keys create --tenant acme"),
    ):
        result = runner.invoke(app, arguments)
        assert result.exit_code == 0
        assert taught in result.output


def test_check_shows_what_a_file_resolves_to(tmp_path: Path) -> None:
    """Without secrets."""
    file = tmp_path / "gateway.yaml"
    file.write_text(
        "replicas:\n  - {url: 'http://a:1', authorization: Bearer hunter2, max_in_flight_tokens: 5, models: [m],"
        " max_prefill_tokens: 4, priority_scheduling: true}\n"
        "models: [{name: m, aliases: [x]}]\n"
        "policy: {ordering: aged-sjf, options: {aged-sjf: {ageing: 0.2}, wait: {max_wait_s: 60.0}}}\n"
    )
    result = CliRunner().invoke(app, ["check", str(file)])
    assert result.exit_code == 0
    for part in ("is good", "r1  http://a:1", "at most 5 tokens in flight", "also x", "aged-sjf.ageing = 0.2 (given)"):
        assert part in result.output
    for option in (
        "wait.max_wait_s = 60.0 (given)",
        "fixed.prefill_tokens = 8192",
        "lane-cuts.overlong_prompt_tokens = null",
    ):
        assert f"option    {option}\n" in result.output, "what is in effect, defaults too"
    assert "hunter2" not in result.output


def test_check_lists_every_error(tmp_path: Path) -> None:
    """And exits with 1."""
    file = tmp_path / "gateway.yaml"
    file.write_text("replicas: [{url: nope}]\nlisten: {prt: 1}\n")
    result = CliRunner().invoke(app, ["check", str(file)])
    assert result.exit_code == 1
    assert "2 errors" in result.output
    assert "did you mean port?" in result.output


def test_it_knows_its_version() -> None:
    """The package's."""
    result = CliRunner().invoke(app, ["--version"])
    assert (result.exit_code, result.output) == (0, f"tailgate {version('tailgate')}\n")


@pytest.mark.parametrize("arguments", [[], ["--config", "x.yaml", "--replica", "http://a:1"]])
def test_serve_wants_a_file_or_replicas(arguments: list[str]) -> None:
    """One of them."""
    result = CliRunner().invoke(app, ["serve", *arguments])
    assert result.exit_code == 2
    assert "--config" in result.output


def test_serve_refuses_a_bad_replica() -> None:
    """With the same errors as a file."""
    result = CliRunner().invoke(app, ["serve", "--replica", "ftp://a"])
    assert result.exit_code == 1
    assert "replicas[0].url" in result.output


def test_a_port_in_use_is_told_clearly() -> None:
    """Before anything is started."""
    with bind("127.0.0.1", 0) as sock:
        port = sock.getsockname()[1]
        assert url_of(sock) == f"http://127.0.0.1:{port}"
        for arguments in (
            ["serve", "--replica", "http://127.0.0.1:9", "--port", str(port)],
            ["up", "--port", str(port)],
        ):
            result = CliRunner().invoke(app, arguments)
            assert result.exit_code == 1
            assert f"port {port}" in result.output
            assert "--port" in result.output
    with pytest.raises(ListenError, match="no address"):
        bind("no.such.host.invalid", 0)
    with bind("::1", 0) as sock:
        assert url_of(sock).startswith("http://[::1]:")


async def test_serve_serves_until_sigterm() -> None:
    """Ready line, readiness once a replica answers, a clean end."""
    async with tiny_replica(health=(200, ""), v1_models=models_page("m")) as fake:
        with tailgate("serve", "--replica", fake.url, "--port", "0") as process:
            url = await process.url()
            async with httpx.AsyncClient(base_url=url, trust_env=False) as client:
                await ready(client)
                models = (await client.get("/v1/models")).json()
                assert [model["id"] for model in models["data"]] == ["m"]
            process.popen.send_signal(signal.SIGTERM)
            assert await process.ended() == 0


async def test_a_first_request_need_not_name_the_only_model() -> None:
    """Without a configuration file; `tailgate serve --help` says so."""
    async with FakeReplica(answers(b'{"ok":1}')) as fake:
        with tailgate("serve", "--replica", fake.url, "--port", "0") as process:
            async with httpx.AsyncClient(base_url=await process.url(), trust_env=False) as client:
                await ready(client)
                reply = await client.post(
                    "/v1/chat/completions", json={"messages": [{"role": "user", "content": "hi"}]}
                )
                assert (reply.status_code, reply.content) == (200, b'{"ok":1}')
        assert b'"model":"m1"' in fake.received[0].body


async def test_serve_with_keys_and_a_listener_for_the_operator(tmp_path: Path) -> None:
    """From making a key to using it, with metrics at an address of their own; revoking it takes a second."""
    file, config = str(tmp_path / "keys.json"), tmp_path / "gateway.yaml"
    made = CliRunner().invoke(app, ["keys", "create", "--file", file, "--tenant", "acme"])
    assert made.exit_code == 0
    key = {"authorization": f"Bearer {made.stdout.strip()}"}
    async with tiny_replica(health=(200, ""), v1_models=models_page("m")) as fake:
        config.write_text(f"replicas: [{{url: '{fake.url}'}}]\nlisten: {{port: 0}}\nadmin: {{listen: {{port: 0}}}}\n")
        with tailgate("serve", "--config", str(config), "--keys", file) as process:
            assert process.popen.stdout is not None
            async with asyncio.timeout(DEADLINE_S):
                line = await asyncio.to_thread(process.popen.stdout.readline)
            url, admin = line.split("url=")[1].split()[0], line.split("admin=")[1].split()[0]
            async with httpx.AsyncClient(base_url=url, trust_env=False) as client:
                await ready(client)
                assert (await client.get("/v1/models")).status_code == 401
                assert (await client.get("/v1/models", headers=key)).status_code == 200
                assert (await client.get("/metrics", headers=key)).status_code == 404
                page = await client.get(admin + "/metrics")
                assert "tailgate_keys 1.0" in page.text
                assert (await client.post(admin + "/v1/completions", headers=key, json={})).status_code in (404, 405)
                key_id = made.stderr.split(",")[0]
                assert CliRunner().invoke(app, ["keys", "revoke", key_id, "--file", file]).exit_code == 0
                async with asyncio.timeout(DEADLINE_S):
                    while (await client.get("/v1/models", headers=key)).status_code != 401:  # noqa: ASYNC110
                        await asyncio.sleep(0.05)
            process.popen.send_signal(signal.SIGTERM)
            assert await process.ended() == 0


def test_serve_refuses_bad_keys(tmp_path: Path) -> None:
    """With what is wrong in the file, or how to make one."""
    for content, problem in ((None, "tailgate keys create --file"), ("[]", "must be an object")):
        file = tmp_path / "keys.json"
        if content is not None:
            file.write_text(content)
        result = CliRunner().invoke(app, ["serve", "--replica", "http://127.0.0.1:9", "--keys", str(file)])
        assert result.exit_code == 1
        assert problem in result.output


@pytest.mark.parametrize("is_patient", [True, False])
async def test_sigterm_drains(tmp_path: Path, is_patient: bool) -> None:
    """Readiness goes, new work is refused, what runs may finish until the deadline."""
    answering, finish = asyncio.Event(), asyncio.Event()

    async def complete(_: bytes) -> tuple[int, Any]:
        answering.set()
        await finish.wait()
        return 200, {"choices": [], "usage": {"prompt_tokens": 1, "completion_tokens": 1}}

    async with tiny_replica(health=(200, ""), v1_models=models_page("m"), v1_completions=complete) as fake:
        file = tmp_path / "gateway.yaml"
        drain_s = 20 if is_patient else 0.3
        file.write_text(f"replicas: [{{url: '{fake.url}'}}]\nlisten: {{port: 0}}\ntimeouts: {{drain_s: {drain_s}}}\n")
        with tailgate("serve", "--config", str(file)) as process:
            url = await process.url()
            async with httpx.AsyncClient(base_url=url, trust_env=False, timeout=DEADLINE_S) as client:
                await ready(client)
                body = {"model": "m", "prompt": "x"}
                running_one = asyncio.create_task(client.post("/v1/completions", json=body))
                await answering.wait()
                process.popen.send_signal(signal.SIGTERM)
                if is_patient:
                    await ready(client, 503)
                    refused = await client.post("/v1/completions", json=body)
                    assert (refused.status_code, "retry-after" in refused.headers) == (503, True)
                    finish.set()
                    assert (await running_one).status_code == 200
                else:
                    told = await running_one
                    assert (told.status_code, told.headers["retry-after"]) == (503, "1")
                    assert told.json()["error"]["code"] == "draining"
                assert await process.ended() == 0
                finish.set()
                assert "Traceback" not in process.errors()


async def test_readiness_goes_before_new_work_is_refused(tmp_path: Path) -> None:
    """For as long as configured, so that load balancers can notice; liveness stays, and it ends by itself."""
    async with tiny_replica(
        health=(200, ""), v1_models=models_page("m"), v1_completions=(200, {"choices": []})
    ) as fake:
        file = tmp_path / "gateway.yaml"
        timeouts = "timeouts: {drain_s: 30, unready_s: 1.5}"
        file.write_text(f"replicas: [{{url: '{fake.url}'}}]\nlisten: {{port: 0}}\n{timeouts}\n")
        with tailgate("serve", "--config", str(file)) as process:
            url = await process.url()
            async with httpx.AsyncClient(base_url=url, trust_env=False, timeout=DEADLINE_S) as client:
                await ready(client)
                process.popen.send_signal(signal.SIGTERM)
                await ready(client, 503)
                assert (await client.get("/healthz")).status_code == 200
                answer = await client.post("/v1/completions", json={"model": "m", "prompt": "x"})
                assert (answer.status_code, answer.headers["connection"]) == (200, "close")
                assert await process.ended() == 0


async def test_a_second_signal_ends_at_once() -> None:
    """However long the drain might take."""
    answering = asyncio.Event()

    async def never(_: bytes) -> tuple[int, Any]:
        answering.set()
        await asyncio.Event().wait()
        return 200, {}

    async with tiny_replica(health=(200, ""), v1_models=models_page("m"), v1_completions=never) as fake:
        with tailgate("serve", "--replica", fake.url, "--port", "0") as process:
            url = await process.url()
            async with httpx.AsyncClient(base_url=url, trust_env=False, timeout=DEADLINE_S) as client:
                await ready(client)
                request = asyncio.create_task(client.post("/v1/completions", json={"model": "m", "prompt": "x"}))
                await answering.wait()
                process.popen.send_signal(signal.SIGINT)
                await ready(client, 503)
                began_s = time.monotonic()
                process.popen.send_signal(signal.SIGINT)
                await process.ended()
                assert time.monotonic() - began_s < 10.0
                await asyncio.wait([request])
                assert request.exception() is not None or request.result().status_code >= 500


async def test_a_gateway_that_cannot_start_exits_with_1(tmp_path: Path) -> None:
    """And says why."""
    (tmp_path / "tokenizer.json").write_text("{}")
    file = tmp_path / "gateway.yaml"
    file.write_text("replicas: [{url: 'http://a:1'}]\nlisten: {port: 0}\nmodels: [{name: m, tokenizer: .}]\n")
    with tailgate("serve", "--config", str(file)) as process:
        assert await process.ended() == 1
        errors = process.errors()
        assert "tokenizer.json" in errors
        assert "Traceback" not in errors


async def test_an_access_log_that_cannot_be_opened_keeps_the_gateway_from_starting(tmp_path: Path) -> None:
    """Told as an error of the configuration, without a traceback; before an engine is loaded."""
    nowhere = str(tmp_path / "none" / "access.jsonl")
    with tailgate("serve", "--replica", "http://127.0.0.1:9", "--port", "0", "--access-log", nowhere) as process:
        assert await process.ended() == 1
        errors = process.errors()
        assert f"log.access: {nowhere!r} can't be written: No such file or directory" in errors
        assert "Traceback" not in errors
    result = CliRunner().invoke(app, ["up", "--port", "0", "--access-log", nowhere])
    assert (result.exit_code, "log.access" in result.output, "engine" in result.output) == (1, True, False)


async def test_serve_writes_an_access_log_where_it_is_told(tmp_path: Path) -> None:
    """Whatever the file of the configuration says."""
    async with tiny_replica(health=(200, ""), v1_models=models_page("m")) as fake:
        file, log = tmp_path / "gateway.yaml", tmp_path / "access.jsonl"
        file.write_text(f"replicas: [{{url: '{fake.url}'}}]\nlisten: {{port: 0}}\nlog: {{access: null}}\n")
        with tailgate("serve", "--config", str(file), "--access-log", str(log)) as process:
            url = await process.url()
            async with httpx.AsyncClient(base_url=url, trust_env=False) as client:
                await ready(client)
                await client.post("/v1/completions", json={"model": "m", "prompt": "x"})
            process.popen.send_signal(signal.SIGTERM)
            assert await process.ended() == 0
        assert '"route":"completions"' in log.read_text()


@pytest.mark.parametrize(
    ("limits", "asked", "is_told"),
    [((1024, 100_000), (20_200, 100_000), False), ((1024, 4096), (4096, 4096), True), ((50_000, 50_000), None, False)],
)
def test_enough_files_are_asked_for(
    limits: tuple[int, int],
    asked: tuple[int, int] | None,
    is_told: bool,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Two for each connection and some more, as far as the system allows; what it doesn't is told."""
    given: list[tuple[int, int]] = []
    monkeypatch.setattr("resource.getrlimit", lambda _: limits)
    monkeypatch.setattr("resource.setrlimit", lambda _, wanted: given.append(wanted))
    _allow_files(10_000)
    assert given == ([] if asked is None else [asked])
    assert ("open files are allowed" in caplog.text) is is_told


def test_a_socket_is_listening_once_bound() -> None:
    """Clients that come before everything is ready wait instead of being refused."""
    with bind("127.0.0.1", 0) as sock, socket.create_connection(sock.getsockname()[:2], timeout=5):
        pass
