"""Scenarios: what a mix of requests looks like, read from YAML.

A scenario names lanes; a lane has a share of the work, a length shape with the divisor that scales it to a small
machine, an arrival pattern, and the objectives that goodput is counted against. Rates are not part of it: a run
measures the machine's capacity and stretches time to the load that was asked for.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import resources
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar

import yaml

from policies.types import DECLARABLE_LANES

from .errors import ScenarioError
from .shapes import QUANTILE_LEVELS, LengthShape

_T = TypeVar("_T")

DESCRIPTION_KEYS = frozenset({"origin", "licence", "num_requests", "quantile_levels", "idc_10s"})
"""Of what `tailgate-load shape` printed and prints: said of a trace, and nothing that a lane can be given."""


@dataclass(frozen=True, slots=True)
class Objectives:
    """Seconds that a request must meet to count as good; None is not asked for."""

    ttft_s: float | None = None
    tpot_s: float | None = None
    e2e_s: float | None = None


@dataclass(frozen=True, slots=True)
class Arrivals:
    """Renewal arrivals with gaps of variation `cv`, or, with `mean_burst`, on/off bursts.

    Bursts hold `mean_burst` requests on average and take `on_share` of the time; inside a burst and between bursts
    the gaps are exponential.
    """

    cv: float = 1.0
    mean_burst: float | None = None
    on_share: float = 1.0


@dataclass(frozen=True, slots=True)
class LaneSpec:
    """One lane of a mix. Lengths are the shape's, divided by `divisor`, then held inside the stated bounds."""

    name: str
    work_share: float
    lengths: LengthShape
    divisor: float
    prompt_bounds_tokens: tuple[int, int]
    output_bounds_tokens: tuple[int, int]
    arrivals: Arrivals
    objectives: Objectives
    declare_lane: str | None
    shared_prefix_tokens: int


@dataclass(frozen=True, slots=True)
class Scenario:
    """A named mix. The first lane is the one whose number of requests a run fixes."""

    name: str
    about: str
    lanes: tuple[LaneSpec, ...]
    load: float
    num_first_lane: int

    @property
    def objectives(self) -> dict[str, Objectives]:
        """Of each lane, in order."""
        return {lane.name: lane.objectives for lane in self.lanes}

    def lane(self, name: str) -> LaneSpec:
        """The lane of this name; KeyError for an unknown one."""
        return {lane.name: lane for lane in self.lanes}[name]


def bundled_scenarios() -> tuple[str, ...]:
    """Names of the scenarios that come with the package."""
    folder = resources.files(__package__) / "scenarios"
    return tuple(sorted(entry.name.removesuffix(".yaml") for entry in folder.iterdir() if entry.name.endswith(".yaml")))


def load_scenario(name_or_path: str) -> Scenario:
    """Reads a bundled scenario by name, or a file. Raises `ScenarioError` naming file and key."""
    path = Path(name_or_path)
    if path.suffix in {".yaml", ".yml"}:
        try:
            text = path.read_text(encoding="utf-8")
        except OSError as error:
            raise ScenarioError(name_or_path, "file", f"cannot be read: {error.strerror}") from error
        except UnicodeDecodeError as error:
            raise ScenarioError(name_or_path, "file", "cannot be read: not text in UTF-8") from error
    elif name_or_path in bundled_scenarios():
        text = (resources.files(__package__) / "scenarios" / f"{name_or_path}.yaml").read_text(encoding="utf-8")
    else:
        raise ScenarioError(name_or_path, "name", f"no such scenario; bundled: {', '.join(bundled_scenarios())}")
    try:
        raw = yaml.safe_load(text)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        where = "" if mark is None else f" (line {mark.line + 1}, column {mark.column + 1})"
        raise ScenarioError(name_or_path, "file", f"not YAML: {error.problem}{where}") from error
    except (yaml.YAMLError, ValueError) as error:  # ValueError: a date such as 2026-99-99
        raise ScenarioError(name_or_path, "file", f"not YAML: {str(error).splitlines()[0]}") from error
    return _Reader(name_or_path).scenario(raw)


