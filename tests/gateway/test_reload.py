"""A new configuration for a gateway that runs: as a whole or not at all, and nothing that runs notices."""

import asyncio
import json
import logging
import signal
from pathlib import Path
from typing import Any

import httpx
import pytest

from gateway.api.fields import read_chat
from gateway.app import Gateway
from gateway.config import GatewayConfig, parse_config
from gateway.config_errors import ConfigError
from gateway.model_tokenizer import TokenizerLoadError
from gateway.reload import Reloader, differences
from tests.support.asgi import HandDriven
from tests.support.fake_replica import DONE, Call, FakeReplica, answers, delta, hangs
from tests.support.gateways import BODY, CHAT, STREAM_BODY, assert_nothing_held, configured, gateway_for
from tests.support.processes import DEADLINE_S, Process, ready, tailgate
from tests.support.serve import until
from tests.support.tokenizer_folders import make_folder


def config_of(*replicas: FakeReplica, **sections: Any) -> GatewayConfig:
    """With the names r1, r2 … that a plain configuration gives."""
    config: GatewayConfig = configured(*replicas, **sections)
    return config


async def status_of(gateway: Gateway, body: bytes = BODY, **how: Any) -> int:
    request = HandDriven(gateway, CHAT, **how).start(body)
    await request.ended()
    return request.status


class Gated:
    """Streams a piece, and the rest once it is let."""

    def __init__(self) -> None:
        self.may_end = asyncio.Event()

    async def __call__(self, call: Call) -> None:
        await call.head(headers=[("content-type", "text/event-stream")])
        await call.chunk(delta("a"))
        await self.may_end.wait()
        await call.chunk(DONE)
        await call.end()


async def test_replicas_come_and_go_under_a_running_stream() -> None:
    """What is added serves once it was probed; what is taken away gets nothing more, finishes, and is forgotten."""
    gated = Gated()
    async with FakeReplica(gated) as old, FakeReplica(answers()) as new, gateway_for(old) as gateway:
        stream = HandDriven(gateway, CHAT).start(STREAM_BODY)
        await stream.until(lambda: stream.body == delta("a"))
        replicas = [{"id": "second", "url": new.url}]
        await gateway.reload(parse_config({"replicas": replicas, "log": {"access": None}}, source="test"))
        await until(lambda: gateway.pool.get("second").is_available)
        assert [replica.replica_id for replica in gateway.pool.all()] == ["second"]
        assert await status_of(gateway) == 200
        assert (len(old.received), len(new.received)) == (1, 1)
        assert gateway.core.in_flight_tokens("r1") > 0
        gated.may_end.set()
        await stream.ended()
        assert (stream.body, stream.is_complete) == (delta("a") + DONE, True)
        assert gateway.core.in_flight_tokens("r1") == 0
        assert_nothing_held(gateway)
        await until(lambda: old.num_open <= 1)  # the client of probes may keep its own


async def test_a_replica_that_stays_keeps_what_is_known_of_it() -> None:
    """New caps and credentials count at once, and it isn't away for a moment."""
    async with FakeReplica(hangs()) as replica, gateway_for(replica) as gateway:
        first = HandDriven(gateway, CHAT).start(BODY)
        await until(lambda: replica.num_running == 1)
        await gateway.reload(
            config_of(replica, replica={"max_in_flight_requests": 1, "authorization": "Bearer new", "id": "r1"})
        )
        assert gateway.pool.get("r1").is_available
        second = HandDriven(gateway, CHAT).start(BODY)
        await until(lambda: gateway.core.num_queued == 1)
        await gateway.reload(
            config_of(replica, replica={"max_in_flight_requests": 2, "authorization": "Bearer new", "id": "r1"})
        )
        await until(lambda: replica.num_running == 2)
        assert [received.header("authorization") for received in replica.received] == [[], ["Bearer new"]]
        for request in (first, second):
            request.disconnect()
            await request.ended()
        assert_nothing_held(gateway)


async def test_a_replica_that_moved_is_another_one() -> None:
    """The same name at another address is probed before it is used; what runs at the old one goes on."""
    gated = Gated()
    async with FakeReplica(gated) as old, FakeReplica(answers(), models=("m2",)) as new, gateway_for(old) as gateway:
        stream = HandDriven(gateway, CHAT).start(STREAM_BODY)
        await stream.until(lambda: stream.body == delta("a"))
        await gateway.reload(config_of(new))
        assert not gateway.pool.get("r1").is_available
        await until(lambda: gateway.pool.get("r1").is_available)
        assert list(gateway.pool.models()) == ["m2"]
        assert await status_of(gateway, BODY.replace(b"m1", b"m2")) == 200
        assert len(new.received) == 1
        gated.may_end.set()
        await stream.ended()
        assert stream.is_complete
        assert_nothing_held(gateway)


