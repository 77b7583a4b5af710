"""Tiny random models of every known family, written by transformers as it writes real ones."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from backend.runner import ModelRunner, RunnerRow
from backend.weights import LoadedModel, load_model

SIZES: dict[str, Any] = {
    "vocab_size": 320,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 512,
    "initializer_range": 0.3,
}
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 10_000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
VARIANTS: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "llama": (LlamaConfig, LlamaForCausalLM, {}),
    "llama-tied": (LlamaConfig, LlamaForCausalLM, {"tie_word_embeddings": True}),
    "llama3-rope": (LlamaConfig, LlamaForCausalLM, {"rope_parameters": LLAMA3_ROPE}),
    "linear-rope": (
        LlamaConfig,
        LlamaForCausalLM,
        {"rope_parameters": {"rope_type": "linear", "rope_theta": 500.0, "factor": 4.0}},
    ),
    "mistral": (MistralConfig, MistralForCausalLM, {"sliding_window": None}),
    "qwen2": (Qwen2Config, Qwen2ForCausalLM, {}),
    "qwen3": (Qwen3Config, Qwen3ForCausalLM, {"tie_word_embeddings": True}),
}


def write_model(directory: Path, variant: str, *, shards: bool = False) -> Any:
    """Save a tiny random model with a tokenizer; returns transformers' own, in float32."""
    torch.manual_seed(7)
    config_class, model_class, changes = VARIANTS[variant]
    sizes = dict(SIZES)
    if variant == "qwen2":
        del sizes["head_dim"]  # Qwen2 derives it
        sizes["hidden_size"] = 96
    model = model_class(config_class(**sizes, **changes)).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name or name.endswith("bias"):  # initialised to ones and zeros, which would hide mistakes
                parameter.add_(torch.randn_like(parameter) * 0.3)
    model.save_pretrained(directory, max_shard_size="100KB" if shards else "1GB")
    write_tokenizer(directory)
    return model


def write_tokenizer(directory: Path) -> None:
    """A byte-level tokenizer: one token a byte, and an end-of-turn token."""
    vocabulary = {character: i for i, character in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    tokenizer = Tokenizer(models.BPE(vocabulary, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<|im_end|>", "</s>"])
    tokenizer.save(str(directory / "tokenizer.json"))
    template = "{% for m in messages %}{{ m.role }}: {{ m.content }}<|im_end|>\n{% endfor %}"
    settings = {"eos_token": {"content": "</s>"}, "chat_template": template}
    (directory / "tokenizer_config.json").write_text(json.dumps(settings))


def load(directory: Path, dtype: torch.dtype = torch.float32) -> LoadedModel:
    """Load a folder, without progress."""
    return load_model(directory, dtype=dtype, progress=lambda _: None)


class GreedySequence:
    """One sequence of a runner, with a block table of its own."""

    def __init__(self, prompt: Sequence[int], block_table: Sequence[int]) -> None:
        self.prompt = list(prompt)
        self.token_ids = list(prompt)
        self.block_table = block_table
        self.computed = 0

    @property
    def output(self) -> list[int]:
        """The tokens generated so far."""
        return self.token_ids[len(self.prompt) :]

    def row(self, max_tokens: int) -> RunnerRow:
        """The next step's row: up to max_tokens of what isn't computed yet."""
        end = min(len(self.token_ids), self.computed + max_tokens)
        row = RunnerRow(
            self.token_ids[self.computed : end], self.computed, self.block_table, end == len(self.token_ids)
        )
        self.computed = end
        return row


def generate(
    runner: ModelRunner, sequences: Sequence[GreedySequence], num_tokens: int, chunk_tokens: int = 1_000_000
) -> None:
    """Step all sequences together, greedily, until each has num_tokens of output; prompts in chunks."""
    while running := [s for s in sequences if len(s.output) < num_tokens]:
        rows = [s.row(chunk_tokens) for s in running]
        logits = runner.forward(rows)
        chosen = iter(logits.argmax(-1).tolist())
        for sequence, row in zip(running, rows, strict=True):
            if row.needs_logits:
                sequence.token_ids.append(next(chosen))


def block_tables(num_sequences: int, num_blocks_each: int, seed: int = 0) -> list[list[int]]:
    """Disjoint block tables in a random order of blocks."""
    order = torch.randperm(num_sequences * num_blocks_each, generator=torch.Generator().manual_seed(seed)).tolist()
    return [order[i::num_sequences] for i in range(num_sequences)]
