"""What was counted once: whole prompts and parts of prompts, bounded, and nobody else's business."""

import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx
import orjson
import pytest

from gateway.added_tokens import MAX_PARTS
from gateway.api.fields import RequestFields, read_chat, read_completions
from gateway.config import parse_config
from gateway.digest_cache import ENTRY_BYTES, DigestCache, digest, scope_of
from gateway.encoders import Encoder
from gateway.tokens import TokenCounter, make_pool
from tests.support.tokenizer_folders import load_once, make_folder

SYSTEM = {"role": "system", "content": "You are a helpful assistant. " * 20}


class Recording:
    """An encoder that writes down what it counts."""

    def __init__(self, encoder: Encoder) -> None:
        self._encoder = encoder
        self.name = encoder.name
        self.bytes_per_s = encoder.bytes_per_s
        self.texts: list[str] = []

    def count(self, text: str) -> int:
        self.texts.append(text)
        return self._encoder.count(text)

    def taken(self) -> list[str]:
        """What was counted since the last time."""
        texts, self.texts = self.texts, []
        return texts


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_folder(tmp_path_factory.mktemp("tokenizer"))


@pytest.fixture
async def counter(folder: Path) -> AsyncIterator[TokenCounter]:
    models = [{"name": name, "tokenizer": str(folder)} for name in ("m", "other")]
    config = parse_config({"replicas": [{"url": "http://127.0.0.1:9"}], "models": models}, source="test")
    async with httpx.AsyncClient(trust_env=False) as http:
        clock = time.monotonic
        made = TokenCounter(config.models, make_pool(clock), http, clock, patience_s=60.0, load=load_once)
        await made.start()
        yield made
        await made.aclose()


@pytest.fixture
def recording(counter: TokenCounter, monkeypatch: pytest.MonkeyPatch) -> Iterator[Recording]:
    tokenizer = counter._local["m"]._tokenizer
    recording = Recording(tokenizer.encoder)
    monkeypatch.setattr(tokenizer, "encoder", recording)
    yield recording
    assert not recording.texts, "every text was looked at"


def chat(*messages: dict[str, Any], **more: Any) -> RequestFields:
    return read_chat(orjson.dumps({"model": "m", "messages": messages, **more}), [], 64)


def user(content: str) -> dict[str, Any]:
    return {"role": "user", "content": content}


async def test_the_same_prompt_is_counted_once(counter: TokenCounter, recording: Recording) -> None:
    """Other members of the body don't matter, tools and the text do."""
    first = await counter.count(chat(user("fox")), "m", [])
    assert recording.taken() == ["user\nfox", "\n", "assistant\n"]
    second = await counter.count(chat(user("fox"), temperature=0.5), "m", [])
    assert second.prompt_tokens == first.prompt_tokens
    assert recording.taken() == []
    await counter.count(chat(user("dog")), "m", [])
    assert recording.taken() == ["user\ndog"]


@pytest.mark.parametrize("times", [1, 400], ids=["short", "long"])
async def test_a_repeated_beginning_is_counted_once(counter: TokenCounter, recording: Recording, times: int) -> None:
    """A system prompt, or a conversation so far: on the loop and, where the prompt is long, on a thread."""
    system = {**SYSTEM, "content": SYSTEM["content"] * times}
    conversation = [system, user("one")]
    await counter.count(chat(*conversation), "m", [])
    assert recording.taken() == [f"system\n{system['content']}", "\n", "user\none", "assistant\n"]
    conversation += [{"role": "assistant", "content": "two"}, user("three")]
    grown = await counter.count(chat(*conversation), "m", [])
    assert recording.taken() == ["assistant\ntwo", "user\nthree"]
    whole = await counter.count(chat(*conversation), "m", [], "another tenant")
    assert whole.prompt_tokens == grown.prompt_tokens
    assert len(recording.taken()) == 6


async def test_tenants_and_models_learn_nothing_from_each_other(counter: TokenCounter, recording: Recording) -> None:
    """A text counts as quickly as before, whoever sent it elsewhere."""
    fields = chat(user("secret"))
    for model, tenant in (("m", "acme"), ("m", "other"), ("m", ""), ("other", "acme")):
        await counter.count(fields, model, [], tenant)
        assert recording.taken() == ["user\nsecret", "\n", "assistant\n"]
    await counter.count(fields, "m", [], "acme")
    assert recording.taken() == []


async def test_prompts_of_very_many_parts_are_counted_whole(counter: TokenCounter, recording: Recording) -> None:
    """By the tokenizer, in one go, and exactly."""
    exact = counter._local["m"]._tokenizer.exact
    for prompt in ("<|im_end|>fox" * (MAX_PARTS + 1), ["<|im_end|>fox"] * (MAX_PARTS + 1)):
        fields = read_completions(orjson.dumps({"model": "m", "prompt": prompt}), [], 64)
        counted = await counter.count(fields, "m", [])
        assert counted.prompt_tokens == (MAX_PARTS + 1) * exact.count("<|im_end|>fox")
        assert recording.taken() == []


async def test_a_failing_tokenizer_fails_no_request(
    counter: TokenCounter, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The estimate stands in, on the loop and on a thread."""

    def fail(_: str) -> int:
        raise ValueError("no")

    monkeypatch.setattr(counter._local["m"]._tokenizer.encoder, "count", fail)
    for text in ("fox", "fox " * 30_000):
        counted = await counter.count(chat(user(text)), "m", [])
        assert counted.source == "bytes"
    assert caplog.text.count("counting tokens of m failed") == 2


def test_the_cache_is_bounded_and_forgets_what_was_not_used() -> None:
    """In bytes; what was put in or used last stays."""
    cache: DigestCache[int] = DigestCache(3 * ENTRY_BYTES + 1)
    a, b, c, d = (digest(name, b"") for name in (b"a", b"b", b"c", b"d"))
    for value, key in enumerate((a, b, c)):
        cache.put(key, value)
    cache.used([a, d])
    cache.put(d, 3)
    assert [cache.get(key) for key in (a, b, c, d)] == [0, None, 2, 3]
    cache.put(c, 7)
    cache.put(b, 8)
    assert [cache.get(key) for key in (a, b, c, d)] == [None, 8, 7, 3]
    assert len(cache) == 3
    assert len(DigestCache[int](0)._entries) == 0


def test_an_entry_takes_what_is_said() -> None:
    """Measured, for as many as are kept."""
    import tracemalloc

    cache: DigestCache[int] = DigestCache(8 << 20)
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        for number in range(40_000):
            cache.put(digest(b"%d" % number, b""), 1000 + number)
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(cache) == (8 << 20) // ENTRY_BYTES
    assert after - before <= 8 << 20


def test_digests_differ_by_scope() -> None:
    """And scopes by every name and its place."""
    scopes = [scope_of("m", "t"), scope_of("t", "m"), scope_of("m", ""), scope_of("", "m"), scope_of("mt", "")]
    assert len(set(scopes)) == len({digest(b"x", scope) for scope in scopes}) == 5
    assert digest(b"x", scopes[0]) == digest(b"x", scope_of("m", "t"))
