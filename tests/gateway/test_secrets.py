"""Nothing secret gets out: everything that a real process prints, writes and answers is searched."""

import asyncio
import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest
from typer.testing import CliRunner

from gateway.api.openai import read_head
from gateway.app import build_app
from gateway.cli import app
from gateway.config import load_config
from gateway.key_file import load_key_file
from tests.support.fake_replica import DONE, Call, FakeReplica, delta
from tests.support.gateways import BODY, CHAT, gateway_for
from tests.support.keys import bearer, write_keys
from tests.support.serve import ask, serving, until

# Alike in nothing, so that any piece of one is that one.
CLIENT, ADMIN = "Zq3kVwPl8mXc", "Hy6tRb0nJs2f"
REPLICA, WRONG = "uE9gKd4oTi7a", "Lr1xQv5zNp3h"
PROMPT, ANSWER = "wombat-yodel-krill", "quokka-fjord-plumb"
KEYS = (CLIENT, ADMIN, REPLICA, WRONG)


def pieces(secret: str) -> list[str]:
    """What would give a secret away: any eight characters of it in a row."""
    return [secret[start : start + 8] for start in range(len(secret) - 7)]


def assert_hidden(text: str, *secrets: str) -> None:
    for secret in secrets:
        for piece in pieces(secret):
            assert piece not in text, f"{piece!r} of {secret!r} shows: {text[max(0, text.find(piece) - 200) :][:400]}"


async def behave(call: Call) -> None:
    """Fails in every way, as the prompt asks."""
    body = call.received.body
    if b"fail-500" in body:
        await call.whole(b"internal error", status=500)
    elif b"fail-401" in body:
        await call.whole(b'{"error":{"message":"wrong key"}}', status=401)
    elif b"fail-reset" in body:
        call.reset()
    elif b"fail-garbage" in body:
        await call.send(b"NONSENSE\r\n\r\n")
        call.close()
    elif b"fail-hang" in body:
        await call.gone.wait()
    elif b"fail-midstream" in body:
        await call.head(headers=[("content-type", "text/event-stream")])
        await call.chunk(delta(ANSWER))
        call.reset()
    elif b"true" in body:
        await call.head(headers=[("content-type", "text/event-stream")])
        await call.chunk(delta(ANSWER))
        await call.chunk(DONE)
        await call.end()
    else:
        await call.whole(json.dumps({"choices": [{"message": {"content": ANSWER}}]}).encode())


async def _use(client: httpx.AsyncClient, url: str) -> list[httpx.Response]:
    """Requests of every kind, good and bad; what was answered."""
    good = {"authorization": f"Bearer sk-{CLIENT}"}
    told: list[httpx.Response] = []

    async def ask(content: str, headers: dict[str, str] = good, path: str = CHAT, **fields: Any) -> None:
        body = {"model": "m1", "messages": [{"role": "user", "content": f"{PROMPT} {content}"}], **fields}
        try:
            told.append(await client.post(url + path, json=body, headers=headers))
        except httpx.HTTPError as error:  # an answer that broke off
            told.append(httpx.Response(0, text=repr(error)))

    for failure in ("none", "fail-500", "fail-401", "fail-reset", "fail-garbage", "fail-hang"):
        await ask(failure)
    for failure in ("none", "fail-midstream"):
        await ask(failure, stream=True)
        await ask(failure, {**good, "x-tailgate-timing": "stream"}, stream=True)
    for headers in (
        {"authorization": f"Bearer {WRONG}"},
        {"authorization": f"Basic {WRONG}"},
        {"x-api-key": WRONG},
        {"x-api-key": f"sk-{CLIENT}", "cookie": f"key=sk-{CLIENT}", "x-note": f"sk-{CLIENT}"},
        {},
    ):
        await ask("none", headers)
    await ask("none", {}, path=f"{CHAT}?api_key=sk-{CLIENT}")
    await ask("none", path=f"{CHAT}?api_key=sk-{CLIENT}")
    await ask("none", model="junk")
    await ask("none", max_tokens="many")
    await ask("none", path="/v1/messages", max_tokens=3)
    await ask("none", path="/nothing/here")
    await ask("none", {**good, "x-tailgate-lane": "fast"})
    told.append(await client.post(url + CHAT, content=b"{" + PROMPT.encode(), headers=good))
    for path in ("/", "/readyz", "/metrics", "/v1/models", "/v1/models/m2", "/openapi.json", "/nothing"):
        for key in (None, f"sk-{CLIENT}", f"sk-{ADMIN}", WRONG):
            headers = {} if key is None else {"authorization": f"Bearer {key}"}
            told.append(await client.get(url + path, headers=headers))
    request_ids = [reply.headers.get("x-tailgate-request-id") for reply in told]
    for request_id in filter(None, request_ids):
        for key in (f"sk-{CLIENT}", f"sk-{ADMIN}"):
            timing = f"{url}/v1/requests/{request_id}/timing"
            told.append(await client.get(timing, headers={"x-api-key": key}))
    return told