async def test_bounds_policy_models_and_pages_follow() -> None:
    """For requests that come from now on."""
    async with FakeReplica(answers()) as replica, gateway_for(replica) as gateway:
        assert await status_of(gateway, BODY.replace(b"m1", b"other")) == 404
        asks = [(b"origin", b"https://a.example"), (b"access-control-request-method", b"POST")]
        page: dict[str, Any] = {"headers": asks}
        assert await status_of(gateway, method="OPTIONS", **page) == 405
        await gateway.reload(
            config_of(
                replica,
                limits={"max_body_bytes": 100, "max_headers": 9},
                timeouts={"drain_s": 7.0, "unready_s": 1.0, "head_s": 2.0},
                models=[{"name": "m1", "aliases": ["other"]}],
                policy={"ordering": "fcfs"},
                cors={"origins": ["https://a.example"]},
            )
        )
        assert await status_of(gateway, BODY.replace(b"m1", b"other")) == 200
        assert await status_of(gateway, BODY + b" " * 100) == 413
        assert await status_of(gateway, method="OPTIONS", **page) == 204
        assert "fcfs" in gateway.core.policy_name
        assert (gateway.drain.grace_s, gateway.drain.unready_s) == (7.0, 1.0)
        assert (gateway.front.bounds.head_s, gateway.front.bounds.max_headers) == (2.0, 9)
        assert_nothing_held(gateway)


async def test_what_only_a_start_reads_stays() -> None:
    """The address, and how many requests are remembered."""
    async with FakeReplica(answers()) as replica, gateway_for(replica) as gateway:
        before = gateway.config
        await gateway.reload(config_of(replica, listen={"port": 9999}, timing_ring=5))
        assert (gateway.config.listen, gateway.config.timing_ring) == (before.listen, before.timing_ring)


async def test_the_access_log_is_opened_anew(tmp_path: Path) -> None:
    """So a file that was moved away is begun again, and nothing is lost between."""
    file, moved = tmp_path / "access.jsonl", tmp_path / "access.jsonl.1"
    log: dict[str, Any] = {"log": {"access": str(file)}}
    async with FakeReplica(answers()) as replica, gateway_for(replica, **log) as gateway:
        await status_of(gateway)
        file.rename(moved)
        await gateway.reload(config_of(replica, **log))
        await status_of(gateway)
    for path in (file, moved):
        assert [json.loads(line)["status"] for line in path.read_text().splitlines()] == [200]


async def test_a_configuration_that_fails_changes_nothing(tmp_path: Path) -> None:
    """A tokenizer that can't be loaded, a key file or a log that can't be opened: everything is as before."""
    (tmp_path / "tokenizer.json").write_text("{}")
    async with FakeReplica(answers()) as replica, gateway_for(replica) as gateway:
        before = gateway.config
        good = config_of(replica, limits={"max_body_bytes": 1})
        for name, value, error in (
            (
                "models",
                config_of(replica, models=[{"name": "m1", "tokenizer": str(tmp_path)}]).models,
                TokenizerLoadError,
            ),
            ("keys", tmp_path / "none.json", ConfigError),
            ("log", good.log.model_copy(update={"access": str(tmp_path)}), ConfigError),
        ):
            with pytest.raises(error):
                await gateway.reload(good.model_copy(update={name: value}))
            assert gateway.config is before
            assert await status_of(gateway) == 200


async def test_tokenizers_are_loaded_again_when_their_files_changed(tmp_path: Path) -> None:
    """At the same path too, as a new version of a model's files is put in place; others stay loaded."""
    folder = make_folder(tmp_path)
    fields = read_chat(BODY, [], 64)
    async with FakeReplica(answers()) as replica, gateway_for(replica) as gateway:
        config = config_of(replica, models=[{"name": "m1", "tokenizer": str(folder)}])

        async def counted() -> int:
            await gateway.reload(config)
            count = await gateway.tokens.count(fields, "m1", (), waits=True)
            assert count.source == "local"
            return count.prompt_tokens

        first, used = await counted(), gateway.tokens.encoders
        assert (await counted(), gateway.tokens.encoders) == (first, used)
        (folder / "chat_template.jinja").write_text("{{ messages[0]['content'] }} and much, much more than before")
        assert await counted() > first


