"""The event loop that the gateway runs on, for its tests."""

import asyncio
from collections.abc import Callable, Mapping

import pytest
import uvloop


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """The loop that the gateway runs on: what it does with sockets and time isn't quite what asyncio's own does.

    A hook of pytest-asyncio: a folder's conftest imports it.
    """
    return {"uvloop": uvloop.new_event_loop}
