"""How an engine is set up, and the engine that follows from it."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import torch

from policies.batching import StepSpec, build_composer
from policies.registry import PolicyConfigError

from .engine import Engine
from .kv_cache import BlockManager
from .metrics import Metrics
from .runner import ModelRunner, kv_bytes_per_block
from .sampler import Sampler
from .scheduler import Scheduler
from .tokenizer import Detokenizer
from .weights import LoadedModel

DTYPES = {"bfloat16": torch.bfloat16, "float32": torch.float32}
DEFAULT_KV_CACHE_BYTES = 1 << 30


class SettingsError(ValueError):
    """Settings that can't work. The message names them, their values and what would."""


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """Sizes and policies of one engine. None: derived from the model and the memory.

    Raises `SettingsError` for what can't work with any model.
    """

    max_model_len: int | None = None
    max_num_batched_tokens: int = 512
    max_num_seqs: int = 32
    block_size: int = 16
    num_blocks: int | None = None
    kv_cache_bytes: int | None = None
    step: StepSpec = field(default_factory=StepSpec)
    """What a step computes, and in which order sequences get their turn."""
    enable_prefix_caching: bool = True

    def __post_init__(self) -> None:
        try:
            build_composer(self.step, order_key="policy")
        except PolicyConfigError as error:
            raise SettingsError(str(error)) from error
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise SettingsError(
                f"max-num-batched-tokens is {self.max_num_batched_tokens}, max-num-seqs {self.max_num_seqs}: "
                "every running sequence may want a token in every step, so the first must be at least the second"
            )
        if self.num_blocks is not None and self.kv_cache_bytes is not None:
            raise SettingsError("num-blocks and kv-cache-bytes both set the size of the KV cache: give one of them")


def build_engine(loaded: LoadedModel, settings: EngineSettings, model_name: str) -> tuple[Engine, Metrics]:
    """An engine over a loaded model, not started. Raises `SettingsError`."""
    num_blocks = _num_blocks(loaded, settings)
    max_model_len = _max_model_len(loaded, settings, num_blocks)
    metrics = Metrics(model_name)
    blocks = BlockManager(num_blocks, settings.block_size, enable_prefix_caching=settings.enable_prefix_caching)
    scheduler = Scheduler(
        blocks,
        build_composer(settings.step),
        max_num_batched_tokens=settings.max_num_batched_tokens,
        max_num_seqs=settings.max_num_seqs,
    )
    engine = Engine(
        ModelRunner(loaded.model, num_blocks=num_blocks, block_size=settings.block_size),
        Sampler(),
        scheduler,
        metrics,
        new_detokenizer=_detokenizer_factory(loaded),
        eos_token_ids=loaded.tokenizer.eos_token_ids,
        max_model_len=max_model_len,
    )
    metrics.bind(
        num_running=lambda: engine.num_running,
        num_waiting=lambda: engine.num_waiting,
        held_blocks=lambda: engine.held_blocks,
        num_blocks=num_blocks,
        block_size=settings.block_size,
        enable_prefix_caching=settings.enable_prefix_caching,
    )
    return engine, metrics


def _detokenizer_factory(loaded: LoadedModel) -> Callable[[bool], Detokenizer]:
    new = partial(Detokenizer, loaded.tokenizer)
    return lambda skip_special_tokens: new(skip_special_tokens=skip_special_tokens)


def _num_blocks(loaded: LoadedModel, settings: EngineSettings) -> int:
    if settings.num_blocks is not None:
        return settings.num_blocks
    num_bytes = DEFAULT_KV_CACHE_BYTES if settings.kv_cache_bytes is None else settings.kv_cache_bytes
    bytes_per_block = kv_bytes_per_block(loaded.config, settings.block_size, loaded.model.dtype)
    if num_bytes < bytes_per_block:
        raise SettingsError(
            f"kv-cache-bytes is {num_bytes}, but one block of {settings.block_size} tokens takes {bytes_per_block}"
        )
    return num_bytes // bytes_per_block


def _max_model_len(loaded: LoadedModel, settings: EngineSettings, num_blocks: int) -> int:
    """The context: as asked for, else as long as both the model and the KV cache allow."""
    capacity = num_blocks * settings.block_size
    trained = loaded.config.max_model_tokens
    if settings.max_model_len is None:
        return min(trained, capacity)
    if settings.max_model_len > trained:
        raise SettingsError(
            f"max-model-len is {settings.max_model_len}, but the model was trained for {trained} tokens"
        )
    if settings.max_model_len > capacity:
        raise SettingsError(
            f"max-model-len is {settings.max_model_len} tokens, but the KV cache holds {capacity} ({num_blocks} blocks "
            f"of {settings.block_size}): lower max-model-len, or raise num-blocks or kv-cache-bytes"
        )
    return settings.max_model_len