async def test_what_comes_of_it_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    """What changed, by name; what takes a restart; or why it was refused."""
    caplog.set_level(logging.INFO, "gateway.reload")
    async with FakeReplica(answers()) as replica, gateway_for(replica) as gateway:
        found: GatewayConfig | ConfigError = config_of(
            replica, listen={"port": 9999}, timeouts={"queue_s": 3.0}, replica={"authorization": "Bearer CANARY"}
        )

        def read() -> GatewayConfig:
            if isinstance(found, ConfigError):
                raise found
            return found

        await Reloader(gateway, read)()
        found = ConfigError("gateway.yaml", ["limits.x: unknown key"])
        await Reloader(gateway, read)()
    messages = [record.getMessage() for record in caplog.records if record.name == "gateway.reload"]
    assert messages[0] == "listen.port has changed, which takes a restart: it is as before"
    assert messages[1] == "the configuration was read again; changed: replicas, timeouts.queue_s"
    assert messages[2].startswith("the configuration from before stays")
    assert "limits.x: unknown key" in messages[2]
    assert "CANARY" not in caplog.text


def test_differences_are_keys() -> None:
    """Sections are looked into; lists and what is null on one side are named as a whole."""
    one = parse_config({"replicas": [{"url": "http://a:1"}]}, source="test")
    other = parse_config(
        {
            "replicas": [{"url": "http://a:1"}, {"url": "http://b:1"}],
            "timeouts": {"queue_s": 1.0, "drain_s": 30.0},
            "cors": {"origins": ["*"]},
            "admin": {"listen": {"port": 1}},
        },
        source="test",
    )
    assert list(differences(one, other)) == ["admin.listen", "replicas", "timeouts.queue_s", "cors"]
    assert list(differences(one, one)) == []


async def until_logged(process: Process, text: str) -> str:
    """The line of its log that has this; fails at a deadline."""
    assert process.popen.stderr is not None
    async with asyncio.timeout(DEADLINE_S):
        while text not in (line := await asyncio.to_thread(process.popen.stderr.readline)):
            assert line, f"it ended before it said {text!r}"
    return line


async def test_sighup_reads_the_file_again(tmp_path: Path) -> None:
    """A stream goes on through a good file, a bad one, and one that asks for another port."""
    gated = Gated()
    async with FakeReplica(gated) as one, FakeReplica(answers(), models=("m2",)) as two:
        file = tmp_path / "gateway.yaml"

        def write(*replicas: FakeReplica, more: str = "") -> None:
            urls = "".join(f"  - url: {replica.url}\n" for replica in replicas)
            file.write_text(f"replicas:\n{urls}log: {{access: null}}\n{more}")

        write(one)
        with tailgate("serve", "--config", str(file), "--port", "0") as process:
            url = await process.url()
            async with httpx.AsyncClient(base_url=url, trust_env=False, timeout=DEADLINE_S) as client:
                await ready(client)
                async with client.stream("POST", CHAT, content=STREAM_BODY) as stream:
                    pieces = stream.aiter_bytes()
                    assert await anext(pieces) == delta("a")
                    write(one, two)
                    process.popen.send_signal(signal.SIGHUP)
                    await until_logged(process, "changed: replicas")
                    async with asyncio.timeout(DEADLINE_S):
                        other = BODY.replace(b"m1", b"m2")
                        while (await client.post(CHAT, content=other)).status_code != 200:  # noqa: ASYNC110 - another process
                            await asyncio.sleep(0.01)
                    write(one, two, more="limits: {max_body_size: 3}\n")
                    process.popen.send_signal(signal.SIGHUP)
                    assert "was refused" in await until_logged(process, "the configuration from before stays")
                    assert "did you mean max_body_bytes?" in await until_logged(process, "limits.max_body_size")
                    write(one, two, more="admin: {listen: {port: 0}}\n")
                    process.popen.send_signal(signal.SIGHUP)
                    await until_logged(process, "admin.listen has changed, which takes a restart")
                    gated.may_end.set()
                    assert b"".join([piece async for piece in pieces]) == DONE
                process.popen.send_signal(signal.SIGTERM)
                assert await process.ended() == 0
