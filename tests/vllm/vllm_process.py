"""A real vLLM as a process, in an environment of its own: its dependencies and ours don't go together."""

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx

from tests.support.serve import free_port

MODEL = "tiny"
MAX_MODEL_TOKENS = 2048
NUM_RUNNING, NUM_TAKEN = 2, 3
"""Requests it computes at once, and those it takes at all: one more is a 503."""
START_DEADLINE_S = 300.0
STOP_DEADLINE_S = 30.0
LOG_TAIL_BYTES = 4000

_OPTIONS = {
    "--served-model-name": MODEL,
    "--host": "127.0.0.1",
    "--block-size": "32",  # what its attention on CPUs can do
    "--max-model-len": str(MAX_MODEL_TOKENS),
    "--max-num-seqs": str(NUM_RUNNING),
    "--max-num-queued-reqs": str(NUM_TAKEN),
}
_FLAGS = (
    "--enforce-eager",  # nothing is compiled, which takes minutes
    "--enable-request-id-headers",
    "--enable-per-request-metrics",
    "--enable-prompt-tokens-details",
    "--enable-lora",
)
_ENVIRONMENT = {
    "VLLM_TARGET_DEVICE": "cpu",
    "VLLM_CPU_KVCACHE_SPACE": "1",  # GiB
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
    # With these it has the routes that nobody may reach.
    "VLLM_SERVER_DEV_MODE": "1",
    "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1",
}


@dataclass(frozen=True, slots=True)
class VllmProcess:
    """A server that is ready."""

    url: str
    model: str = MODEL

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])


@contextmanager
def vllm_process(python: Path, model_folder: Path, log: Path) -> Iterator[VllmProcess]:
    """Starts one and waits until it is ready. `log` gets what it writes; its end is shown when it doesn't start."""
    url = f"http://127.0.0.1:{(port := free_port())}"
    options = [part for pair in _OPTIONS.items() for part in pair]
    with log.open("wb") as output:
        process = subprocess.Popen(
            [
                *(str(python), "-m", "vllm.entrypoints.openai.api_server", "--model", str(model_folder)),
                *("--port", str(port), *options, *_FLAGS),
            ],
            stdout=output,
            stderr=subprocess.STDOUT,
            env={name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | _ENVIRONMENT,
            cwd=model_folder,  # not ours: it would import this project's folders
            start_new_session=True,
        )
        try:
            _wait_ready(process, url, log)
            yield VllmProcess(url)
        finally:
            _stop(process)


def _wait_ready(process: subprocess.Popen[bytes], url: str, log: Path) -> None:
    deadline_s = time.monotonic() + START_DEADLINE_S
    while not _is_ready(url):
        if process.poll() is not None or time.monotonic() > deadline_s:
            raise RuntimeError(f"vLLM did not start:\n{log.read_bytes()[-LOG_TAIL_BYTES:].decode(errors='replace')}")
        time.sleep(0.2)


def _is_ready(url: str) -> bool:
    try:
        return httpx.get(f"{url}/health").status_code == 200
    except httpx.TransportError:
        return False


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(STOP_DEADLINE_S)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)  # its own session: the engine's process is in it, and nobody else
        process.wait()
