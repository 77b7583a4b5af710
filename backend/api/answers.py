"""Outputs of the engine → OpenAI's answers: whole, or chunk by chunk. No I/O."""

import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..outputs import FinishReason, Timing, TokenOutput
from .logprobs import TokenTexts, chat_logprobs, completion_logprobs
from .prepare import Prepared


@dataclass(slots=True)
class _Choice:
    """What is known of one choice. `pending` are tokens whose text isn't sent yet."""

    index: int
    texts: list[str] = field(default_factory=list)
    num_characters: int = 0
    pending: list[TokenOutput] = field(default_factory=list)
    num_output_tokens: int = 0
    timing: Timing | None = None
    finish_reason: FinishReason | None = None
    stop_reason: str | int | None = None

    def add(self, output: TokenOutput) -> None:
        if output.text:
            self.texts.append(output.text)
        self.pending.append(output)
        self.num_output_tokens = output.num_output_tokens
        self.timing = output.timing
        self.finish_reason = output.finish_reason
        self.stop_reason = output.stop_reason


class Answer(ABC):
    """One answer being made; a subclass for each route says what it looks like."""

    id_prefix: str
    whole_object: str
    chunk_object: str

    def __init__(self, prepared: Prepared, request_id: str, token_texts: TokenTexts) -> None:
        self._prepared = prepared
        self._id = f"{self.id_prefix}-{request_id}"
        self._created = int(time.time())
        self._token_texts = token_texts
        self._choices = [_Choice(index) for index in range(prepared.num_choices)]
        self._cached_tokens: dict[str, int] = {}

    def add(self, outputs: Iterable[TokenOutput]) -> None:
        """Take outputs for a whole answer."""
        for output in outputs:
            self._take(output)

    def whole(self) -> dict[str, Any]:
        """The complete answer; every choice must be finished."""
        return {
            **self._head(self.whole_object),
            "choices": [self._whole_choice(choice) for choice in self._choices],
            "usage": self._usage(),
            "metrics": self.metrics(),
        }

    def chunks(self, outputs: Sequence[TokenOutput]) -> list[dict[str, Any]]:
        """The chunks that these outputs make sendable: one a token whose text is ready."""
        chunks: list[dict[str, Any]] = []
        for output in outputs:
            choice = self._choices[output.choice]
            is_first = choice.num_output_tokens == 0
            self._take(output)
            if is_first:
                chunks.extend(self._chunk(opening) for opening in self._opening_choice(choice))
            if output.text or output.finish_reason is not None:
                chunks.append(self._chunk(self._chunk_choice(choice, output)))
                choice.num_characters += len(output.text)
                choice.pending.clear()
        return chunks

    def usage_chunk(self) -> dict[str, Any] | None:
        """The last chunk, with usage and timing; None when it wasn't asked for."""
        if not self._prepared.stream_options.include_usage:
            return None
        return {**self._head(self.chunk_object), "choices": [], "usage": self._usage(), "metrics": self.metrics()}

    def server_timing(self, *, include_decode: bool) -> str:
        """The Server-Timing value: milliseconds of queue and prefill, and of decode when it is over; cached tokens."""
        timings = [choice.timing for choice in self._choices if choice.timing is not None]
        first = min(timings, key=lambda timing: timing.first_token_s)
        entries = [
            f"backend-queue;dur={first.queue_s * 1e3:.3f}",
            f"backend-prefill;dur={first.prefill_s * 1e3:.3f}",
        ]
        if include_decode:
            decode_s = max(timing.last_token_s for timing in timings) - first.first_token_s
            entries.append(f"backend-decode;dur={decode_s * 1e3:.3f}")
        entries.append(f'backend-cached;desc="{sum(self._cached_tokens.values())}"')
        return ", ".join(entries)

    def metrics(self) -> dict[str, float | None] | None:
        """vLLM's per-request figures; like there, None for several choices, and the first token counts from scheduled.

        generation_time_ms: first to last token. tokens_per_second: over the time from scheduled to the last token.
        """
        timing = self._choices[0].timing
        if len(self._choices) != 1 or timing is None:
            return None
        num_tokens = self._choices[0].num_output_tokens
        active_s = timing.prefill_s + timing.decode_s
        return {
            "time_to_first_token_ms": timing.prefill_s * 1e3,
            "generation_time_ms": timing.decode_s * 1e3,
            "queue_time_ms": timing.queue_s * 1e3,
            "mean_itl_ms": timing.decode_s * 1e3 / (num_tokens - 1) if num_tokens > 1 else None,
            "tokens_per_second": num_tokens / active_s if active_s > 0 else None,
        }

    @abstractmethod
    def _whole_choice(self, choice: _Choice) -> dict[str, Any]: ...

    @abstractmethod
    def _chunk_choice(self, choice: _Choice, output: TokenOutput) -> dict[str, Any]: ...

    @abstractmethod
    def _opening_choice(self, choice: _Choice) -> list[dict[str, Any]]: ...

    @abstractmethod
    def _logprobs(self, choice: _Choice) -> dict[str, Any] | None: ...

    def _take(self, output: TokenOutput) -> None:
        self._choices[output.choice].add(output)
        # Further choices find the prompt that the first one computed: that is no caching the caller would know of.
        self._cached_tokens.setdefault(output.request_id, output.timing.cached_prompt_tokens)

    def _head(self, kind: str) -> dict[str, Any]:
        return {"id": self._id, "object": kind, "created": self._created, "model": self._prepared.model}

    def _chunk(self, choice: dict[str, Any]) -> dict[str, Any]:
        chunk = {**self._head(self.chunk_object), "choices": [choice]}
        options = self._prepared.stream_options
        if options.continuous_usage_stats:
            chunk["usage"] = self._usage()
        elif options.include_usage:
            chunk["usage"] = None
        return chunk

    def _usage(self) -> dict[str, Any]:
        prompt_tokens = self._prepared.prompt_tokens
        completion_tokens = sum(choice.num_output_tokens for choice in self._choices)
        return {
            "prompt_tokens": prompt_tokens,
            "completion_tokens": completion_tokens,
            "total_tokens": prompt_tokens + completion_tokens,
            "prompt_tokens_details": {"cached_tokens": sum(self._cached_tokens.values())},
        }


