"""Every family computes what transformers computes, from the files that transformers writes."""

import random
from pathlib import Path
from typing import Any

import pytest
import torch

from backend.runner import ModelRunner, RunnerRow
from tests.backend.tiny_models import VARIANTS, GreedySequence, block_tables, generate, load, write_model

SEED = 20
CLOSE: dict[str, Any] = {"rtol": 1e-4, "atol": 1e-4}


@pytest.mark.parametrize("variant", VARIANTS)
def test_greedy_tokens_and_logits_equal_transformers(variant: str, tmp_path: Path) -> None:
    """In float32, prompts in one batch get transformers' logits for their last token and its greedy continuation."""
    reference = write_model(tmp_path, variant)
    loaded = load(tmp_path)
    runner = ModelRunner(loaded.model, num_blocks=64, block_size=8)
    chance = random.Random(SEED)
    prompts = [[chance.randrange(320) for _ in range(n)] for n in (1, 2, 17, 90)]
    tables = block_tables(len(prompts), 16)
    logits = runner.forward([RunnerRow(p, 0, t, True) for p, t in zip(prompts, tables, strict=True)])
    sequences = [GreedySequence(p, t) for p, t in zip(prompts, tables, strict=True)]
    generate(runner, sequences, 16)
    for sequence, ours in zip(sequences, logits, strict=True):
        with torch.no_grad():
            theirs = reference(torch.tensor([sequence.token_ids])).logits[0]
        torch.testing.assert_close(ours, theirs[len(sequence.prompt) - 1], **CLOSE)
        # Each of our tokens being transformers' best after the ones before it is greedy equality, by induction.
        assert theirs[len(sequence.prompt) - 1 : -1].argmax(-1).tolist() == sequence.output, f"seed {SEED}"


def test_sharded_checkpoints_are_the_same_model(tmp_path: Path) -> None:
    """Several safetensors files with an index load as one file does."""
    write_model(tmp_path / "one", "llama")
    write_model(tmp_path / "many", "llama", shards=True)
    assert len(list((tmp_path / "many").glob("*.safetensors"))) > 1
    row = RunnerRow([5, 6, 7], 0, [0], True)
    one, many = (
        ModelRunner(load(tmp_path / name).model, num_blocks=1, block_size=8).forward([row]) for name in ("one", "many")
    )
    assert torch.equal(one, many)


def test_weights_that_cannot_be_repacked_compute_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where torch has no oneDNN, plain linear layers take over (with biases, as in Qwen2)."""
    write_model(tmp_path, "qwen2")
    row = RunnerRow([5, 6, 7], 0, [0], True)
    packed = ModelRunner(load(tmp_path).model, num_blocks=1, block_size=8).forward([row])
    monkeypatch.setattr(torch._C, "_has_mkldnn", False)
    plain_model = load(tmp_path).model
    assert not plain_model.output.is_packed
    torch.testing.assert_close(ModelRunner(plain_model, num_blocks=1, block_size=8).forward([row]), packed, **CLOSE)


def test_bfloat16_stays_close_to_float32(tmp_path: Path) -> None:
    """In bfloat16 the logits differ from float32's by rounding only."""
    write_model(tmp_path, "qwen3")
    rows = [RunnerRow(list(range(40)), 0, [0, 1, 2, 3, 4], True), RunnerRow([9], 0, [5], True)]
    exact, rounded = (
        ModelRunner(load(tmp_path, dtype).model, num_blocks=6, block_size=8).forward(rows)
        for dtype in (torch.float32, torch.bfloat16)
    )
    assert rounded.dtype == torch.float32
    assert not torch.equal(exact, rounded)
    error = (exact - rounded).norm() / exact.norm()
    assert error < 0.05
