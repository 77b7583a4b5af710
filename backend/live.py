"""The requests that aren't finished: their sequences, and what a sampled token makes of them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from .metrics import Metrics
from .outputs import FinishReason, Timing, TokenOutput
from .sampler import SampledToken
from .scheduler import Scheduler
from .sequence import GenerationRequest
from .sequence import Sequence as EngineSequence
from .text import Detokenizer, TextStream


@dataclass(slots=True)
class _Live:
    """A request that isn't finished. Choices past the first wait for its first token, to share its prompt's blocks."""

    request: GenerationRequest
    sequences: dict[int, EngineSequence] = field(default_factory=dict)
    texts: dict[int, TextStream] = field(default_factory=dict)
    num_choices_to_start: int = 0


class LiveRequests:
    """From a request's start to its last token. Used on the engine's thread alone."""

    def __init__(
        self,
        scheduler: Scheduler,
        metrics: Metrics,
        *,
        new_detokenizer: Callable[[bool], Detokenizer],
        eos_token_ids: frozenset[int],
    ) -> None:
        self._scheduler = scheduler
        self._metrics = metrics
        self._new_detokenizer = new_detokenizer
        self._eos_token_ids = eos_token_ids
        self._live: dict[str, _Live] = {}
        self._next_sequence_id = 0

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._live

    @property
    def request_ids(self) -> Sequence[str]:
        return list(self._live)

    def start(self, request: GenerationRequest) -> None:
        """Let its first choice wait. It is known from now on, also where this raises."""
        live = _Live(request, num_choices_to_start=request.num_choices - 1)
        self._live[request.request_id] = live
        self._start_choice(live, request.first_choice)

    def forget(self, request_id: str) -> None:
        """Give back all that it holds. Unknown ids: no effect."""
        live = self._live.pop(request_id, None)
        if live is not None:
            for sequence in live.sequences.values():
                self._scheduler.finish(sequence)

    def accept(self, sequence: EngineSequence, token: SampledToken, now_s: float) -> TokenOutput:
        """Append a sampled token, see whether it ends the sequence."""
        request = sequence.request
        live = self._live[request.request_id]
        sequence.token_ids.append(token.token_id)
        if sequence.first_token_s is None:
            sequence.first_token_s = now_s
            self._metrics.observe_first_token(now_s - sequence.arrival_s)
        else:
            self._metrics.observe_inter_token(now_s - (sequence.last_token_s or now_s))
        sequence.last_token_s = now_s
        text, finish_reason, stop_reason = self._text_and_end(sequence, live.texts[sequence.choice], token.token_id)
        output = TokenOutput(
            request_id=request.request_id,
            choice=sequence.choice,
            token=token,
            text=text,
            num_output_tokens=sequence.num_output_tokens,
            timing=_timing(sequence),
            finish_reason=finish_reason,
            stop_reason=stop_reason,
        )
        if finish_reason is not None:
            self._scheduler.finish(sequence)
            del live.sequences[sequence.choice], live.texts[sequence.choice]
            self._metrics.observe_finished(output.timing, finish_reason, output.num_output_tokens)
        first_choice = request.first_choice
        while live.num_choices_to_start:
            self._start_choice(live, first_choice + request.num_choices - live.num_choices_to_start)
            live.num_choices_to_start -= 1
        if not live.sequences:
            del self._live[request.request_id]
        return output

    def check_integrity(self) -> None:
        """Raise `AssertionError` unless the scheduler's sequences are those of these requests."""
        listed = {id(sequence) for sequence in (*self._scheduler.running, *self._scheduler.waiting)}
        known = {id(sequence) for live in self._live.values() for sequence in live.sequences.values()}
        if listed != known:
            raise AssertionError("the scheduler's sequences are not those of the live requests")

    def _start_choice(self, live: _Live, choice: int) -> None:
        sequence = EngineSequence(self._next_sequence_id, live.request, choice, self._scheduler.blocks)
        self._next_sequence_id += 1
        live.sequences[choice] = sequence
        live.texts[choice] = TextStream(
            self._new_detokenizer(live.request.skip_special_tokens), live.request.stop, live.request.min_tokens
        )
        self._scheduler.add(sequence)

    def _text_and_end(
        self, sequence: EngineSequence, text: TextStream, token_id: int
    ) -> tuple[str, FinishReason | None, str | int | None]:
        request = sequence.request
        if sequence.num_output_tokens >= request.min_tokens:
            if token_id in request.stop_token_ids:
                return text.flush(), FinishReason.STOP, token_id
            if token_id in self._eos_token_ids and not request.ignore_eos:
                return text.flush(), FinishReason.STOP, None
        piece = text.push(token_id)
        if piece.stopped_by is not None:
            return piece.text, FinishReason.STOP, piece.stopped_by
        if sequence.num_output_tokens >= request.max_tokens:
            return piece.text + text.flush(), FinishReason.LENGTH, None
        return piece.text, None, None


def _timing(sequence: EngineSequence) -> Timing:
    scheduled_s, first_s, last_s = sequence.scheduled_s, sequence.first_token_s, sequence.last_token_s
    if scheduled_s is None or first_s is None or last_s is None:
        raise AssertionError("a sequence that gave a token was scheduled")
    return Timing(sequence.arrival_s, scheduled_s, first_s, last_s, sequence.cached_prompt_tokens)
