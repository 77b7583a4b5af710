"""Set-up for fuzzing the gateway."""

from tests.support.loops import pytest_asyncio_loop_factories as pytest_asyncio_loop_factories