class ChatAnswer(Answer):
    id_prefix = "chatcmpl"
    whole_object = "chat.completion"
    chunk_object = "chat.completion.chunk"

    def _whole_choice(self, choice: _Choice) -> dict[str, Any]:
        return {
            "index": choice.index,
            "message": {"role": "assistant", "content": "".join(choice.texts)},
            "logprobs": self._logprobs(choice),
            "finish_reason": choice.finish_reason,
            "stop_reason": choice.stop_reason,
        }

    def _opening_choice(self, choice: _Choice) -> list[dict[str, Any]]:
        delta = {"role": "assistant", "content": ""}
        return [{"index": choice.index, "delta": delta, "logprobs": None, "finish_reason": None}]

    def _chunk_choice(self, choice: _Choice, output: TokenOutput) -> dict[str, Any]:
        chunk: dict[str, Any] = {
            "index": choice.index,
            "delta": {"content": output.text} if output.text else {},
            "logprobs": self._logprobs(choice),
            "finish_reason": output.finish_reason,
        }
        if output.finish_reason is not None:
            chunk["stop_reason"] = output.stop_reason
        return chunk

    def _logprobs(self, choice: _Choice) -> dict[str, Any] | None:
        if self._prepared.num_logprobs is None:
            return None
        return chat_logprobs([output.token for output in choice.pending], self._token_texts)


class CompletionAnswer(Answer):
    id_prefix = "cmpl"
    whole_object = "text_completion"
    chunk_object = "text_completion"

    def _whole_choice(self, choice: _Choice) -> dict[str, Any]:
        return {
            "index": choice.index,
            "text": "".join(choice.texts),
            "logprobs": self._logprobs(choice),
            "finish_reason": choice.finish_reason,
            "stop_reason": choice.stop_reason,
        }

    def _opening_choice(self, choice: _Choice) -> list[dict[str, Any]]:
        return []

    def _chunk_choice(self, choice: _Choice, output: TokenOutput) -> dict[str, Any]:
        chunk: dict[str, Any] = {
            "index": choice.index,
            "text": output.text,
            "logprobs": self._logprobs(choice),
            "finish_reason": output.finish_reason,
        }
        if output.finish_reason is not None:
            chunk["stop_reason"] = output.stop_reason
        return chunk

    def _logprobs(self, choice: _Choice) -> dict[str, Any] | None:
        if self._prepared.num_logprobs is None:
            return None
        return completion_logprobs(
            [output.token for output in choice.pending], self._token_texts, choice.num_characters
        )
