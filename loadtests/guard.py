"""How commands end that fail: a line, no traceback."""

import asyncio
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from typing import Any

import typer

from .errors import LoadtestError


@contextmanager
def told() -> Iterator[None]:
    """An error of ours inside is one line and status 2."""
    try:
        yield
    except LoadtestError as error:
        typer.echo(f"tailgate-load: {error}", err=True)
        raise typer.Exit(2) from error


def guarded(coroutine: Coroutine[Any, Any, object]) -> None:
    """Runs to the end; see `told`."""
    with told():
        asyncio.run(coroutine)
