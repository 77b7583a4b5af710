"""Every step composer there is, and spec → composer. A new one is a file here and a line in this one."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ..registry import Option, Part, PolicyConfigError, PolicyProblem, Registry, parts_in_use
from .base import Composer
from .chunked import Chunked
from .order import ORDERS, PREFILL_S_PER_TOKEN
from .prefill_first import PrefillFirst
from .sj_mlfq import SkipJoinMlfq

COMPOSERS: Registry[Composer] = Registry(
    "composer",
    [
        Part("chunked", Chunked),
        Part("prefill-first", PrefillFirst),
        Part(
            "sj-mlfq",
            SkipJoinMlfq,
            {
                "first_quantum_s": Option(
                    0.5, "seconds of work on the first level; each further one has twice", above=0.0
                ),
                "num_levels": Option(6, "the last one has no end", at_least=1, at_most=64, whole=True),
                "promote_after_s": Option(10.0, "seconds of waiting that lift a sequence by a level", above=0.0),
                "prefill_s_per_token": PREFILL_S_PER_TOKEN,
                "decode_s_per_token": Option(
                    0.025, "seconds that a sequence's next token takes, others beside it", above=0.0
                ),
            },
        ),
    ],
)
"""Made with the order in which sequences get their turn, and their options."""


@dataclass(frozen=True, slots=True)
class StepSpec:
    """Which composer and which order, and their options: name → option → value, as in `policies.config.PolicySpec`."""

    composer: str = "chunked"
    order: str = "fcfs"
    options: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


def parse_options(texts: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Options from a command line, each `NAME.OPTION=VALUE`. Raises PolicyConfigError for another form; whether the
    names and values are right `build_composer` says.
    """
    options: dict[str, dict[str, Any]] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        name, dot, option = key.rpartition(".")
        if not (equals and dot):
            raise PolicyConfigError([PolicyProblem("option", text, "must be NAME.OPTION=VALUE")])
        try:
            options.setdefault(name, {})[option] = json.loads(value)
        except ValueError:
            options.setdefault(name, {})[option] = value
    return options


def build_composer(spec: StepSpec, *, order_key: str = "order") -> Composer:
    """A fresh one. Raises PolicyConfigError with all that is wrong; `order_key` is what its user calls the order."""
    roles: dict[str, Registry[Any]] = {"composer": COMPOSERS, order_key: ORDERS}
    parts, problems = parts_in_use(roles, {"composer": spec.composer, order_key: spec.order}, spec.options)
    if problems:
        raise PolicyConfigError(problems)
    composer, order = parts[spec.composer], parts[spec.order]
    made: Composer = composer.make(
        order.make(**order.filled(spec.options.get(spec.order, {}))),
        **composer.filled(spec.options.get(spec.composer, {})),
    )
    return made
