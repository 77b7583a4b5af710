"""The servers that real clients talk to, through a gateway."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from gateway.app import Gateway
from tests.backend.engine_process import EngineProcess, engine_process
from tests.support.gateways import assert_nothing_held, gateway_for
from tests.support.loops import pytest_asyncio_loop_factories as pytest_asyncio_loop_factories
from tests.support.serve import serving, until

from .entrance import Entrance
from .llama_process import LlamaProcess, llama_process


@pytest.fixture(scope="session")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the engine puts its tokenizer's files."""
    return tmp_path_factory.mktemp("tokenizer")


@pytest.fixture(scope="session")
def engine(tokenizer: Path) -> Iterator[EngineProcess]:
    """The bundled engine with the embedded model: one for all tests with it, which run in one process."""
    with engine_process("--export-tokenizer", str(tokenizer), "--kv-cache-bytes", str(1 << 27)) as process:
        yield process


@pytest.fixture
async def in_front_of_engine(engine: EngineProcess) -> AsyncIterator[Entrance]:
    """A gateway in front of it, that must hold nothing in the end."""
    async with gateway_for(engine) as gateway, serving(gateway) as port:
        yield Entrance(gateway, port, engine.model)
        await _until_idle(gateway)


@pytest.fixture(scope="session")
def llama() -> Iterator[LlamaProcess]:
    """llama.cpp's server with the embedded model."""
    with llama_process() as process:
        yield process


@pytest.fixture
async def in_front_of_llama(llama: LlamaProcess) -> AsyncIterator[Entrance]:
    """A gateway in front of it, that must hold nothing in the end."""
    async with gateway_for(llama) as gateway, serving(gateway) as port:
        yield Entrance(gateway, port, llama.model)
        await _until_idle(gateway)


async def _until_idle(gateway: Gateway) -> None:
    await until(lambda: gateway.core.num_in_flight == 0)
    assert_nothing_held(gateway)
