"""Limits of keys in front of a running gateway: what is taken, what is told, and that all of it comes back."""

import asyncio
import json
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from gateway.app import Gateway
from gateway.limits import duration
from gateway.tokens import TokenCount
from gateway.upstream_errors import ConnectFailed
from policies.limits import Account
from tests.support.asgi import HandDriven
from tests.support.fake_replica import DONE, Call, FakeReplica, answers, delta, hangs, streams, usage_event
from tests.support.gateways import BODY, CHAT, STREAM_BODY, assert_nothing_held, chat_body, gateway_for
from tests.support.keys import bearer, write_keys
from tests.support.serve import RawClient, ask, post, serving, until

KEY = bearer("k")
ASGI_KEY = [(b"authorization", b"Bearer sk-k")]
PROMPT_TOKENS = 100
OUTPUT_BOUND = 50


class Clock:
    """Time stands still until it is moved."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


@asynccontextmanager
async def limited(
    tmp_path: Path, *replicas: FakeReplica, limits: dict[str, Any], clock: Clock | None = None, **config: Any
) -> AsyncIterator[Gateway]:
    """A gateway whose key `sk-k` has these limits, and which counts 100 tokens for every prompt."""
    path = tmp_path / "keys.json"
    write_keys(path, k=limits, free={})
    options = {"clock": clock} if clock is not None else {}
    limits_section = {"assumed_output_tokens": OUTPUT_BOUND, **config.pop("limits", {})}
    async with gateway_for(*replicas, keys=str(path), limits=limits_section, **options, **config) as gateway:

        async def count(*_: object, **__: object) -> TokenCount:
            await asyncio.sleep(0)
            return TokenCount(PROMPT_TOKENS, "local", 0.0, 0.0)

        gateway.tokens.count = count  # type: ignore[method-assign]
        yield gateway


def account_of(gateway: Gateway) -> Account:
    return gateway.keys._rates["k"].account


def used(gateway: Gateway) -> tuple[int, int]:
    """(requests, tokens) that are gone from the buckets now, in a gateway with a standing clock."""
    account, now_s = account_of(gateway), gateway.dispatcher.clock()
    requests, tokens = account.requests_standing(now_s), account.tokens_standing(now_s)
    assert requests is not None
    assert tokens is not None
    return requests.limit - requests.remaining, tokens.limit - tokens.remaining


def rates(reply: RawClient) -> dict[str, str]:
    return {name.decode(): value.decode() for name, value in reply.headers if name.startswith(b"x-ratelimit-")}


RATES = {"requests_per_min": 10, "tokens_per_min": 10_000}


class TestRates:
    async def test_requests_per_minute(self, tmp_path: Path) -> None:
        """As many as the limit, then 429 that says when; after so long, the next one."""
        clock = Clock()
        async with (
            FakeReplica(answers()) as replica,
            limited(tmp_path, replica, limits={"requests_per_min": 2}, clock=clock) as gateway,
            serving(gateway) as port,
        ):
            first = await ask(port, CHAT, BODY, KEY)
            assert rates(first) == {
                "x-ratelimit-limit-requests": "2",
                "x-ratelimit-remaining-requests": "1",
                "x-ratelimit-reset-requests": "30s",
            }
            assert (await ask(port, CHAT, BODY, KEY)).status == 200
            refused = await ask(port, CHAT, BODY, KEY)
            assert refused.status == 429
            error = json.loads(refused.body)["error"]
            assert error == {
                "message": "This API key's limit of 2 requests per minute is reached.",
                "type": "rate_limit_error",
                "param": None,
                "code": "rate_limit_exceeded",
            }
            assert refused.header(b"retry-after") == [b"30"]
            assert rates(refused)["x-ratelimit-remaining-requests"] == "0"
            assert rates(refused)["x-ratelimit-reset-requests"] == "1m0s"
            assert (await ask(port, CHAT, BODY, bearer("free"))).status == 200
            clock.now_s += 29.9
            assert (await ask(port, CHAT, BODY, KEY)).status == 429
            clock.now_s += 0.1
            assert (await ask(port, CHAT, BODY, KEY)).status == 200
            assert len(replica.received) == 4
            record = list(gateway.ring._records.values())[-2]
            assert (record.outcome, record.reason) == ("rejected", "requests-per-min")
            page = gateway.metrics.render()[0]
            (line,) = [line for line in page.split(b"\n") if b'reason="requests-per-min"' in line]
            assert line.startswith(b"tailgate_requests_turned_away_total{")
            assert line.endswith(b" 2.0")

    async def test_a_refused_request_is_not_received(self, tmp_path: Path) -> None:
        """The limit is known before the body."""
        async with (
            FakeReplica(answers()) as replica,
            limited(tmp_path, replica, limits={"requests_per_min": 1}, clock=Clock()) as gateway,
        ):
            first = HandDriven(gateway, CHAT, headers=ASGI_KEY).start(BODY)
            await first.ended()
            second = HandDriven(gateway, CHAT, headers=ASGI_KEY).start()
            await second.ended()
            assert (first.status, second.status) == (200, 429)

    async def test_tokens_per_minute_are_taken_at_most_and_settled_as_used(self, tmp_path: Path) -> None:
        """While it runs, prompt and bound; afterwards what the replica counted."""
        async with (
            FakeReplica(hangs()) as replica,
            limited(tmp_path, replica, limits={"tokens_per_min": 600}, clock=Clock()) as gateway,
            serving(gateway) as port,
        ):
            async with RawClient(port, post(CHAT, chat_body(max_tokens=400), KEY)):
                await until(lambda: replica.num_running == 1)
                assert account_of(gateway).in_flight_tokens == 500
                refused = await ask(port, CHAT, chat_body(max_tokens=1), KEY)
                assert refused.status == 429
                assert "600 tokens per minute" in json.loads(refused.body)["error"]["message"]
                assert refused.header(b"retry-after") == [b"1"]
                assert rates(refused)["x-ratelimit-remaining-tokens"] == "100"
                assert rates(refused)["x-ratelimit-reset-tokens"] == "50s"
                replica.behaviour = answers()
                assert (await ask(port, CHAT, chat_body(max_tokens=0), KEY)).status == 200
            await until(lambda: gateway.core.num_in_flight == 0)
            # 5 + 2 as the replica said; and the prompt of the client that left.
            standing = account_of(gateway).tokens_standing(gateway.dispatcher.clock())
            assert standing is not None
            assert standing.remaining == 600 - 7 - PROMPT_TOKENS

    async def test_an_answer_longer_than_assumed_is_a_debt(self, tmp_path: Path) -> None:
        """The next request waits until it is paid."""
        clock = Clock()
        long = answers(b'{"usage":{"prompt_tokens":100,"completion_tokens":900}}')
        async with (
            FakeReplica(long) as replica,
            limited(tmp_path, replica, limits={"tokens_per_min": 600}, clock=clock) as gateway,
            serving(gateway) as port,
        ):
            assert (await ask(port, CHAT, BODY, KEY)).status == 200
            refused = await ask(port, CHAT, BODY, KEY)
            assert (refused.status, refused.header(b"retry-after")) == (429, [b"55"])
            clock.now_s += 55.0
            assert (await ask(port, CHAT, BODY, KEY)).status == 200

    @pytest.mark.parametrize("limit", ["tokens_per_min", "max_in_flight_tokens"])
    async def test_a_prompt_that_never_fits(self, tmp_path: Path, limit: str) -> None:
        """429 without a time, and a word to OpenAI's clients that trying again is useless."""
        async with (
            FakeReplica(answers()) as replica,
            limited(tmp_path, replica, limits={limit: PROMPT_TOKENS - 1}) as gateway,
            serving(gateway) as port,
        ):
            refused = await ask(port, CHAT, BODY, KEY)
            assert (refused.status, refused.header(b"retry-after")) == (429, [])
            assert refused.header(b"x-should-retry") == [b"false"]
            assert "larger than" in json.loads(refused.body)["error"]["message"]
            assert replica.received == []

    async def test_the_replicas_own_limits_are_not_mixed_with_ours(self, tmp_path: Path) -> None:
        """Two contradicting headers of one name would leave the client to guess."""

        async def behave(call: Call) -> None:
            await call.whole(b"{}", headers=[("x-ratelimit-limit-requests", "9"), ("x-other", "1")])

        async with (
            FakeReplica(behave) as replica,
            limited(tmp_path, replica, limits={"requests_per_min": 2}) as gateway,
            serving(gateway) as port,
        ):
            reply = await ask(port, CHAT, BODY, KEY)
            assert reply.header(b"x-ratelimit-limit-requests") == [b"2"]
            assert reply.header(b"x-other") == [b"1"]

    async def test_a_limit_that_changes_while_requests_run(self, tmp_path: Path) -> None:
        """The file is read anew; what was used stays used, and what runs is still counted."""
        async with (
            FakeReplica(hangs()) as replica,
            limited(tmp_path, replica, limits={"requests_per_min": 2}, clock=Clock()) as gateway,
            serving(gateway) as port,
            RawClient(port, post(CHAT, BODY, KEY)),
        ):
            await until(lambda: replica.num_running == 1)
            write_keys(tmp_path / "keys.json", k={"requests_per_min": 4, "max_in_flight_requests": 1})
            await gateway.keys.refresh()
            refused = await ask(port, CHAT, BODY, KEY)
            assert (refused.status, rates(refused)["x-ratelimit-remaining-requests"]) == (429, "2")
            assert "1 requests at the same time" in json.loads(refused.body)["error"]["message"]


