"""Every policy part there is. A new one is a file in its folder and a line here."""

from .admission.fixed import FixedCaps
from .admission.gradient import GradientCaps
from .admission.port import Admission
from .estimate.cost import CostModel
from .estimate.output import OutputQuantiles
from .fairness.background import BackgroundClaim
from .fairness.drr import DeficitRoundRobin
from .fairness.flows import FlowTurns, OneFlow
from .fairness.port import LaneTurns
from .fairness.single import SingleQueue
from .fairness.vtc import VirtualTokenCounters
from .lanes import BudgetLanes
from .ordering.adaptive import Adaptive
from .ordering.aged_sjf import AgedSjf
from .ordering.boost import Boost
from .ordering.fcfs import Fcfs
from .ordering.port import Ordering
from .ordering.slack_edf import SlackEdf
from .queue_bounds import QueueBounds
from .registry import Option, Part, Registry
from .routing.least_tokens import LeastTokens
from .routing.port import Routing
from .routing.round_robin import RoundRobin
from .shedding.bounds import BoundsOnly
from .shedding.ladder import Ladder
from .shedding.port import Shedding
from .slicing import Slices, Slicing, WholeCalls
from .types import Lane


def _drr(*, interactive_s: float, standard_s: float, long_s: float, overlong_s: float) -> DeficitRoundRobin:
    return DeficitRoundRobin(
        {
            Lane.INTERACTIVE: interactive_s,
            Lane.STANDARD: standard_s,
            Lane.LONG: long_s,
            Lane.OVERLONG: overlong_s,
        }
    )


ORDERINGS: Registry[Ordering] = Registry(
    "ordering",
    [
        Part(
            "adaptive",
            Adaptive,
            {"max_boost_s": Option(600.0, "seconds by which a short request may pass others", above=0.0)},
        ),
        Part("fcfs", Fcfs),
        Part(
            "aged-sjf",
            AgedSjf,
            {"ageing": Option(0.1, "seconds of cost that a second of waiting is worth", above=0.0)},
        ),
        Part(
            "boost",
            Boost,
            {
                "factor": Option(0.1, "of the fitted decay rate; less favours the short more", above=0.0, at_most=1.0),
                "max_boost_s": Option(600.0, "seconds by which a short request may pass others", above=0.0),
                "prior_gamma_per_s": Option(0.01, "decay rate while no traffic was seen", above=0.0),
            },
        ),
        Part(
            "slack-edf",
            SlackEdf,
            {
                "default_ttft_s": Option(30.0, "to the first token, of lanes that have no such objective", above=0.0),
                "max_theta": Option(1.0, "seconds later that a second of cost makes due, at full load", at_least=0.0),
                "max_cost_s": Option(300.0, "costs count up to so much", above=0.0),
                "late_share": Option(
                    0.1, "of a flow's dispatches that go to what can't be in time any more", above=0.0, at_most=1.0
                ),
            },
        ),
    ],
)

FLOWS: Registry[FlowTurns] = Registry(
    "flows",
    [
        Part("one-flow", OneFlow),
        Part(
            "vtc",
            VirtualTokenCounters,
            {
                "input_weight": Option(1.0, "what a prompt token counts", above=0.0),
                "output_weight": Option(2.0, "what an output token counts", above=0.0),
                "burst_tokens": Option(
                    4000.0, "weighted tokens that a flow may be behind others when it comes again", at_least=0.0
                ),
            },
        ),
    ],
)

TURNS: Registry[LaneTurns] = Registry(
    "lanes",
    [
        Part("single", SingleQueue),
        Part(
            "drr",
            _drr,
            {
                "interactive_s": Option(0.5, "seconds of replica time a round", above=0.0),
                "standard_s": Option(0.3, "seconds of replica time a round", above=0.0),
                "long_s": Option(0.2, "seconds of replica time a round", above=0.0),
                "overlong_s": Option(0.1, "seconds of replica time a round", above=0.0),
            },
        ),
    ],
)

_PREFILL_TOKENS = Option(
    8192, "prompt tokens awaiting their first token at which no call starts", at_least=1, whole=True
)

ADMISSIONS: Registry[Admission] = Registry(
    "admission",
    [
        Part(
            "fixed",
            FixedCaps,
            {
                "in_flight_tokens": Option(
                    32768, "prompt + predicted output tokens in flight on a replica", at_least=1, whole=True
                ),
                "prefill_tokens": _PREFILL_TOKENS,
            },
        ),
        Part(
            "gradient",
            GradientCaps,
            {
                "in_flight_tokens": Option(
                    262_144, "where the cap begins with a replica that tells no capacity", at_least=1, whole=True
                ),
                "min_tokens": Option(4096, "the lowest cap", at_least=1, whole=True),
                "tolerance": Option(2.5, "times as long as unloaded that calls may take", above=1.0),
                "prefill_tokens": _PREFILL_TOKENS,
            },
        ),
    ],
)

