"""What can be simulated by name: every composition of policies, and bounds that nothing real can reach."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from policies.batching import COMPOSERS, Composer, StepSpec, build_composer
from policies.config import ROLES, PolicyConfigError, PolicySpec, build_policy
from policies.estimate.output import OutputQuantiles
from policies.policy import Policy
from policies.types import EngineLike, RequestLike, SequenceLike, StepPlan, StepRow

from ..errors import LoadtestError
from ..workload import Costs
from .fit import pass_through
from .model import ReplicaModel
from .request import SimRequest
from .sequence import SimSequence
from .simulation import Setup

_FOR_EVER = 1e12
_USUAL = StepSpec()

BOUNDS: Mapping[str, str] = {
    "direct": "no gateway: everything goes to the engines at once, round robin",
    "oracle-sjf": "shortest job first by the true length, never starved of anything but fairness",
    "oracle-srpt": "shortest remaining true work first in every step, preempting for nothing, memory without end",
    "ps": "all requests share every step, memory and batch without end",
}


@dataclass(frozen=True, slots=True)
class Contender:
    """`make_composer` None: the engine's own. `is_direct`: nothing waits in front of the engines, whatever their caps.
    `is_boundless`: the engine has memory and batch without end.
    """

    name: str
    make_policy: Callable[[], Policy]
    make_composer: Callable[[], Composer] | None = None
    is_direct: bool = False
    is_boundless: bool = False

    def on(self, setup: Setup, total_tokens: int) -> Setup:
        """What it runs on, given all tokens of all requests."""
        if self.is_direct:
            setup = setup.without_caps()
        if self.is_boundless:
            model = setup.model.with_capacity(max(setup.model.capacity_tokens, 2 * total_tokens))
            setup = replace(setup, model=replace(model, max_num_seqs=10**9))
        return setup


def contender(
    name: str, costs: Costs, model: ReplicaModel, options: Mapping[str, Mapping[str, Any]] | None = None
) -> Contender:
    """By name: a bound, `default`, `fcfs` (one queue in order of arrival), or parts joined by `+` such as
    `drr+boost`; roles that aren't named keep their default. `options` as in a gateway's `policy.options`; where they
    don't say what tokens cost, `costs` does.

    After a colon the step composer and the order of the engines, joined by `+`, in place of the setup's: such as
    `direct:sj-mlfq` or `fcfs:chunked+priority`; with their usual options.

    Raises `LoadtestError` naming key, value and choices.
    """
    policy, colon, step = name.partition(":")
    if colon:
        engines = contender(policy, costs, model, options)
        if engines.make_composer is not None:
            raise LoadtestError(f"policy {name!r}: {policy} has engines of its own")
        return replace(engines, name=name, make_composer=partial(build_composer, _step(name, step)))
    if name == "direct":
        return Contender(name, pass_through, is_direct=True)
    if name == "oracle-sjf":
        return Contender(name, lambda: _oracle_sjf(costs, options))
    if name == "oracle-srpt":
        return Contender(
            name, pass_through, lambda: _Srpt(costs, model.max_num_seqs), is_direct=True, is_boundless=True
        )
    if name == "ps":
        return Contender(name, pass_through, _Sharing, is_direct=True, is_boundless=True)
    spec = _spec(name, costs, options)
    try:
        build_policy(spec)
    except PolicyConfigError as error:
        raise LoadtestError(f"policy {name}: {error}") from error
    return Contender(name, lambda: build_policy(spec))


def _step(name: str, parts: str) -> StepSpec:
    roles: dict[str, str] = {}
    for part in parts.split("+"):
        role = "composer" if part in COMPOSERS.names() else "order"
        if role in roles:
            raise LoadtestError(f"policy {name!r}: {part} and {roles[role]} are both the engines' {role}")
        roles[role] = part
    spec = StepSpec(roles.get("composer", _USUAL.composer), roles.get("order", _USUAL.order))
    try:
        build_composer(spec)
    except PolicyConfigError as error:
        raise LoadtestError(f"policy {name!r}: {error}") from error
    return spec


def _spec(name: str, costs: Costs, options: Mapping[str, Mapping[str, Any]] | None) -> PolicySpec:
    cost = {"prefill_s_per_token": costs.prompt_token_s, "decode_s_per_token": costs.output_token_s}
    filled = {"cost": cost, **(options or {})}
    if name == "default":
        return PolicySpec(options=filled)
    roles: dict[str, Any] = {"lanes": "single", "flows": "one-flow"} if name == "fcfs" else {}
    for part in name.split("+"):
        role = next((role for role, registry in ROLES.items() if part in registry.names()), None)
        if role is None:
            known = sorted(name for registry in ROLES.values() for name in registry.names())
            raise LoadtestError(
                f"policy {name!r}: {part!r} is none of default, {', '.join(BOUNDS)}, nor a part: {', '.join(known)}"
            )
        if role in roles and not (name == "fcfs" and role == "lanes"):
            raise LoadtestError(f"policy {name!r}: {part} and {roles[role]} are both {role}")
        roles[role] = part
    return PolicySpec(**roles, options=filled)


class _TrueLengths(OutputQuantiles):
    """Knows what a request will produce."""

    def __init__(self) -> None:
        super().__init__(quantile=0.5, prior_tokens=1, window=1, min_samples=1, max_keys=1)

    def predict(self, request: RequestLike) -> int:
        assert isinstance(request, SimRequest)
        return request.output_tokens

    def learn(self, request: RequestLike, output_tokens: int) -> None:
        """There is nothing to learn."""


def _oracle_sjf(costs: Costs, options: Mapping[str, Mapping[str, Any]] | None) -> Policy:
    given = options or {}
    cost = {"prefill_s_per_token": costs.prompt_token_s, "decode_s_per_token": costs.output_token_s}
    kept = {name: given[name] for name in ("fixed", "queue") if name in given}
    spec = PolicySpec(
        ordering="aged-sjf",
        flows="one-flow",
        lanes="single",
        admission="fixed",
        routing="least-tokens",
        options={"cost": cost, "aged-sjf": {"ageing": 1e-9}, "wait": {"max_wait_s": _FOR_EVER}, **kept},
    )
    return replace(build_policy(spec), output=_TrueLengths())


class _Srpt:
    """Each step computes the sequences with the least true work left; the others keep their memory and wait."""

    def __init__(self, costs: Costs, num_rows: int) -> None:
        self._costs = costs
        self._num_rows = num_rows

    def compose(self, engine: EngineLike) -> StepPlan:
        return _share_out(engine, sorted((*engine.running, *engine.waiting), key=self._left_s)[: self._num_rows])

    def _left_s(self, sequence: SequenceLike) -> tuple[float, int]:
        assert isinstance(sequence, SimSequence)
        prompt_left = max(0, sequence.prompt_tokens - sequence.computed_tokens)
        outputs_left = sequence.target_tokens - max(sequence.num_tokens, sequence.prompt_tokens)
        return self._costs.work_s(prompt_left, outputs_left), sequence.sequence_id


class _Sharing:
    """Every sequence gets the same part of a step; decodes take one token."""

    def compose(self, engine: EngineLike) -> StepPlan:
        return _share_out(engine, [*engine.running, *engine.waiting])


def _share_out(engine: EngineLike, sequences: list[SequenceLike]) -> StepPlan:
    """Decodes first, then what is left of the budget in equal parts, at least a token each while there are any."""
    left = {
        sequence.sequence_id: sequence.num_tokens - max(sequence.computed_tokens, sequence.cached_tokens)
        for sequence in sequences
    }
    budget = engine.max_num_batched_tokens
    rows = {}
    for place, sequence_id in enumerate(sorted(left, key=lambda sequence_id: (left[sequence_id], sequence_id))):
        part = max(1, budget // (len(left) - place))
        num_tokens = min(left[sequence_id], part, budget)
        if num_tokens:
            rows[sequence_id] = StepRow(sequence_id, num_tokens)
            budget -= num_tokens
    return StepPlan(rows=tuple(rows[sequence_id] for sequence_id in left if sequence_id in rows))