class TestAtTheSameTime:
    @pytest.mark.parametrize("body", [BODY, STREAM_BODY])
    async def test_exactly_so_many_run(self, tmp_path: Path, body: bytes) -> None:
        """Round after round: refusals neither take a place nor give one back."""
        async with (
            FakeReplica(hangs()) as replica,
            limited(tmp_path, replica, limits={"max_in_flight_requests": 2}) as gateway,
            serving(gateway) as port,
        ):
            for _ in range(3):
                running = [HandDriven(gateway, CHAT, headers=ASGI_KEY).start(body) for _ in range(6)]
                await until(lambda: replica.num_running == 2)
                await asyncio.gather(*(request.ended() for request in running[2:]))
                assert [request.status for request in running[2:]] == [429] * 4
                assert all(dict(request.headers)[b"retry-after"] == b"1" for request in running[2:])
                for request in running[:2]:
                    request.disconnect()
                await asyncio.gather(*(request.ended() for request in running[:2]))
                assert account_of(gateway).num_in_flight == 0
            assert port

    async def test_tokens_in_flight(self, tmp_path: Path) -> None:
        """Prompts and bounds of what runs, together."""
        async with (
            FakeReplica(hangs()) as replica,
            limited(tmp_path, replica, limits={"max_in_flight_tokens": 320}) as gateway,
            serving(gateway) as port,
        ):
            running = [HandDriven(gateway, CHAT, headers=ASGI_KEY).start(BODY) for _ in range(2)]
            await until(lambda: replica.num_running == 2)
            assert account_of(gateway).in_flight_tokens == 2 * (PROMPT_TOKENS + OUTPUT_BOUND)
            refused = await ask(port, CHAT, BODY, KEY)
            assert (refused.status, refused.header(b"retry-after")) == (429, [b"1"])
            for request in running:
                request.disconnect()
                await request.ended()
            assert account_of(gateway).in_flight_tokens == 0


