"""A model whose next token is a hash of the whole context, read back through the paged cache.

Any mistake of the scheduler or of the block accounting (a wrong slot, a stale block, a lost token) changes the output.
"""

import threading
from collections.abc import Callable, Mapping, Sequence
from hashlib import blake2b
from typing import Any

import torch

from backend.engine import Engine
from backend.kv_cache import BlockManager
from backend.metrics import Metrics
from backend.runner import RunnerRow
from backend.sampler import Sampler, SamplingParams
from backend.scheduler import Scheduler
from backend.sequence import GenerationRequest
from backend.tokenizer import Detokenizer
from policies.batching import Composer, StepSpec, build_composer

EOS = 0
VOCAB_SIZE = 256
_ALPHABET = b"abcdefghijklmnopqrstuvwxyz  \n"


def next_token(context: Sequence[int]) -> int:
    """A letter, or the end, now and then."""
    value = int.from_bytes(blake2b(bytes(context), digest_size=8).digest(), "big")
    return EOS if value % 97 == 0 else _ALPHABET[value % len(_ALPHABET)]


def expected_tokens(prompt: Sequence[int], max_tokens: int, *, ignore_eos: bool = False) -> list[int]:
    """What a sequence alone must generate."""
    context = list(prompt)
    for _ in range(max_tokens):
        context.append(next_token(context))
        if context[-1] == EOS and not ignore_eos:
            break
    return context[len(prompt) :]


class FakeRunner:
    """Stores tokens and positions where a real runner stores keys and values."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self._block_size = block_size
        self._slots: list[tuple[int, int] | None] = [None] * (num_blocks * block_size)
        self.num_steps = 0
        self.num_computed_tokens = 0
        self.before_forward: Callable[[Sequence[RunnerRow]], None] = lambda rows: None

    def forward(self, rows: Sequence[RunnerRow]) -> torch.Tensor:
        self.before_forward(rows)
        self.num_steps += 1
        for row in rows:
            assert row.token_ids
            for position, token_id in enumerate(row.token_ids, row.start_position):
                self._slots[self._slot(row, position)] = (token_id, position)
            self.num_computed_tokens += len(row.token_ids)
        # Read only after everybody wrote: rows that share a block they shouldn't would then be noticed.
        logits = [self._logits(row) for row in rows if row.needs_logits]
        return torch.stack(logits) if logits else torch.empty(0, VOCAB_SIZE)

    def _slot(self, row: RunnerRow, position: int) -> int:
        return row.block_table[position // self._block_size] * self._block_size + position % self._block_size

    def _logits(self, row: RunnerRow) -> torch.Tensor:
        context = []
        for position in range(row.start_position + len(row.token_ids)):
            content = self._slots[self._slot(row, position)]
            assert content is not None
            assert content[1] == position
            context.append(content[0])
        logits = torch.full((VOCAB_SIZE,), -20.0)
        logits[list(_ALPHABET)] = -4.0
        logits[EOS] = -6.0
        logits[next_token(context)] = 0.0
        return logits


class FakeTokenizer:
    """A token is a byte; 0 ends an answer."""

    vocab_size = VOCAB_SIZE
    eos_token_ids = frozenset({EOS})

    def __init__(self) -> None:
        self.may_encode = threading.Event()
        self.may_encode.set()
        self.is_encoding = threading.Event()

    def encode(self, text: str, *, add_special_tokens: bool = False) -> list[int]:
        self.is_encoding.set()
        self.may_encode.wait(10.0)
        return list(text.encode())

    def fewest_tokens(self, text: str) -> int:
        return len(text.encode())

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        return bytes(ids).decode(errors="replace")

    def bytes_of(self, token_id: int, *, skip_special_tokens: bool = True) -> bytes:
        return b"" if token_id == EOS and skip_special_tokens else bytes([token_id])

    def apply_chat_template(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool = True,
        arguments: Mapping[str, Any] | None = None,
    ) -> str:
        text = "".join(f"<{message['role']}>{message['content']}\n" for message in messages)
        return text + "<assistant>" if add_generation_prompt else text


class FakeClock:
    """Advances by a millisecond whenever it is read."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        self.now_s += 0.001
        return self.now_s


def make_engine(
    *,
    num_blocks: int = 256,
    block_size: int = 4,
    max_num_batched_tokens: int = 64,
    max_num_seqs: int = 8,
    max_model_len: int | None = None,
    enable_prefix_caching: bool = True,
    order: str = "fcfs",
    composer: Composer | None = None,
    sampler: Sampler | None = None,
    new_detokenizer: Callable[[bool], Any] | None = None,
    clock: Callable[[], float] | None = None,
) -> tuple[Engine, FakeRunner, Scheduler, Metrics]:
    """An engine over the fake model, not started."""
    scheduler = Scheduler(
        BlockManager(num_blocks, block_size, enable_prefix_caching=enable_prefix_caching),
        composer or build_composer(StepSpec(order=order)),
        max_num_batched_tokens=max_num_batched_tokens,
        max_num_seqs=max_num_seqs,
    )
    runner = FakeRunner(num_blocks, block_size)
    metrics = Metrics("fake")
    tokenizer: Any = FakeTokenizer()
    engine = Engine(
        runner,
        sampler or Sampler(),
        scheduler,
        metrics,
        new_detokenizer=new_detokenizer or (lambda skip: Detokenizer(tokenizer, skip_special_tokens=skip)),
        eos_token_ids=FakeTokenizer.eos_token_ids,
        max_model_len=max_model_len or num_blocks * block_size,
        clock=clock or FakeClock(),
    )
    metrics.bind(
        num_running=lambda: engine.num_running,
        num_waiting=lambda: engine.num_waiting,
        held_blocks=lambda: engine.held_blocks,
        num_blocks=num_blocks,
        block_size=block_size,
        enable_prefix_caching=enable_prefix_caching,
    )
    return engine, runner, scheduler, metrics


def request(request_id: str, prompt: Sequence[int], max_tokens: int, **fields: Any) -> GenerationRequest:
    """A greedy request."""
    fields.setdefault("sampling", SamplingParams(temperature=0.0))
    fields.setdefault("arrival_s", 0.0)
    return GenerationRequest(request_id, list(prompt), max_tokens, **fields)
