"""Files and their cells; every complaint names file, line (from 1) and column."""

import csv
import gzip
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from ..errors import TraceError

_T = TypeVar("_T")


@contextmanager
def open_text(path: Path) -> Iterator[Iterator[str]]:
    """Lines of a plain or gzip text file; which one is told by the magic bytes, not by the name.

    Raises `TraceError` for a file that can't be read, then or while its lines are.
    """
    try:
        with path.open("rb") as raw:
            is_gzip = raw.read(2) == b"\x1f\x8b"
        with gzip.open(path, "rt", encoding="utf-8") if is_gzip else path.open("rt", encoding="utf-8") as file:
            yield iter(file)
    except (OSError, EOFError, UnicodeDecodeError) as error:
        why = (isinstance(error, OSError) and error.strerror) or str(error)
        raise TraceError(str(path), None, None, f"cannot be read: {why}") from error


def table_rows(path: Path, header: str, lines: Iterator[str]) -> Iterator[tuple[int, dict[str, str]]]:
    """(line, cells by column) of a CSV whose header was read. Raises `TraceError` for a row of another length."""
    columns = column_names(header)
    for number, row in enumerate(csv.reader(lines), start=2):
        if not row:
            continue
        if len(row) != len(columns):
            raise TraceError(str(path), number, None, f"{len(row)} columns where the header has {len(columns)}")
        yield number, dict(zip(columns, row, strict=True))


def column_names(header: str) -> list[str]:
    """Of a CSV's first line."""
    return next(csv.reader([header.lstrip("\ufeff")]))


def cell(path: Path, line: int, column: str, value: Any, parse: Callable[[Any], _T]) -> _T:
    """The parsed value. Raises `TraceError` naming the place."""
    try:
        return parse(value)
    except (TypeError, ValueError) as error:
        raise TraceError(str(path), line, column, f"{value!r}: {error}") from error


def number(value: Any) -> float:
    """A finite number. Raises ValueError."""
    if isinstance(value, bool) or value is None:
        raise ValueError("not a number")
    parsed = float(value)
    if not np.isfinite(parsed):
        raise ValueError("not a finite number")
    return parsed


def count(value: Any) -> int:
    """A whole number of tokens. Raises ValueError."""
    parsed = number(value)
    if parsed < 0 or parsed != int(parsed):
        raise ValueError("not a whole number of tokens from 0")
    return int(parsed)


def instant_s(value: str) -> float:
    """Seconds: a number as it is, or a UTC date with up to seven decimals (Azure), of which six count."""
    try:
        return number(value)
    except ValueError:
        head, _, fraction = value.strip().partition(".")
        digits = fraction.split("+")[0].rstrip("Z")
        moment = datetime.fromisoformat(head).replace(tzinfo=UTC)
        return moment.timestamp() + (float(f"0.{digits}") if digits else 0.0)


def block_ids(value: Any) -> tuple[int, ...]:
    """A list of block ids. Raises ValueError."""
    if not isinstance(value, list):
        raise ValueError("not a list of block ids")
    return tuple(count(item) for item in value)
