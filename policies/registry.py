"""Name → policy part, with its options checked. Lists, not registration by side effect."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

T = TypeVar("T")


Value = float | int | None
"""What an option is set to."""


@dataclass(frozen=True, slots=True)
class PolicyProblem:
    """One wrong value: its key, the value, and what would be right, in words."""

    key: str
    value: object
    allowed: str


class PolicyConfigError(Exception):
    """A policy can't be built as configured. `problems` has everything that is wrong with it."""

    def __init__(self, problems: Iterable[PolicyProblem]) -> None:
        self.problems = tuple(problems)
        super().__init__(
            "; ".join(f"{problem.key}: {problem.value!r} isn't allowed; {problem.allowed}" for problem in self.problems)
        )


@dataclass(frozen=True, slots=True)
class Option:
    """A number that a part can be given."""

    default: Value
    help: str
    above: float | None = None
    """Exclusive lower bound."""
    at_least: float | None = None
    at_most: float | None = None
    whole: bool = False
    may_be_none: bool = False

    def takes(self, value: object) -> bool:
        """Whether this value is allowed."""
        if value is None:
            return self.may_be_none
        if isinstance(value, bool) or not isinstance(value, int if self.whole else int | float):
            return False
        return (
            value == value  # not NaN
            and (self.above is None or value > self.above)
            and (self.at_least is None or value >= self.at_least)
            and (self.at_most is None or value <= self.at_most)
        )

    @property
    def allowed(self) -> str:
        words = ["a whole number" if self.whole else "a number"]
        words += [f"above {self.above:g}"] if self.above is not None else []
        words += [f"at least {self.at_least:g}"] if self.at_least is not None else []
        words += [f"at most {self.at_most:g}"] if self.at_most is not None else []
        words += ["or null"] if self.may_be_none else []
        return " ".join(words)


@dataclass(frozen=True, slots=True)
class Part(Generic[T]):
    """How to make a policy part: `make` is called with every option by name."""

    name: str
    make: Callable[..., T]
    options: Mapping[str, Option] = field(default_factory=dict)

    def problems(self, given: Mapping[str, Any]) -> list[PolicyProblem]:
        """What is wrong with these options."""
        known = "allowed: " + ", ".join(sorted(self.options)) if self.options else f"{self.name} has no options"
        found = []
        for name, value in given.items():
            key, option = f"options.{self.name}.{name}", self.options.get(name)
            if option is None:
                found.append(PolicyProblem(key, value, known))
            elif not option.takes(value):
                found.append(PolicyProblem(key, value, f"must be {option.allowed}"))
        return found

    def filled(self, given: Mapping[str, Any]) -> dict[str, Value]:
        """Every option: as given, else its default."""
        return {name: given.get(name, option.default) for name, option in self.options.items()}


class Registry(Generic[T]):
    """The parts of one kind. A duplicate name raises ValueError at import time."""

    def __init__(self, kind: str, parts: Iterable[Part[T]]) -> None:
        self.kind = kind
        self._parts: dict[str, Part[T]] = {}
        for part in parts:
            if part.name in self._parts:
                raise ValueError(f"{kind} {part.name} is listed twice")
            self._parts[part.name] = part

    def names(self) -> list[str]:
        return sorted(self._parts)

    def get(self, name: str) -> Part[T]:
        """Raises KeyError."""
        return self._parts[name]


def parts_in_use(
    roles: Mapping[str, Registry[Any]],
    chosen: Mapping[str, str],
    given: Mapping[str, Any],
    always: Iterable[Part[Any]] = (),
) -> tuple[dict[str, Part[Any]], list[PolicyProblem]]:
    """The parts by name that `chosen` (role → name) puts to use, those of `always` among them, and what is wrong with
    that choice and with the options `given` (part → option → value). Options of a part that isn't used are wrong: they
    would have no effect.
    """
    problems: list[PolicyProblem] = []
    parts: dict[str, Part[Any]] = {part.name: part for part in always}
    unused: dict[str, str] = {}
    for role, registry in roles.items():
        choice, names = chosen[role], registry.names()
        if choice not in names:
            problems.append(PolicyProblem(role, choice, f"allowed: {', '.join(names)}"))
        for name in names:
            if name == choice or choice not in names:
                parts[name] = registry.get(name)
            else:
                unused[name] = f"{name} isn't in use: {role} is {choice}"
    for name, options in given.items():
        if name in parts and isinstance(options, Mapping):
            problems += parts[name].problems(options)
        elif name in parts:
            problems.append(PolicyProblem(f"options.{name}", options, "must be a mapping of options"))
        else:
            allowed = unused.get(name, f"allowed: {', '.join(sorted(parts))}")
            problems.append(PolicyProblem(f"options.{name}", options, allowed))
    return parts, problems