async def test_everything_a_process_emits(tmp_path: Path) -> None:
    """At the loudest level of its log, through failures of every kind, a key file that goes bad, and a stop."""
    keys, log = tmp_path / "keys.json", tmp_path / "access.log"
    entries: dict[str, dict[str, Any]] = {
        CLIENT: {"tenant": "acme", "id": "k1"},
        ADMIN: {"tenant": "ops", "id": "k2", "admin": True},
    }
    write_keys(keys, **entries)
    file = await asyncio.to_thread(load_key_file, keys)
    async with FakeReplica(behave) as replica:
        config = {
            "listen": {"port": 0},
            "keys": str(keys),
            "replicas": [{"url": replica.url, "authorization": f"Bearer {REPLICA}", "models": ["m1"]}],
            "timeouts": {"first_byte_s": 0.2},
            "log": {"level": "debug", "access": str(log)},
        }
        config_file = tmp_path / "gateway.yaml"
        config_file.write_text(json.dumps(config))
        command = [sys.executable, "-X", "dev", "-c", "from gateway.cli import main; main()", "serve"]
        process = await asyncio.create_subprocess_exec(
            *command, "--config", str(config_file), stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        assert process.stdout is not None
        assert process.stderr is not None
        errors = asyncio.create_task(process.stderr.read())
        try:
            async with asyncio.timeout(60):
                url = (await process.stdout.readline()).decode().split("url=")[1].split()[0]
                async with httpx.AsyncClient(timeout=20) as client:
                    while (await client.get(url + "/readyz")).status_code != 200:  # noqa: ASYNC110
                        await asyncio.sleep(0.02)
                    told = await _use(client, url)
                    keys.write_text(f'{{"salt": "{file.salt}", "keys": [{{"id": "sk-{CLIENT}", "hash": 5}}')
                    refused = "tailgate_key_file_refused 1.0"
                    admin = {"x-api-key": f"sk-{ADMIN}"}
                    while refused not in (await client.get(url + "/metrics", headers=admin)).text:  # noqa: ASYNC110
                        await asyncio.sleep(0.05)
                process.send_signal(signal.SIGTERM)
                rest, _ = await asyncio.gather(process.stdout.read(), process.wait())
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        printed = (await errors).decode() + rest.decode()
    statuses = {reply.status_code for reply in told}
    assert {200, 400, 401, 403, 404, 500, 502, 504} <= statuses, statuses
    assert "the key file was refused" in printed
    lines = log.read_text()
    assert lines.count("\n") > 20
    assert '"key":"k1"' in lines
    hashes = [entry.hash for entry in file.keys]
    for text in (printed, lines):
        assert_hidden(text, *KEYS, *hashes, file.salt, PROMPT, ANSWER)
        assert "authorization" not in text.lower()
    for reply in told:
        shown = f"{list(reply.headers.raw)} {reply.text}"
        assert_hidden(shown, *KEYS, *hashes, file.salt)
    for request in replica.received:
        shown = f"{request.path} {request.headers}"
        assert_hidden(shown, CLIENT, ADMIN, WRONG)
        assert request.header("authorization") == [f"Bearer {REPLICA}"]


SECRET = "Bearer mV8cYh2jWd6s"


@pytest.mark.parametrize(
    "text",
    [
        f"replicas:\n  - url: http://a:1\n    authorization: {SECRET}\n    authorization: {SECRET}\n",
        f"replicas:\n  - url: http://a:1\n    authorization: {SECRET}: x\n",
        f"replicas:\n  - {{url: http://a:1, authorization: {SECRET}\n",
        f"replicas: {{url: http://a:1, authorization: {SECRET}}}\n",
        f"replicas: {{r1: {{authorization: {SECRET}}}}}\n",
        f"replicas: [{{url: http://a:1, authorisation: {SECRET}}}]\n",
        f"replicas: [{{url: 7, authorization: {SECRET}}}]\n",
        f'replicas: [{{url: http://a:1, authorization: ["{SECRET}"]}}]\n',
        f'replicas: [{{url: http://a:1, authorization: " {SECRET}"}}]\n',
        f"replicas: [{{url: 'http://x:{SECRET.split()[1]}@a:1'}}]\n",
        f'replicas: [["authorization", "{SECRET}"]]\n',
        f"\tauthorization: {SECRET}\n",
    ],
)
def test_a_configuration_that_is_wrong_shows_no_secret(tmp_path: Path, text: str) -> None:
    """Wherever in it the secret is, and whatever is wrong with it."""
    file = tmp_path / "gateway.yaml"
    file.write_text(text)
    for command in (["check", str(file)], ["serve", "--config", str(file)]):
        result = CliRunner().invoke(app, command)
        assert result.exit_code == 1
        assert result.output
        assert_hidden(result.output + repr(result.exception), SECRET.removeprefix("Bearer "))


async def test_what_is_printed_of_objects(tmp_path: Path) -> None:
    """In a debugger, in a dump or in an exception's text: neither keys nor hashes."""
    keys, file = tmp_path / "keys.json", tmp_path / "gateway.yaml"
    write_keys(keys, **{CLIENT: {"id": "k1", "tenant": "acme"}})
    file.write_text(f"keys: keys.json\nreplicas: [{{url: 'http://a:1', authorization: '{SECRET}'}}]\n")
    config = load_config(file)
    gateway = build_app(config)
    stored = load_key_file(keys)
    head = read_head([(b"authorization", f"Bearer sk-{CLIENT}".encode()), (b"x-api-key", WRONG.encode())])
    key = gateway.keys.identify([(b"x-api-key", f"sk-{CLIENT}".encode())])
    shown = [repr(thing) for thing in (config, stored, head, key, gateway.keys, *gateway.pool.all())]
    shown += [config.model_dump_json(), str(config)]
    for text in shown:
        assert_hidden(text, SECRET.removeprefix("Bearer "), CLIENT, WRONG, stored.salt, stored.keys[0].hash)
        assert repr(key.digest)[2:20] not in text
    await gateway.aclose()


async def test_a_trace_shows_no_secret(caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    """A fault of our own is written to the log with where it happened, not with what was being handled."""
    keys = tmp_path / "keys.json"
    write_keys(keys, **{CLIENT: {"id": "k1"}})
    async with (
        FakeReplica(behave) as replica,
        gateway_for(replica, keys=str(keys), replica={"authorization": SECRET}) as gateway,
        serving(gateway) as port,
    ):

        async def broken(*_: object, **__: object) -> None:
            raise RuntimeError("planted")

        gateway.tokens.count = broken  # type: ignore[method-assign, assignment]
        assert (await ask(port, CHAT, BODY.replace(b"hi", PROMPT.encode()), bearer(CLIENT))).status == 500
        await until(lambda: "planted" in caplog.text)
    assert_hidden(caplog.text, CLIENT, SECRET.removeprefix("Bearer "), PROMPT)
