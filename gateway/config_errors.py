"""Errors of a configuration in words: the key's path, its value, what is allowed."""

import difflib
import re
import typing
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

KeyPath = tuple[int | str, ...]

MAX_SHOWN = 80
# The last may have been given the secret itself by mistake.
SECRET_KEYS = {"authorization", "hash", "salt", "authorization_env"}
USER_PART = re.compile(r"//[^/@]*@")


_KINDS = {
    "tuple_type": "a list",
    "dict_type": "a mapping",
    "string_type": "text",
    "int_type": "a whole number",
    "float_type": "a number",
    "bool_type": "true or false",
}


class ConfigError(Exception):
    """A configuration that can't be used. `problems` has one line for every thing that is wrong with it."""

    def __init__(self, source: str, problems: Sequence[str]) -> None:
        self.source = source
        self.problems = tuple(problems)
        count = "1 error" if len(self.problems) == 1 else f"{len(self.problems)} errors"
        super().__init__("\n".join([f"{source}: {count}", *(f"  {problem}" for problem in self.problems)]))


@dataclass(frozen=True, slots=True)
class Problem:
    """One wrong value. `path` is relative to whoever found it."""

    path: KeyPath
    value: object
    allowed: str


class Problems(ValueError):  # noqa: N818 - a bundle, unpacked by `describe`
    """Several wrong values found by one validator."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = tuple(problems)
        super().__init__("; ".join(f"{show_path(problem.path)}: {problem.allowed}" for problem in self.problems))


def show_path(path: KeyPath) -> str:
    """`("replicas", 0, "url")` as `replicas[0].url`."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text


def show_value(path: KeyPath, value: object) -> str:
    """The value as it is shown to people: short, and without secrets."""
    if SECRET_KEYS.intersection(path):
        return "the value"
    if value and isinstance(value, dict | list | tuple):  # there may be secrets in it
        return "a mapping" if isinstance(value, dict) else "a list"
    text = USER_PART.sub("//…@", repr(value))
    return text if len(text) <= MAX_SHOWN else text[: MAX_SHOWN - 1] + "…"


def describe(error: ValidationError, root: type[BaseModel]) -> list[str]:
    """A line for every problem in a validation error of `root`, in the order of the file."""
    lines: list[str] = []
    for details in error.errors():
        cause = details.get("ctx", {}).get("error")
        if isinstance(cause, Problems):
            lines += [
                _line(details["loc"] + problem.path, problem.value, problem.allowed) for problem in cause.problems
            ]
        else:
            lines.append(_describe_one(details, root))
    return lines


def _describe_one(details: ErrorDetails, root: type[BaseModel]) -> str:
    path = details["loc"]
    if details["type"] == "extra_forbidden":
        return unknown_key(path, _keys_at(root, path[:-1]))
    if details["type"] == "missing":
        return f"{show_path(path)}: is missing"
    return _line(path, details["input"], _allowed(details, root))


def _allowed(details: ErrorDetails, root: type[BaseModel]) -> str:
    """What would be right, in words for people who write files and not Python."""
    kind = details["type"]
    if kind in _KINDS:
        return f"must be {_KINDS[kind]}"
    if kind in ("model_type", "model_attributes_type"):
        return "must be a mapping with some of: " + ", ".join(_keys_at(root, details["loc"]))
    words = details["msg"].removeprefix("Value error, ")
    words = words.replace("Input should be", "must be").replace("String should", "must")
    return words[0].lower() + words[1:]


def unknown_key(path: KeyPath, allowed: Sequence[str]) -> str:
    """The line for a key that doesn't exist, with the nearest one that does."""
    near = difflib.get_close_matches(str(path[-1]), allowed, n=1)
    hint = f" (did you mean {near[0]}?)" if near else ""
    return f"{show_path(path)}: unknown key{hint}; allowed: {', '.join(allowed)}"


def _line(path: KeyPath, value: object, allowed: str) -> str:
    return f"{show_path(path)}: {show_value(path, value)} isn't allowed; {allowed}"


def _keys_at(model: type[BaseModel], path: KeyPath) -> list[str]:
    """The keys of the section that `path` leads to from `model`."""
    for part in path:
        if isinstance(part, str) and (field := model.model_fields.get(part)) is not None:
            model = _model_in(field.annotation) or model
    return list(model.model_fields)


def _model_in(annotation: object) -> type[BaseModel] | None:
    """The section inside a type such as `tuple[ReplicaConfig, ...]`."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    found = (_model_in(argument) for argument in typing.get_args(annotation))
    return next((model for model in found if model is not None), None)
