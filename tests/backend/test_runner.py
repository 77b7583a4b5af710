"""The runner's answer for a sequence depends on that sequence alone, however its tokens are cut into steps."""

import random
from pathlib import Path

import pytest
import torch

from backend.model.causal_lm import CausalLM
from backend.runner import ModelRunner, RunnerRow, kv_bytes_per_block
from tests.backend.tiny_models import GreedySequence, block_tables, generate, load, write_model

SEED = 11
NUM_TOKENS = 12


@pytest.fixture(scope="module", params=["llama", "qwen3"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> CausalLM:
    """A tiny model in float32."""
    directory: Path = tmp_path_factory.mktemp("model")
    write_model(directory, request.param)
    return load(directory).model


def prompts() -> list[list[int]]:
    chance = random.Random(SEED)
    return [[chance.randrange(320) for _ in range(n)] for n in (1, 7, 8, 9, 33, 100, 200)]


def alone(model: CausalLM, prompt: list[int]) -> list[int]:
    """Greedy output of a prompt by itself, computed whole."""
    sequence = GreedySequence(prompt, list(range(30)))
    generate(ModelRunner(model, num_blocks=30, block_size=8), [sequence], NUM_TOKENS)
    return sequence.output


@pytest.mark.parametrize("chunk_tokens", [1, 5, 64, 1000])
def test_same_tokens_in_a_batch_and_in_chunks(model: CausalLM, chunk_tokens: int) -> None:
    """Sequences of all lengths together, prompts whole or cut, mixed with decodes: the tokens each gets alone."""
    tables = block_tables(len(prompts()), 28, seed=SEED)
    sequences = [GreedySequence(p, t) for p, t in zip(prompts(), tables, strict=True)]
    generate(ModelRunner(model, num_blocks=28 * len(sequences), block_size=8), sequences, NUM_TOKENS, chunk_tokens)
    assert [s.output for s in sequences] == [alone(model, p) for p in prompts()], f"seed {SEED}"


def test_same_tokens_after_a_cached_prefix(model: CausalLM) -> None:
    """A sequence that starts on blocks another one computed goes on as if it had computed them itself."""
    runner = ModelRunner(model, num_blocks=60, block_size=8)
    prompt = prompts()[-1]
    generate(runner, [GreedySequence(prompt, list(range(30)))], NUM_TOKENS)
    shared = 12 * 8
    second = GreedySequence([*prompt[:shared], 3, 1, 4], [*range(12), *range(40, 50)])
    second.computed = shared
    generate(runner, [second], NUM_TOKENS)
    assert second.output == alone(model, second.prompt)


def test_a_step_of_decodes_far_apart_in_length_is_grouped(model: CausalLM) -> None:
    """Very short and very long sequences decode in one step, in any order of rows, with logits in that order."""
    long_prompt = [i % 320 for i in range(470)]
    runner = ModelRunner(model, num_blocks=66, block_size=8)
    sequences = [GreedySequence([5], [60 + i]) for i in range(4)]
    sequences.insert(2, GreedySequence(long_prompt, list(range(60))))
    generate(runner, sequences, 3)
    rows = [s.row(1) for s in sequences]
    batch = runner.forward(rows)
    for i, row in enumerate(rows):
        torch.testing.assert_close(batch[i : i + 1], runner.forward([row]), rtol=1e-4, atol=1e-4)


def test_rows_without_wanted_logits_only_fill_the_cache(model: CausalLM) -> None:
    """A chunk that isn't the last yields no row of logits; a step of such chunks only yields none at all."""
    runner = ModelRunner(model, num_blocks=4, block_size=8)
    assert runner.forward([RunnerRow([1, 2, 3], 0, [0], False)]).shape == (0, 320)
    logits = runner.forward([RunnerRow([9], 0, [1], False), RunnerRow([4, 5], 3, [0], True)])
    whole = runner.forward([RunnerRow([1, 2, 3, 4, 5], 0, [2], True)])
    torch.testing.assert_close(logits, whole, rtol=1e-4, atol=1e-4)


def test_no_rows_yield_no_logits(model: CausalLM) -> None:
    """An empty step is allowed and does nothing."""
    assert ModelRunner(model, num_blocks=1, block_size=8).forward([]).shape == (0, 320)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (RunnerRow([], 0, [0], True), "at least one token"),
        (RunnerRow([1] * 9, 0, [0], True), "don't cover 9 tokens"),
        (RunnerRow([1], 8, [0], True), "don't cover 9 tokens"),
    ],
)
def test_impossible_rows_are_refused_before_anything_is_written(model: CausalLM, row: RunnerRow, message: str) -> None:
    """A row without tokens, or past its block table, raises and leaves the cache as it was."""
    runner = ModelRunner(model, num_blocks=2, block_size=8)
    with pytest.raises(ValueError, match=message):
        runner.forward([RunnerRow([1], 0, [1], True), row])
    assert not runner.cache.blocks.any()


def test_cache_size_is_what_is_allocated(model: CausalLM) -> None:
    """`kv_bytes_per_block` times the number of blocks is the cache's memory; a cache of nothing is refused."""
    runner = ModelRunner(model, num_blocks=3, block_size=8)
    assert 3 * kv_bytes_per_block(model.config, 8, model.dtype) == runner.cache.blocks.nbytes
    with pytest.raises(ValueError, match="can't hold anything"):
        ModelRunner(model, num_blocks=0, block_size=8)
