"""Set-up for the gateway's tests."""

from tests.support.loops import pytest_asyncio_loop_factories as pytest_asyncio_loop_factories