SHEDDINGS: Registry[Shedding] = Registry(
    "shedding",
    [
        Part("bounds", BoundsOnly),
        Part(
            "ladder",
            Ladder,
            {
                "step_s": Option(5.0, "seconds of waiting work that are a step up the ladder", above=0.0),
                "interactive_step_s": Option(0.07, "the same, of the interactive lane's part alone", above=0.0),
                "defer_s": Option(10.0, "what is deferred is ordered as if it had come so much later", above=0.0),
                "max_background_s": Option(3.0, "while so much background work waits, none is added", above=0.0),
            },
        ),
    ],
)

ROUTINGS: Registry[Routing] = Registry("routing", [Part("least-tokens", LeastTokens), Part("round-robin", RoundRobin)])

SLICINGS: Registry[Slicing] = Registry(
    "slicing",
    [
        Part(
            "slices",
            Slices,
            {
                "slice_s": Option(0.5, "seconds that a slice of a long prompt takes", above=0.0),
                "min_prefill_s": Option(1.0, "prompts that take less to compute go whole", above=0.0),
                "patience_s": Option(1.0, "how long a slice lets others pass at most", above=0.0),
                "quiet_s": Option(2.0, "when nobody else came for so long, the rest goes whole", above=0.0),
            },
        ),
        Part("whole", WholeCalls),
    ],
)

QUEUE = Part(
    "queue",
    QueueBounds,
    {
        "max_requests": Option(10_000, "more are turned away", at_least=0, whole=True),
        "max_tokens": Option(
            50_000_000, "prompt + predicted output tokens; more are turned away", at_least=0, whole=True
        ),
        "max_bytes": Option(268_435_456, "of bodies held meanwhile; more are turned away", at_least=0, whole=True),
    },
)

BACKGROUND = Part(
    "background",
    BackgroundClaim,
    {
        "max_wait_s": Option(120.0, "background work that waited longer goes ahead of others", above=0.0),
        "max_share": Option(0.2, "of the work that it may take from them so", above=0.0, at_most=1.0),
    },
)

COST = Part(
    "cost",
    CostModel,
    {
        "prefill_s_per_token": Option(0.0001, "seconds of replica time a prompt token takes", above=0.0),
        "decode_s_per_token": Option(0.025, "seconds of replica time an output token takes", above=0.0),
        "fit_after_calls": Option(
            64,
            "calls after which the fitted weight of a prompt token replaces the configured; null: never",
            at_least=1,
            may_be_none=True,
            whole=True,
        ),
    },
)

OUTPUT = Part(
    "output",
    OutputQuantiles,
    {
        "quantile": Option(0.5, "of recent output lengths of the same kind", above=0.0, at_most=1.0),
        "prior_tokens": Option(256, "predicted while nothing was served", at_least=1, whole=True),
        "window": Option(256, "recent requests remembered of each kind", at_least=1, whole=True),
        "min_samples": Option(8, "fewer of a kind, and all kinds together answer", at_least=1, whole=True),
        "max_keys": Option(4096, "kinds (tenant, route, prompt length) remembered", at_least=1, whole=True),
    },
)

LANE_CUTS = Part(
    "lane-cuts",
    BudgetLanes,
    {
        "interactive_max_tokens": Option(
            None, "largest interactive budget; null: 60th percentile of recent ones", above=0.0, may_be_none=True
        ),
        "standard_max_tokens": Option(
            None, "largest standard budget; null: 90th percentile of recent ones", above=0.0, may_be_none=True
        ),
        "overlong_prompt_tokens": Option(
            None, "longer prompts are overlong; null: none is", at_least=1, whole=True, may_be_none=True
        ),
        "declared_max_share": Option(
            0.5, "of recent work that may be declared interactive beyond its size", at_least=0.0, at_most=1.0
        ),
        "declared_max_factor": Option(
            4.0, "times the standard cut that a declared interactive budget may be", above=0.0
        ),
        "window": Option(1000, "recent budgets that the cuts are learned from", at_least=2, whole=True),
        "min_samples": Option(50, "fewer, and the priors stand in", at_least=1, whole=True),
        "prior_interactive_tokens": Option(300.0, "interactive cut while little was seen", above=0.0),
        "prior_standard_tokens": Option(1500.0, "standard cut while little was seen", above=0.0),
    },
)

WAIT: Part[dict[str, float]] = Part(
    "wait",
    dict,
    {
        "max_wait_s": Option(
            300.0, "a request that waited longer goes first in its flow's turn, whatever it costs", above=0.0
        ),
        "no_replica_grace_s": Option(1.5, "how long a request waits while no replica is available", at_least=0.0),
    },
)
