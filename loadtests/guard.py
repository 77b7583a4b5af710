"""How commands end that fail: a line, no traceback."""

import asyncio
from collections.abc import Coroutine
from typing import Any

import typer

from .errors import LoadtestError


def guarded(coroutine: Coroutine[Any, Any, object]) -> None:
    """Runs to the end; an error of ours is one line and status 2."""
    try:
        asyncio.run(coroutine)
    except LoadtestError as error:
        raise failure(error) from error


def failure(error: LoadtestError) -> typer.Exit:
    """What to raise once it is told."""
    typer.echo(f"tailgate-load: {error}", err=True)
    return typer.Exit(2)
