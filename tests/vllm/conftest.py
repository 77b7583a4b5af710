"""One vLLM for all of these tests, with the embedded model's weights and tokenizer."""

import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import torch

from backend.export import export_huggingface
from backend.weights import EMBEDDED
from tests.support.gateways import assert_nothing_held, gateway_for
from tests.support.loops import pytest_asyncio_loop_factories as pytest_asyncio_loop_factories
from tests.support.serve import serving, until

from .vllm_process import VllmProcess, vllm_process


@pytest.fixture(scope="session")
def python() -> Path:
    """Of the environment that has vLLM."""
    path = os.environ.get("VLLM_PYTHON")
    if not path:
        pytest.skip("VLLM_PYTHON names no Python that has vLLM; `make test-vllm` makes one and sets it")
    return Path(path)


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The embedded model as a Hugging Face folder."""
    folder = tmp_path_factory.mktemp("model")
    export_huggingface(EMBEDDED, folder, torch.bfloat16)
    return folder


@pytest.fixture(scope="session")
def vllm(python: Path, model_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[VllmProcess]:
    """A running server."""
    with vllm_process(python, model_folder, tmp_path_factory.mktemp("vllm") / "log") as process:
        yield process


@pytest.fixture
async def port(vllm: VllmProcess) -> AsyncIterator[int]:
    """Of a gateway in front of it, that must hold nothing in the end."""
    async with gateway_for(vllm) as gateway, serving(gateway) as listening:
        yield listening
        await until(lambda: gateway.core.num_in_flight == 0)
        assert_nothing_held(gateway)
