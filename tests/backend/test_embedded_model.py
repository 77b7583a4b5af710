"""The embedded model against transformers, which reads the same GGUF file with code of its own."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

from backend.runner import ModelRunner, RunnerRow
from backend.weights import LoadedModel, embedded_path, load_model
from tests.backend.tiny_models import GreedySequence, block_tables, generate

pytestmark = [pytest.mark.model, pytest.mark.slow]

PROMPTS = [
    "What is the capital of France?",
    "Write a haiku about the sea.",
    "def fibonacci(n):",
    "Explain photosynthesis to a child.",
    "List three prime numbers over 100.",
    "Translate to Spanish: good morning, my friends.",
    "Why is the sky blue?",
    "SELECT name FROM users WHERE",
    "Give me a recipe for pancakes with 250 g of flour.",
    "Once upon a time there was a dragon who",
    "What is 17 * 23?",
    "Who wrote Hamlet, and when?",
    "Summarise: The quick brown fox jumps over the lazy dog. The dog doesn't mind.",
    "🙂 What does this emoji mean?",
    "Was ist der höchste Berg der Erde?",
    "Compare TCP with UDP in two sentences.",
    '{"name": "tailgate", "version":',
    "How do I reverse a list in Python?",
    "Name a fruit.",
    "Continue: 1, 1, 2, 3, 5, 8,",
]
NUM_TOKENS = 64


@pytest.fixture(scope="module")
def embedded() -> LoadedModel:
    """The embedded model in float32."""
    return load_model("embedded", dtype=torch.float32, progress=lambda _: None)


@pytest.fixture(scope="module")
def reference() -> Any:
    """The same file, read and run by transformers in float32."""
    path = str(embedded_path())
    load: Callable[..., Any] = load_gguf_checkpoint
    model: Any = LlamaForCausalLM(LlamaConfig(**load(path)["config"]))
    tensors = load(path, return_tensors=True, model_to_load=model)["tensors"]
    # The output projection is the embedding table.
    assert model.load_state_dict(tensors, strict=False).missing_keys == ["lm_head.weight"]
    assert model.config.rope_parameters["rope_theta"] == 100_000.0
    return model.eval()


def test_greedy_output_equals_transformers(embedded: LoadedModel, reference: Any) -> None:
    """20 prompts, 64 greedy tokens each, decoded in one batch: the tokens transformers chooses."""
    tables = block_tables(len(PROMPTS), 10)
    tokenizer = embedded.tokenizer
    chats = [tokenizer.apply_chat_template([{"role": "user", "content": prompt}]) for prompt in PROMPTS]
    sequences = [GreedySequence(tokenizer.encode(c), t) for c, t in zip(chats, tables, strict=True)]
    generate(ModelRunner(embedded.model, num_blocks=200, block_size=16), sequences, NUM_TOKENS)
    for sequence in sequences:
        with torch.no_grad():
            logits = reference(torch.tensor([sequence.token_ids])).logits[0]
        # Each of our tokens being transformers' best after the ones before it is greedy equality, by induction.
        assert logits[len(sequence.prompt) - 1 : -1].argmax(-1).tolist() == sequence.output, sequence.prompt
    france = tokenizer.decode(sequences[0].output)
    assert "Paris" in france


def test_chunks_and_cached_prefixes_change_nothing(embedded: LoadedModel) -> None:
    """A long prompt computed whole, in chunks, and on another sequence's blocks goes on with the same tokens."""
    text = "The committee met again on Tuesday, and the minutes say so. " * 12
    prompt = embedded.tokenizer.encode(text + "In short:")
    runner = ModelRunner(embedded.model, num_blocks=60, block_size=16)
    whole, chunked = GreedySequence(prompt, range(20)), GreedySequence(prompt, range(20, 40))
    generate(runner, [whole], 16)
    generate(runner, [chunked], 16, chunk_tokens=37)
    cached = GreedySequence(prompt, [*range(8), *range(40, 60)])
    cached.computed = 8 * 16
    generate(runner, [cached], 16)
    assert whole.output == chunked.output == cached.output


def test_bfloat16_agrees_on_the_likely_tokens(embedded: LoadedModel) -> None:
    """In bfloat16, given the same text, the most likely token is float32's at nearly every step."""
    rounded = load_model("embedded", dtype=torch.bfloat16, progress=lambda _: None)
    chat = embedded.tokenizer.apply_chat_template([{"role": "user", "content": PROMPTS[3]}])
    sequence = GreedySequence(embedded.tokenizer.encode(chat), range(20))
    generate(ModelRunner(embedded.model, num_blocks=20, block_size=16), [sequence], NUM_TOKENS)
    runner = ModelRunner(rounded.model, num_blocks=20, block_size=16)
    prompt_tokens, num_agreed = len(sequence.prompt), 0
    rows = [RunnerRow(sequence.prompt, 0, range(20), True)]
    rows += [RunnerRow([t], prompt_tokens + i, range(20), True) for i, t in enumerate(sequence.output[:-1])]
    for row, expected in zip(rows, sequence.output, strict=True):
        num_agreed += int(runner.forward([row]).argmax()) == expected
    assert num_agreed >= 0.9 * NUM_TOKENS
