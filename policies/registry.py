"""Name → policy part, with its options checked. Lists, not registration by side effect."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class PolicyConfigError(Exception):
    """A policy can't be built as configured. Says which key, which value and what would be allowed."""

    def __init__(self, key: str, value: object, allowed: str) -> None:
        super().__init__(f"{key}: {value!r} is not allowed; allowed: {allowed}")
        self.key = key
        self.value = value
        self.allowed = allowed


@dataclass(frozen=True, slots=True)
class Option:
    """A number that a part can be given."""

    default: float | int | None
    help: str
    above: float | None = None
    """Exclusive lower bound."""
    at_least: float | None = None
    at_most: float | None = None
    whole: bool = False
    may_be_none: bool = False

    def check(self, key: str, value: object) -> float | int | None:
        """The value itself; raises PolicyConfigError."""
        if value is None and self.may_be_none:
            return None
        is_number = isinstance(value, int) if self.whole else isinstance(value, int | float)
        if not is_number or isinstance(value, bool):
            raise PolicyConfigError(key, value, self.allowed)
        number: float | int = value  # type: ignore[assignment]
        inside = (
            number == number  # not NaN
            and (self.above is None or number > self.above)
            and (self.at_least is None or number >= self.at_least)
            and (self.at_most is None or number <= self.at_most)
        )
        if not inside:
            raise PolicyConfigError(key, value, self.allowed)
        return number

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
    """How to make a policy part: called with every option by name."""

    name: str
    make: Callable[..., T]
    options: Mapping[str, Option] = field(default_factory=dict)

    def build(self, given: Mapping[str, Any]) -> T:
        for key, value in given.items():
            if key not in self.options:
                allowed = ", ".join(sorted(self.options)) or "no options"
                raise PolicyConfigError(f"options.{self.name}.{key}", value, allowed)
        values = {key: option.default for key, option in self.options.items()} | {
            key: self.options[key].check(f"options.{self.name}.{key}", value) for key, value in given.items()
        }
        return self.make(**values)


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
        if name not in self._parts:
            raise PolicyConfigError(self.kind, name, ", ".join(self.names()))
        return self._parts[name]