ONE_AT_A_TIME: dict[str, Any] = {"policy": {"options": {"fixed": {"in_flight_tokens": 1}}}}


def _fails(status: int) -> Callable[[Call], Awaitable[None]]:
    async def behave(call: Call) -> None:
        await call.whole(b"{}", status=status)

    return behave


async def _resets(call: Call) -> None:
    call.reset()


async def _breaks_off(call: Call) -> None:
    await call.head(headers=[("content-type", "text/event-stream")])
    await call.chunk(delta("a"))
    await call.chunk(delta("b"))
    call.close()


USAGE_STREAM = streams(delta("a"), delta("b"), usage_event(90, 7), DONE)
PLAIN_STREAM = streams(delta("a"), delta("b"), delta("c"), DONE)
NO_USAGE = answers(b'{"id":"c","choices":[]}')


class TestEveryWayOut:
    """The account afterwards: nothing in flight, and (requests, tokens) gone from the buckets exactly as used."""

    @pytest.mark.parametrize(
        ("behaviour", "body", "status", "gone"),
        [
            (answers(), BODY, 200, (1, 7)),
            (NO_USAGE, BODY, 200, (1, 100)),
            (USAGE_STREAM, STREAM_BODY, 200, (1, 97)),
            (PLAIN_STREAM, STREAM_BODY, 200, (1, 103)),
            (_breaks_off, STREAM_BODY, 200, (1, 102)),
            (_fails(400), BODY, 400, (1, 0)),
            (_fails(422), STREAM_BODY, 422, (1, 0)),
            (_fails(429), BODY, 429, (0, 0)),
            (_fails(500), BODY, 500, (0, 0)),
            (_fails(503), STREAM_BODY, 503, (0, 0)),
            (_resets, BODY, 502, (0, 0)),
            (hangs(), BODY, 504, (0, 0)),
            (hangs(), STREAM_BODY, 504, (0, 0)),
            (hangs(delta("a")), STREAM_BODY, 200, (1, 101)),
            (answers(), b"{", 400, (0, 0)),
            (answers(), chat_body(model="junk"), 404, (0, 0)),
        ],
    )
    async def test_answers_and_failures(
        self,
        tmp_path: Path,
        behaviour: Callable[[Call], Awaitable[None]],
        body: bytes,
        status: int,
        gone: tuple[int, int],
    ) -> None:
        """Served ones cost what they used, refused and failed ones nothing."""
        options: dict[str, Any] = {"timeouts": {"first_byte_s": 0.1, "idle_s": 0.1}}
        async with (
            FakeReplica(behaviour) as replica,
            limited(tmp_path, replica, limits=RATES, clock=Clock(), **options) as gateway,
            serving(gateway) as port,
        ):
            reply = await ask(port, CHAT, body, KEY)
            assert reply.status == status
            await until(lambda: account_of(gateway).num_in_flight == 0)
            assert used(gateway) == gone
            account_of(gateway).check_integrity()
            assert_nothing_held(gateway)

    async def test_what_the_key_may_not_do(self, tmp_path: Path) -> None:
        """A model or lane that isn't allowed costs nothing."""
        limits = {**RATES, "models": ["m2"], "lanes": ["background"]}
        async with (
            FakeReplica(answers(), models=("m1", "m2")) as replica,
            limited(tmp_path, replica, limits=limits, clock=Clock()) as gateway,
            serving(gateway) as port,
        ):
            assert (await ask(port, CHAT, BODY, KEY)).status == 403
            lane = ("x-tailgate-lane", "interactive")
            assert (await ask(port, CHAT, chat_body(model="m2"), KEY, lane)).status == 403
            assert used(gateway) == (0, 0)
            assert account_of(gateway).num_in_flight == 0

    async def test_a_replica_that_is_not_there(self, tmp_path: Path) -> None:
        """Refused connections are free."""
        async with (
            FakeReplica(answers()) as replica,
            limited(tmp_path, replica, limits=RATES, clock=Clock()) as gateway,
            serving(gateway) as port,
        ):

            async def connect() -> None:
                raise ConnectFailed

            gateway.upstreams.of("r1", replica.url).connect = connect  # type: ignore[method-assign, assignment]
            assert (await ask(port, CHAT, BODY, KEY)).status == 502
            assert used(gateway) == (0, 0)

    async def test_a_second_attempt(self, tmp_path: Path) -> None:
        """A request that succeeds at last was one request, and paid for once."""
        async with (
            FakeReplica(_resets) as bad,
            FakeReplica(answers()) as good,
            limited(tmp_path, bad, good, limits=RATES, clock=Clock()) as gateway,
            serving(gateway) as port,
        ):
            attempts = set()
            for _ in range(4):
                reply = await ask(port, CHAT, BODY, KEY)
                assert reply.status == 200
                attempts.add(reply.header(b"x-tailgate-attempt")[0])
            assert b"2" in attempts
            assert used(gateway) == (4, 28)

    async def test_turned_away_by_the_queue(self, tmp_path: Path) -> None:
        """A full queue, and one that waited too long: neither was served."""
        options: dict[str, Any] = {
            "policy": {"options": {"fixed": {"in_flight_tokens": 1}, "queue": {"max_requests": 1}}},
            "timeouts": {"queue_s": 30.0},
        }
        clock = Clock()
        async with (
            FakeReplica(hangs()) as replica,
            limited(tmp_path, replica, limits=RATES, clock=clock, **options) as gateway,
        ):
            first = HandDriven(gateway, CHAT, headers=ASGI_KEY).start(BODY)
            await until(lambda: replica.num_running == 1)
            second = HandDriven(gateway, CHAT, headers=ASGI_KEY).start(BODY)
            await until(lambda: gateway.core.num_queued == 1)
            third = HandDriven(gateway, CHAT, headers=ASGI_KEY).start(BODY)
            await third.ended()
            assert (third.status, used(gateway)) == (429, (2, 300))
            clock.now_s += 31.0
            gateway.dispatcher.pump()
            await second.ended()
            assert second.status == 503
            assert account_of(gateway).num_in_flight == 1
            first.disconnect()
            await first.ended()
            clock.now_s += 60.0
            assert account_of(gateway).num_in_flight == 0
            assert used(gateway) == (0, 0)

    @pytest.mark.parametrize("is_cancelled", [False, True])
    @pytest.mark.parametrize(
        ("moment", "gone"),
        [("body", (0, 0)), ("count", (0, 0)), ("queue", (1, 150)), ("connect", (1, 100)), ("answer", (1, 100))],
    )
    async def test_a_client_that_leaves(
        self, tmp_path: Path, moment: str, gone: tuple[int, int], *, is_cancelled: bool
    ) -> None:
        """At every moment, or a server that cancels: what a replica was sent is paid, the rest comes back."""
        async with (
            FakeReplica(hangs()) as replica,
            limited(tmp_path, replica, limits=RATES, clock=Clock(), **ONE_AT_A_TIME) as gateway,
        ):
            there = asyncio.Event()

            async def stuck(*_: object, **__: object) -> None:
                there.set()
                await asyncio.Event().wait()

            if moment == "count":
                gateway.tokens.count = stuck  # type: ignore[method-assign, assignment]
            if moment == "connect":
                gateway.upstreams.of("r1", replica.url).connect = stuck  # type: ignore[method-assign, assignment]
            if moment == "queue":
                HandDriven(gateway, CHAT, headers=ASGI_KEY).start(BODY)
                await until(lambda: replica.num_running == 1)
            request = HandDriven(gateway, CHAT, headers=ASGI_KEY)
            if moment == "body":
                request.start()
                request.receive(b"{", more=True)
                await until(lambda: account_of(gateway).num_in_flight == 1)
            else:
                request.start(BODY)
            if moment in ("count", "connect"):
                await there.wait()
            if moment == "queue":
                await until(lambda: gateway.core.num_queued == 1)
            if moment == "answer":
                await until(lambda: replica.num_running == 1)
            assert request.task is not None
            if is_cancelled:
                request.task.cancel()
                await asyncio.wait([request.task])
                assert request.task.cancelled()
            else:
                request.disconnect()
                await request.ended()
            assert account_of(gateway).num_in_flight == (1 if moment == "queue" else 0)
            assert used(gateway) == gone
            account_of(gateway).check_integrity()

    async def test_a_fault_of_our_own(self, tmp_path: Path) -> None:
        """What breaks inside the gateway is free, and given back like everything."""
        async with (
            FakeReplica(answers()) as replica,
            limited(tmp_path, replica, limits=RATES, clock=Clock()) as gateway,
            serving(gateway) as port,
        ):

            async def broken(*_: object, **__: object) -> None:
                raise RuntimeError("planted")

            gateway.tokens.count = broken  # type: ignore[method-assign, assignment]
            assert (await ask(port, CHAT, BODY, KEY)).status == 500
            assert account_of(gateway).num_in_flight == 0
            assert used(gateway) == (0, 0)

    async def test_requests_without_generation_take_no_tokens(self, tmp_path: Path) -> None:
        """Counting tokens is a request, and nothing else."""
        async with (
            FakeReplica(answers(b'{"input_tokens":3}')) as replica,
            limited(tmp_path, replica, limits=RATES, clock=Clock(), replica={"kind": "vllm"}) as gateway,
            serving(gateway) as port,
        ):
            reply = await ask(port, "/v1/messages/count_tokens", BODY, KEY)
            assert reply.status == 200
            assert used(gateway) == (1, 0)


