"""The engine with the embedded model in float32: the same greedy tokens in any batch, chunk, cache and memory."""

from collections.abc import Sequence

import pytest
import torch

from backend.settings import EngineSettings, build_engine
from backend.weights import LoadedModel, load_model

from .collect import collect, run_all
from .fake_model import request

pytestmark = [pytest.mark.model, pytest.mark.slow]

TEXTS = (
    "The capital of France is",
    "Once upon a time there was a small dog who lived in a large house near the sea, and every morning " * 3,
    "Once upon a time there was a small dog who lived in a large house near the sea, and every morning " * 2 + "it",
    "def fibonacci(n):",
    "Water boils at",
    "List three fruits: " * 12,
)
NUM_TOKENS = 16


@pytest.fixture(scope="module")
def loaded() -> LoadedModel:
    torch.set_num_threads(1)
    return load_model("embedded", dtype=torch.float32, progress=lambda line: None)


@pytest.fixture(scope="module")
def alone(loaded: LoadedModel) -> list[list[int]]:
    """Each prompt alone, in one chunk, uncached."""
    return [
        generate(loaded, [text], EngineSettings(enable_prefix_caching=False, num_blocks=64))[0][0] for text in TEXTS
    ]


def generate(
    loaded: LoadedModel, texts: Sequence[str], settings: EngineSettings, *, stagger: int = 0
) -> tuple[list[list[int]], int, int]:
    """Greedy tokens of each text, preemptions, cached tokens. A request is sent every `stagger` steps."""
    engine, metrics = build_engine(loaded, settings, "m")
    collected = collect(engine)
    for i, text in enumerate(texts):
        ids = loaded.tokenizer.encode(text)
        engine.submit([request(str(i), ids, NUM_TOKENS, arrival_s=float(i), ignore_eos=True)])
        for _ in range(stagger):
            engine.run_pending()
            engine.check_integrity()
    run_all(engine)
    assert engine.held_blocks == 0
    [line] = [line for line in metrics.render()[0].decode().splitlines() if "num_preemptions_total{" in line]
    cached = sum(collected.last(str(i)).timing.cached_prompt_tokens for i in range(len(texts)))
    return [collected.tokens(str(i)) for i in range(len(texts))], int(float(line.split()[-1])), cached


@pytest.mark.parametrize("max_num_batched_tokens", [16, 64, 512])
@pytest.mark.parametrize("enable_prefix_caching", [True, False])
def test_batched_and_chunked(
    loaded: LoadedModel, alone: list[list[int]], max_num_batched_tokens: int, enable_prefix_caching: bool
) -> None:
    """All prompts together, cut into chunks of each size, with and without the prefix cache."""
    settings = EngineSettings(
        max_num_batched_tokens=max_num_batched_tokens,
        max_num_seqs=8,
        num_blocks=128,
        enable_prefix_caching=enable_prefix_caching,
    )
    tokens, _, cached = generate(loaded, TEXTS, settings, stagger=5)
    assert tokens == alone
    assert (cached > 0) == enable_prefix_caching


def test_preempted(loaded: LoadedModel, alone: list[list[int]]) -> None:
    """So few blocks that sequences throw each other out."""
    settings = EngineSettings(max_num_batched_tokens=64, max_num_seqs=8, num_blocks=12, enable_prefix_caching=False)
    tokens, num_preempted, _ = generate(loaded, TEXTS, settings)
    assert num_preempted > 0
    assert tokens == alone


def test_sent_twice(loaded: LoadedModel, alone: list[list[int]]) -> None:
    """The second time everything but the last block comes from the cache."""
    settings = EngineSettings(max_num_seqs=1, num_blocks=128)
    tokens, _, cached = generate(loaded, TEXTS[:3] * 2, settings)
    assert tokens == alone[:3] * 2
    assert cached > 100
