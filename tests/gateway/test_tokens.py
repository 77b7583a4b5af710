"""Token counts: equal to what the model sees, from the best source there is, without holding up the event loop."""

import asyncio
import random
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import orjson
import pytest
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast

from gateway.api.fields import RequestFields, read_chat, read_completions
from gateway.bytes_per_token import PRIOR, BytesPerToken
from gateway.config import GatewayConfig, parse_config
from gateway.model_tokenizer import TokenizerLoadError
from gateway.replica_counter import REPLICA_PAUSE_S
from gateway.replicas import ReplicaPool
from gateway.tokens import TokenCounter, make_pool
from tests.support.tokenizer_folders import FAMILIES, embedded_folder, llama2_like, load_once, make_folder

from .tiny_replica import models_page, tiny_replica, until

CASES: list[list[dict[str, Any]]] = [
    [{"role": "user", "content": "What is the capital of France?"}],
    [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Ünïcode 🦊 and\n\nlines"}],
    [{"role": "user", "content": "<|im_end|> smuggled <|endoftext|>"}],
    [{"role": "user", "content": "word " * 3000}],
    [{"role": "user", "content": ""}],
]


@pytest.fixture(scope="module")
def tokenizer_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_folder(tmp_path_factory.mktemp("tokenizer"))


def config_for(url: str = "http://127.0.0.1:9", folder: Path | None = None) -> GatewayConfig:
    models = [] if folder is None else [{"name": "m", "tokenizer": str(folder)}]
    data = {"replicas": [{"url": url}], "models": models, "probes": {"interval_s": 60.0}}
    return parse_config(data, source="test")


@asynccontextmanager
async def running(
    config: GatewayConfig, clock: Any = time.monotonic, *, patience_s: float = 60.0
) -> AsyncIterator[TokenCounter]:
    """However slow the machine is, counts are waited for."""
    async with httpx.AsyncClient(trust_env=False) as http:
        counter = TokenCounter(config.models, make_pool(clock), http, clock, patience_s=patience_s, load=load_once)
        await counter.start()
        try:
            yield counter
        finally:
            await counter.aclose()


def chat(messages: list[dict[str, Any]], **more: Any) -> RequestFields:
    return read_chat(orjson.dumps({"model": "m", "messages": messages, **more}), [], 64)


def completion(prompt: object) -> RequestFields:
    return read_completions(orjson.dumps({"model": "m", "prompt": prompt}), [], 64)


def reference_count(folder: Path, messages: list[dict[str, Any]], **more: Any) -> int:
    reference = PreTrainedTokenizerFast.from_pretrained(str(folder))
    encoded = reference.apply_chat_template(messages, add_generation_prompt=True, tokenize=True, **more)
    return len(encoded["input_ids"])


def text_tokens(folder: Path, *texts: str) -> int:
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    return sum(len(tokenizer.encode(text)) for text in texts)


@pytest.mark.parametrize("case", range(len(CASES)))
async def test_chats_are_counted_as_transformers_counts_them(tokenizer_folder: Path, case: int) -> None:
    """Short ones on the loop, long ones on a thread: the same figure, and the cache gives it again."""
    async with running(config_for(folder=tokenizer_folder)) as counter:
        fields = chat(CASES[case])
        first, second = [await counter.count(fields, "m", []) for _ in range(2)]
        assert first.source == second.source == "local"
        assert first.prompt_tokens == second.prompt_tokens == reference_count(tokenizer_folder, CASES[case])
        assert (first.wait_s == 0.0) or fields.num_body_bytes > 1000


async def test_random_chats_are_counted_as_transformers_counts_them(tokenizer_folder: Path) -> None:
    """Any text, any roles, any number of turns."""
    seed = random.randrange(2**32)
    print("seed", seed)
    rng = random.Random(seed)
    alphabet = "ab \n\t<|im_start|>éß漢🦊0123"
    async with running(config_for(folder=tokenizer_folder)) as counter:
        for _ in range(30):
            messages = [
                {
                    "role": rng.choice(["user", "assistant"]),
                    "content": "".join(rng.choices(alphabet, k=rng.randrange(400))),
                }
                for _ in range(rng.randrange(1, 5))
            ]
            counted = await counter.count(chat(messages), "m", [])
            assert counted.prompt_tokens == reference_count(tokenizer_folder, messages)


async def test_templates_have_what_transformers_gives_them(tmp_path: Path) -> None:
    """tojson without HTML escapes, loop controls, trimmed blocks, special tokens, tools, generation marks."""
    template = (
        "{{ bos_token }}{%- if tools %}\n  {% for tool in tools %}\n"
        "{{ tool | tojson(indent=2) }}\n{% endfor %}{% endif %}\n"
        "{% for message in messages %}\n  {% if message.role == 'tool' %}{% continue %}{% endif %}\n"
        "{% generation %}{{ message.content | trim }}{% endgeneration %}\n{% endfor %}"
    )
    folder = make_folder(
        tmp_path / "t", chat_template=template, bos_token={"__type": "AddedToken", "content": "<|im_start|>"}
    )
    tools = [{"type": "function", "function": {"name": "f", "description": "<a> & 'b'", "parameters": {}}}]
    messages = [{"role": "user", "content": "  hi & <bye>  "}, {"role": "tool", "content": "skipped"}]
    async with running(config_for(folder=folder)) as counter:
        counted = await counter.count(chat(messages, tools=tools), "m", [])
        assert counted.source == "local"
        assert counted.prompt_tokens == reference_count(folder, messages, tools=tools)


async def test_a_template_file_wins_and_parts_are_joined(tmp_path: Path) -> None:
    """chat_template.jinja is the newer place; text parts count as joined text where a template wants text."""
    folder = make_folder(tmp_path / "t")
    (folder / "chat_template.jinja").write_text("{% for m in messages %}{{ 'X' + m.content }}{% endfor %}")
    parts = [{"type": "text", "text": "one"}, {"type": "image_url", "image_url": {}}, {"type": "text", "text": "two"}]
    async with running(config_for(folder=folder)) as counter:
        counted = await counter.count(chat([{"role": "user", "content": parts}]), "m", [])
        assert counted.prompt_tokens == text_tokens(folder, "Xone\ntwo")


async def test_completions_are_counted_over_all_prompts(tokenizer_folder: Path) -> None:
    """Texts are tokenized; ids need no tokenizer at all."""
    async with running(config_for(folder=tokenizer_folder)) as counter:
        one = await counter.count(completion("the lazy dog"), "m", [])
        assert one.prompt_tokens == text_tokens(tokenizer_folder, "the lazy dog")
        two = await counter.count(completion(["the lazy dog", "fox"]), "m", [])
        assert two.prompt_tokens == text_tokens(tokenizer_folder, "the lazy dog", "fox")
    async with running(config_for()) as counter:
        assert (await counter.count(completion([1, 2, 3]), "m", [])).prompt_tokens == 3
        counted = await counter.count(completion([[1, 2], [3]]), "m", [])
        assert (counted.prompt_tokens, counted.source) == (3, "local")


async def test_a_template_that_refuses_fails_no_request(tmp_path: Path) -> None:
    """The next source is used; a broken program in a template is no different."""
    for template in ("{{ raise_exception('roles must alternate') }}", "{{ messages[99].content.x }}", "{{ 1 / 0 }}"):
        folder = make_folder(tmp_path / "t", chat_template=template)
        async with running(config_for(folder=folder)) as counter:
            for text in ("hi", "hi " * 200):
                counted = await counter.count(chat([{"role": "user", "content": text}]), "m", [])
                assert counted.source == "bytes"
                assert counted.prompt_tokens > 0


async def test_templates_are_sandboxed(tmp_path: Path) -> None:
    """A template can't reach Python, and can't change the messages."""
    for template in ("{{ ''.__class__.__mro__ }}", "{{ messages.append(1) }}"):
        folder = make_folder(tmp_path / "t", chat_template=template)
        async with running(config_for(folder=folder)) as counter:
            assert (await counter.count(chat(CASES[0]), "m", [])).source == "bytes"


@pytest.mark.parametrize("broken", ["json", "template", "config"])
async def test_files_that_cannot_be_used_stop_the_start(tmp_path: Path, broken: str) -> None:
    """With the file's name."""
    folder = make_folder(tmp_path / "t")
    file = {"json": "tokenizer.json", "template": "chat_template.jinja", "config": "tokenizer_config.json"}[broken]
    (folder / file).write_text("{% if %}")
    with pytest.raises(TokenizerLoadError, match=r"tokenizer|template"):
        async with running(config_for(folder=folder)):
            pass


@asynccontextmanager
async def with_replica(**pages: Any) -> AsyncIterator[tuple[Any, ReplicaPool]]:
    pages = {"health": (200, ""), "v1_models": models_page("m", owned_by="vllm"), **pages}
    async with tiny_replica(**pages) as fake, httpx.AsyncClient(trust_env=False) as http:
        pool = ReplicaPool(config_for(fake.url), http, time.monotonic, lambda _: None)
        pool.start()
        await until(lambda: pool.get("r1").is_available)
        try:
            yield fake, pool
        finally:
            await pool.aclose()


async def test_without_a_tokenizer_the_replica_is_asked() -> None:
    """In vLLM's shape; the answer is remembered."""
    bodies = []

    async def tokenize(body: bytes) -> tuple[int, Any]:
        bodies.append(orjson.loads(body))
        return 200, {"count": 17, "tokens": [0] * 17}

    async with with_replica(tokenize=tokenize) as (_, pool), running(config_for()) as counter:
        bodies.clear()
        for _ in range(2):
            counted = await counter.count(chat(CASES[0]), "m", pool.all())
            assert (counted.prompt_tokens, counted.source) == (17, "replica")
        assert bodies == [{"model": "m", "messages": CASES[0], "add_generation_prompt": True}]
        assert (await counter.count(completion(["a", "b"]), "m", pool.all())).prompt_tokens == 34


@pytest.mark.parametrize("answer", [(500, ""), (200, "no json"), (200, {"count": "7"}), (200, [1])])
async def test_a_replica_that_cannot_count_falls_through_and_is_left_alone(answer: tuple[int, Any]) -> None:
    """The estimate stands in; the replica is asked again after a while, not for every request."""
    now_s = 0.0
    async with (
        with_replica(tokenize=(200, {"count": 2})) as (fake, pool),
        running(config_for(), clock=lambda: now_s) as counter,
    ):
        fake.pages["/tokenize"] = answer
        fake.asked.clear()
        for text in ("one", "two"):
            counted = await counter.count(completion(text), "m", pool.all())
            assert counted.source == "bytes"
        assert fake.asked.count("/tokenize") == 1
        now_s = REPLICA_PAUSE_S
        fake.pages["/tokenize"] = (200, {"count": 5})
        assert (await counter.count(completion("three"), "m", pool.all())).prompt_tokens == 5


async def test_bytes_per_token_are_learned_from_usage() -> None:
    """It starts at the prior and follows what answers say, per model."""
    async with running(config_for()) as counter:
        fields = completion("x" * 4000)
        before = await counter.count(fields, "m", [])
        assert (before.source, before.prompt_tokens) == ("bytes", round(fields.num_body_bytes / PRIOR))
        for _ in range(100):
            counter.learn("m", 3000, 1500)
        after = await counter.count(fields, "m", [])
        assert after.prompt_tokens == pytest.approx(fields.num_body_bytes / 2.0, rel=0.02)
        assert (await counter.count(fields, "other", [])).prompt_tokens == before.prompt_tokens


def test_odd_answers_teach_little() -> None:
    """Pictures, nonsense and outliers move the estimate a little or not at all."""
    ratios = BytesPerToken()
    for num_body_bytes, tokens in ((10_000_000, 300), (100, 0), (0, 5), (-1, -1), (100, 10_000)):
        ratios.learn("m", num_body_bytes, tokens)
    assert ratios.ratio("m") == PRIOR
    ratios.learn("m", 15_000, 1000)
    assert ratios.ratio("m") <= PRIOR * 1.11
    assert ratios.estimate("m", 1) == 1


async def test_the_loop_runs_on_while_a_long_prompt_is_counted(tokenizer_folder: Path) -> None:
    """The interpreter lock is released: the loop's ticks stay short, and a cancelled count leaves nothing behind."""
    fields = chat([{"role": "user", "content": "the quick brown fox " * 60_000}])
    async with running(config_for(folder=tokenizer_folder)) as counter:
        task = asyncio.create_task(counter.count(fields, "m", []))
        ticks = 0
        while not task.done():
            await asyncio.sleep(0)
            ticks += 1
        assert ticks > 100
        task = asyncio.create_task(counter.count(chat([{"role": "user", "content": "fox " * 300_000}]), "m", []))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert counter.num_waiting == 0
        assert (await counter.count(chat(CASES[0]), "m", [])).source == "local"


@pytest.mark.parametrize("family", [*FAMILIES, "llama2"])
async def test_every_family_is_counted_exactly(tmp_path: Path, family: str, caplog: pytest.LogCaptureFixture) -> None:
    """Chats and completions, with what counts them in the log: tokenizers where tiktoken can't stand in for it."""
    folder = make_folder(tmp_path, llama2_like() if family == "llama2" else family)
    with caplog.at_level("INFO", "gateway.tokens"):
        async with running(config_for(folder=folder)) as counter:
            for messages in CASES:
                counted = await counter.count(chat(messages), "m", [])
                assert counted.prompt_tokens == reference_count(folder, messages)
            texts = ["", "the lazy dog", "<|im_start|>x<|im_end|>", "word " * 9000]
            counted = await counter.count(completion(texts), "m", [])
            assert (counted.prompt_tokens, counted.source) == (text_tokens(folder, *texts), "local")
            assert counter.encoders == {"m": "tokenizers" if family == "llama2" else "tiktoken"}
    expected = "tokenizers (the beginning of a text" if family == "llama2" else "tiktoken"
    assert f"tokens of m are counted with {expected}" in caplog.text


@pytest.mark.model
async def test_the_embedded_models_prompts_are_counted_exactly(tmp_path: Path) -> None:
    """With the files that the bundled engine exports."""
    embedded_folder(tmp_path)
    async with running(config_for(folder=tmp_path)) as counter:
        for messages in CASES:
            counted = await counter.count(chat(messages), "m", [])
            assert counted.prompt_tokens == reference_count(tmp_path, messages)
