"""Where a request's time went: one record a request, one layer at any instant.

`enter` closes the layer before and opens the next, so the layers are contiguous and sum to the total by construction.
What no code claimed is `other`, and its size is a tested figure.
"""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final, Protocol

from policies.types import Lane, Reason

from .errors import Headers


class Layer(StrEnum):
    """What a request is doing; exactly one at a time."""

    ACCEPT = "accept"
    TOKENIZE = "tokenize"
    QUEUE = "queue"
    SLICE_WAIT = "slice-wait"
    RETRY = "retry"
    CONNECT = "connect"
    ENGINE_QUEUE = "engine-queue"
    PREFILL = "prefill"
    DECODE = "decode"
    RELAY = "relay"
    OTHER = "other"


# For every request: see `policies.types`.
_CONNECT: Final = Layer.CONNECT


class Standing(Protocol):
    """How limits stand at the moment of asking."""

    def headers(self) -> Headers: ...


@dataclass(slots=True)
class Record:
    """One request, from its first byte here to the last one sent. Instants and durations in seconds; None is unset.

    `tenant`, `key_id`, `model` and `replica_id` are names from the configuration or from replicas, never raw client
    text. `has_diagnostics` and `sees_cached_tokens` say what its caller may be told, `standing` how the limits of its
    key stand (None: it has none); none of the three is shown. `replica_prompt_tokens` is the replica's own count.
    `first_token_by_s` is the caller's deadline, `own_lane` the one that it is held to whatever overload made of it.
    `notes` says in words of ours why a layer took long ("capacity") or that it is an estimate ("est").
    """

    request_id: str
    arrival_s: float
    route: str = ""
    model: str = ""
    tenant: str = ""
    key_id: str | None = None
    has_diagnostics: bool = True
    sees_cached_tokens: bool = True
    standing: Standing | None = None
    streams: bool = False
    declared_lane: Lane | None = None
    lane: Lane | None = None
    lane_why: str = ""
    prompt_tokens: int | None = None
    prompt_tokens_source: str | None = None
    predicted_output_tokens: int | None = None
    replica_prompt_tokens: int | None = None
    cached_tokens: int | None = None
    output_tokens: int | None = None
    replica_id: str | None = None
    route_why: str = ""
    policy: str = ""
    attempt: int = 0
    num_slices: int = 0
    status: int | None = None
    outcome: str = "ok"
    reason: str | None = None
    ttft_s: float | None = None
    tpot_s: float | None = None
    upstream_ttft_s: float | None = None
    finished_s: float | None = None
    first_token_by_s: float | None = None
    own_lane: Lane | None = None
    layers: dict[Layer, float] = field(default_factory=dict)
    notes: dict[Layer, str] = field(default_factory=dict)
    _layer: Layer = Layer.ACCEPT
    _since_s: float = 0.0
    _attempt_since_s: float = 0.0
    _attempt_layers: dict[Layer, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._since_s = self.arrival_s

    @property
    def layer(self) -> Layer:
        """The layer the request is in."""
        return self._layer

    def enter(self, layer: Layer, now_s: float, note: str | None = None) -> None:
        """Close the current layer at `now_s` and open `layer`; coming back to one adds up. Time never runs back."""
        layers, before, since_s = self.layers, self._layer, self._since_s
        if now_s > since_s:
            layers[before] = layers.get(before, 0.0) + (now_s - since_s)
            self._since_s = now_s
        elif before not in layers:
            layers[before] = 0.0
        self._layer = layer
        if note is not None:
            self.notes[layer] = note

    def finish(self, now_s: float) -> None:
        """Close the last layer. A second call changes nothing."""
        if self.finished_s is None:
            self.enter(self._layer, now_s)
            self.finished_s = self._since_s

    @property
    def total_s(self) -> float:
        """From arrival to the end, or so far."""
        return self._since_s - self.arrival_s

    def begin_attempt(self, now_s: float, replica_id: str, why: str) -> None:
        """A call to a replica begins: enter `connect`, and remember where the attempt began."""
        self.enter(_CONNECT, now_s)
        self._attempt_since_s = self._since_s
        self._attempt_layers = dict(self.layers)
        self.attempt += 1
        self.replica_id = replica_id
        self.route_why = why

    def stop_attempt(self, now_s: float) -> None:
        """The attempt was stopped for others and goes on in slices: what it computed isn't lost, nor is its time."""
        self.attempt -= 1
        self.enter(Layer.SLICE_WAIT, now_s)

    def begin_slice(self, now_s: float, replica_id: str) -> None:
        """A part of the prompt is about to be computed."""
        self.enter(Layer.CONNECT, now_s)
        self.replica_id = replica_id

    def end_slice(self, now_s: float, *, is_useful: bool) -> None:
        """That part is in the replica's cache, if it was of use; others may pass."""
        self.num_slices += is_useful
        self.enter(Layer.SLICE_WAIT, now_s, f"slices: {self.num_slices}")

    def fail_attempt(self, now_s: float, note: str) -> None:
        """The attempt came to nothing: all of its time becomes `retry`, and the request waits again."""
        self.enter(Layer.QUEUE, now_s)
        self.layers = self._attempt_layers
        self.layers[Layer.RETRY] = self.layers.get(Layer.RETRY, 0.0) + self._since_s - self._attempt_since_s
        self.notes[Layer.RETRY] = note

    def reassign(self, source: Layer, target: Layer, duration_s: float) -> None:
        """Move time between closed layers, as a replica measured it; never more than `source` has."""
        moved_s = min(max(0.0, duration_s), self.layers.get(source, 0.0))
        if moved_s > 0.0:
            self.layers[source] -= moved_s
            self.layers[target] = self.layers.get(target, 0.0) + moved_s

    def plain_notes(self) -> dict[Layer, str]:
        """Without those that name replicas."""
        return {layer: note for layer, note in self.notes.items() if note in _PLAIN_NOTES}

    @property
    def withheld(self) -> tuple[bytes, ...]:
        """How names begin of the replica's headers that aren't passed on: they contradict ours, or tell too much."""
        return (
            *((b"x-ratelimit-",) if self.standing is not None else ()),
            *(() if self.sees_cached_tokens else (b"server-timing",)),
        )

    def shown(self) -> dict[str, Any]:
        """What the caller is told: as `to_dict`, without what it may not know."""
        data = self.to_dict()
        if not self.has_diagnostics:
            for name in _DIAGNOSTICS:
                del data[name]
            data["notes"] = {layer.value: note for layer, note in self.plain_notes().items()}
        if not self.sees_cached_tokens:
            del data["cached_tokens"]
        return data

    def to_dict(self) -> dict[str, Any]:
        """For the log: durations in milliseconds, names as text."""
        return {
            "request_id": self.request_id,
            "route": self.route,
            "model": self.model,
            "tenant": self.tenant,
            "key": self.key_id,
            "streams": self.streams,
            "declared_lane": self.declared_lane,
            "lane": self.lane,
            "lane_why": self.lane_why,
            "prompt_tokens": self.prompt_tokens,
            "prompt_tokens_source": self.prompt_tokens_source,
            "predicted_output_tokens": self.predicted_output_tokens,
            "replica_prompt_tokens": self.replica_prompt_tokens,
            "cached_tokens": self.cached_tokens,
            "output_tokens": self.output_tokens,
            "replica": self.replica_id,
            "route_why": self.route_why,
            "policy": self.policy,
            "attempt": self.attempt,
            "slices": self.num_slices,
            "status": self.status,
            "outcome": self.outcome,
            "reason": self.reason,
            "ttft_ms": _to_ms(self.ttft_s),
            "tpot_ms": _to_ms(self.tpot_s),
            "upstream_ttft_ms": _to_ms(self.upstream_ttft_s),
            "total_ms": _to_ms(self.total_s),
            "layers_ms": {
                LAYER_NAMES[layer]: (duration_s * 1e6 + 0.5) // 1.0 / 1e3 for layer, duration_s in self.layers.items()
            },
            "notes": {LAYER_NAMES[layer]: note for layer, note in self.notes.items()},
        }


LAYER_NAMES = {layer: layer.value for layer in Layer}  # a member's own `value` takes five times as long
_DIAGNOSTICS = ("lane_why", "replica", "route_why", "policy", "reason")
# How tokens were counted, that a time is an estimate, what a request waited for: words that name nothing.
_PLAIN_NOTES = frozenset({"local", "replica", "bytes", "est", *(reason.value for reason in Reason)})


def _to_ms(duration_s: float | None) -> float | None:
    return None if duration_s is None else (duration_s * 1e6 + 0.5) // 1.0 / 1e3