async def test_what_is_held_of_limits_and_how_many_tasks_there_are_is_on_the_page(tmp_path: Path) -> None:
    """While a request runs, and no longer."""

    def shown(name: str) -> float:
        line = next(line for line in gateway.metrics.render()[0].decode().splitlines() if line.startswith(f"{name} "))
        return float(line.split()[1])

    async with FakeReplica(hangs()) as replica, limited(tmp_path, replica, limits={"tokens_per_min": 1000}) as gateway:
        num_tasks = shown("tailgate_tasks")
        request = HandDriven(gateway, CHAT, headers=ASGI_KEY).start(BODY)
        await until(lambda: gateway.core.num_in_flight == 1)
        assert shown("tailgate_limited_requests_in_flight") == 1
        assert shown("tailgate_limited_tokens_in_flight") == PROMPT_TOKENS + OUTPUT_BOUND
        assert shown("tailgate_tasks") > num_tasks
        request.disconnect()
        await request.ended()
        await until(lambda: replica.num_running == 0)
        assert shown("tailgate_limited_requests_in_flight") == 0
        assert shown("tailgate_limited_tokens_in_flight") == 0
        assert gateway.keys.num_in_flight == 0


async def test_hundreds_of_requests_cut_at_random_leave_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Clients that leave at any moment, replicas that fail in every way, limits that bite: all accounts are exact."""
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    rng = random.Random(seed)

    async def behave(call: Call) -> None:
        luck = rng.random()
        if luck < 0.1:
            await call.whole(b"{}", status=rng.choice([400, 429, 500, 503]))
        elif luck < 0.2:
            call.reset()
        elif b"true" not in call.received.body:
            await asyncio.sleep(0.002)
            await call.whole(b'{"usage":{"prompt_tokens":3,"completion_tokens":4}}')
        else:
            await call.head(headers=[("content-type", "text/event-stream")])
            for _ in range(8):
                await asyncio.sleep(0.001)
                await call.chunk(delta("x"))
                if luck > 0.97:
                    call.reset()
                    return
            await call.chunk(DONE)
            await call.end()

    async def one(port: int) -> None:
        cut_after_s = rng.uniform(0.0, 0.03) if rng.random() < 0.4 else None
        body = chat_body(stream=rng.random() < 0.7, max_tokens=rng.randrange(1, 500))
        if rng.random() < 0.05:
            body = rng.choice([b"{", chat_body(model="junk"), chat_body(max_tokens="x")])
        async with RawClient(port, post(CHAT, body, KEY)) as client:
            try:
                async with asyncio.timeout(cut_after_s):
                    await client.read_all()
            except TimeoutError:
                client.leave()

    limits = {
        "requests_per_min": 100_000,
        "tokens_per_min": 1_000_000,
        "max_in_flight_requests": 8,
        "max_in_flight_tokens": 6000,
    }
    options: dict[str, Any] = {
        "policy": {"options": {"fixed": {"in_flight_tokens": 3000}, "queue": {"max_requests": 10}}},
    }
    async with (
        FakeReplica(behave) as left,
        FakeReplica(behave) as right,
        limited(tmp_path, left, right, limits=limits, **options) as gateway,
        serving(gateway) as port,
    ):
        gate = asyncio.Semaphore(40)

        async def gated() -> None:
            async with gate:
                await one(port)

        account = account_of(gateway)
        monkeypatch.setattr(gateway.keys._rates["k"], "clock", lambda: 0.0)  # so that nothing is refilled meanwhile
        leave = Account.leave

        def noted(self: Account, request_id: str, used_tokens: int | None, now_s: float) -> None:
            left_with.append((request_id, used_tokens))
            leave(self, request_id, used_tokens, now_s)

        left_with: list[tuple[str, int | None]] = []
        monkeypatch.setattr(Account, "leave", noted)
        await asyncio.gather(*(gated() for _ in range(600)))
        await until(lambda: account.num_in_flight == 0)
        assert account.in_flight_tokens == 0
        account.check_integrity()
        assert_nothing_held(gateway)
        records = list(gateway.ring._records.values())
        assert len(records) == 600
        outcomes = {record.outcome for record in records}
        assert {"ok", "client-left", "rejected", "failed", "bad-request"} <= outcomes
        # Every request that had entered left once, and what is gone is what they were charged.
        assert len(left_with) == len({request_id for request_id, _ in left_with})
        charges = [tokens for _, tokens in left_with if tokens is not None]
        requests, tokens = account.requests_standing(0.0), account.tokens_standing(0.0)
        assert requests is not None
        assert tokens is not None
        assert requests.limit - requests.remaining == len(charges)
        assert tokens.limit - tokens.remaining == sum(charges)
        assert 0 < len(charges) < len(left_with)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0, "0s"),
        (0.0000001, "0s"),
        (0.0201, "21ms"),
        (0.999, "999ms"),
        (8.64, "8.64s"),
        (60.0, "1m0s"),
        (361.5, "6m1.5s"),
    ],
)
def test_durations_look_like_openais(seconds: float, text: str) -> None:
    """Which clients parse."""
    assert duration(seconds) == text
