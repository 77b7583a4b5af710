"""What one engine step computes: composers (`EngineLike` in, `StepPlan` out) and the rules a plan must keep.

Adding a composer: write it in a module of its own and list it in `config.py`. It is called at every step with the
engine's state and must keep none between calls; `check_plan` holds it to the rules.
"""

from .base import Composer
from .chunked import Chunked
from .config import COMPOSERS, StepSpec, build_composer, parse_options
from .order import ORDERS, StepOrder, fcfs
from .prefill_first import PrefillFirst
from .rules import PolicyError, check_plan
from .sj_mlfq import SkipJoinMlfq

__all__ = [
    "COMPOSERS",
    "ORDERS",
    "Chunked",
    "Composer",
    "PolicyError",
    "PrefillFirst",
    "SkipJoinMlfq",
    "StepOrder",
    "StepSpec",
    "build_composer",
    "check_plan",
    "fcfs",
    "parse_options",
]