class _Reader:
    """Turns plain YAML values into a `Scenario`; every complaint names file and dotted key."""

    def __init__(self, path: str) -> None:
        self._path = path

    def scenario(self, raw: Any) -> Scenario:
        top = self._table(raw, "", {"name", "about", "load", "num_first_lane", "lanes"})
        lanes = self._table(top.get("lanes"), "lanes", None)  # by names of its own
        if not lanes:
            raise ScenarioError(self._path, "lanes", "needs at least one lane")
        specs = tuple(self._lane(name, value) for name, value in lanes.items())
        total = sum(spec.work_share for spec in specs)
        if abs(total - 1.0) > 1e-6:
            raise ScenarioError(self._path, "lanes", f"the work shares sum to {total:g}, not to 1")
        return Scenario(
            name=self._get(top, "name", "name", str),
            about=self._get(top, "about", "about", str).strip(),
            lanes=specs,
            load=self._get(top, "load", "load", _positive),
            num_first_lane=self._get(top, "num_first_lane", "num_first_lane", _count),
        )

    def _lane(self, name: str, raw: Any) -> LaneSpec:
        key = f"lanes.{name}"
        known = {"work_share", "lengths", "arrivals", "objectives", "declare_lane", "shared_prefix_tokens"}
        table = self._table(raw, key, known)
        known = {"prompt_tokens", "output_tokens", "rank_correlation", "divisor", "prompt_bounds", "output_bounds"}
        lengths = self._table(table.get("lengths"), f"{key}.lengths", known)
        shape = LengthShape(
            prompt_tokens=self._get(lengths, "prompt_tokens", f"{key}.lengths.prompt_tokens", _quantiles),
            output_tokens=self._get(lengths, "output_tokens", f"{key}.lengths.output_tokens", _quantiles),
            rank_correlation=self._get(lengths, "rank_correlation", f"{key}.lengths.rank_correlation", _correlation),
        )
        arrivals = self._table(table.get("arrivals", {}), f"{key}.arrivals", {"cv", "mean_burst", "on_share"})
        if "cv" in arrivals and len(arrivals) > 1:
            raise ScenarioError(self._path, f"{key}.arrivals", "has cv beside a burst's keys: give one or the other")
        if ("on_share" in arrivals) != ("mean_burst" in arrivals):
            raise ScenarioError(self._path, f"{key}.arrivals", "needs both mean_burst and on_share, or neither")
        objectives = self._table(table.get("objectives", {}), f"{key}.objectives", {"ttft_s", "tpot_s", "e2e_s"})
        return LaneSpec(
            name=str(name),
            work_share=self._get(table, "work_share", f"{key}.work_share", _positive),
            lengths=shape,
            divisor=self._get(lengths, "divisor", f"{key}.lengths.divisor", _positive),
            prompt_bounds_tokens=self._get(lengths, "prompt_bounds", f"{key}.lengths.prompt_bounds", _bounds),
            output_bounds_tokens=self._get(lengths, "output_bounds", f"{key}.lengths.output_bounds", _bounds),
            arrivals=Arrivals(
                cv=self._get(arrivals, "cv", f"{key}.arrivals.cv", _positive, 1.0),
                mean_burst=self._get(arrivals, "mean_burst", f"{key}.arrivals.mean_burst", _positive, None),
                on_share=self._get(arrivals, "on_share", f"{key}.arrivals.on_share", _share, 1.0),
            ),
            objectives=Objectives(
                **{name: self._get(objectives, name, f"{key}.objectives.{name}", _positive) for name in objectives}
            ),
            declare_lane=self._get(table, "declare_lane", f"{key}.declare_lane", _lane, None),
            shared_prefix_tokens=self._get(table, "shared_prefix_tokens", f"{key}.shared_prefix_tokens", _count, 0),
        )

    def _table(self, raw: Any, key: str, known: set[str] | None) -> dict[str, Any]:
        if not isinstance(raw, Mapping):
            raise ScenarioError(self._path, key or "file", "not a table")
        unknown = sorted(str(name) for name in raw if known is not None and name not in known)
        if unknown:
            pasted = ", ".join(name for name in unknown if name in DESCRIPTION_KEYS)
            hint = f"only describes a trace, remove it: {pasted}" if unknown[0] in DESCRIPTION_KEYS else "unknown key"
            allowed = ", ".join(sorted(known or ()))
            raise ScenarioError(self._path, f"{key}.{unknown[0]}".lstrip("."), f"{hint}; allowed: {allowed}")
        return {str(name): value for name, value in raw.items()}

    _REQUIRED: Any = object()

    def _get(
        self, table: dict[str, Any], name: str, key: str, parse: Callable[[Any], _T], default: Any = _REQUIRED
    ) -> _T:
        if name not in table:
            if default is self._REQUIRED:
                raise ScenarioError(self._path, key, "missing")
            value: _T = default
            return value
        try:
            return parse(table[name])
        except (TypeError, ValueError) as error:
            raise ScenarioError(self._path, key, f"{table[name]!r}: {error}") from error


def _positive(value: Any) -> float:
    if isinstance(value, bool) or not float(value) > 0.0:
        raise ValueError("not a number over 0")
    return float(value)


def _share(value: Any) -> float:
    if not 0.0 < _positive(value) <= 1.0:
        raise ValueError("not a share in 0..1")
    return float(value)


def _correlation(value: Any) -> float:
    if not -1.0 <= float(value) <= 1.0:
        raise ValueError("not a correlation in -1..1")
    return float(value)


def _lane(value: Any) -> str:
    if value not in DECLARABLE_LANES:
        raise ValueError(f"not a lane; allowed: {', '.join(lane.value for lane in DECLARABLE_LANES)}")
    return str(value)


def _count(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ValueError("not a whole number from 0")
    return value


def _bounds(value: Any) -> tuple[int, int]:
    if not isinstance(value, list) or len(value) != 2:
        raise ValueError("not a pair [least, most]")
    least, most = (_count(item) for item in value)
    if not 1 <= least <= most:
        raise ValueError("needs 1 <= least <= most")
    return least, most


def _quantiles(value: Any) -> tuple[int, ...]:
    if not isinstance(value, list) or len(value) != len(QUANTILE_LEVELS):
        raise ValueError(f"not a list of {len(QUANTILE_LEVELS)} quantiles")
    counts = tuple(_count(item) for item in value)
    if any(low > high for low, high in pairwise(counts)):
        raise ValueError("quantiles must not fall")
    return counts
