"""The gateways that are measured: tailgate as a user starts it, a naive proxy, and others where they are installed."""

import os
import shutil
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from ..processes import free_port, gateway_command

MODEL = "instant"
TAILGATE, NAIVE, VLLM_ROUTER = "tailgate", "naive", "vllm-router"
# A replica that answers at once has no prefill to bound. Its tokens in flight are bounded by what its metrics tell.
_NO_CAP = 10**9
MORE_PATH = ":/usr/sbin"
"""Where nginx is, and the PATH of users often doesn't lead."""


@dataclass(frozen=True, slots=True)
class Start:
    """How to start one: the command, and what to add to the environment."""

    command: list[str]
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Contender:
    """`start` gets an empty folder, the loopback port to listen on, and the replica's URL."""

    name: str
    start: Callable[[Path, int, str], Start]


@dataclass(frozen=True, slots=True)
class _Peer:
    """`environment` is its folder below that of all environments; `script` the executable in its `bin`."""

    name: str
    environment: str
    script: str
    start: Callable[[str, Path, int, str], Start]
    is_on_path: bool = True


def tailgate_config(replica_url: str) -> dict[str, Any]:
    """Everything on: queue, routing, attribution, metrics, scrapes, access log; no tokenizer."""
    return {"replicas": [{"url": replica_url, "max_prefill_tokens": _NO_CAP}]}


def own_contenders() -> list[Contender]:
    """Those that are always there."""

    def tailgate(folder: Path, port: int, replica_url: str) -> Start:
        return Start(gateway_command(tailgate_config(replica_url), folder, port))

    def naive(_: Path, port: int, replica_url: str) -> Start:
        app = f"{__package__}.naive_proxy:app"
        quiet = ["--log-level", "warning", "--no-access-log"]
        command = [sys.executable, "-m", "uvicorn", app, "--host", "127.0.0.1", "--port", str(port), *quiet]
        return Start(command, {"REPLICA_URL": replica_url})

    return [Contender(TAILGATE, tailgate), Contender(NAIVE, naive)]


def peers(folder: Path | None) -> tuple[list[Contender], list[str]]:
    """Those that are installed, and the names of the others.

    Looked for in `folder`/NAME/bin, an environment each, then on PATH.
    """
    found, missing = [], []
    for peer in _PEERS:
        executable = _find(peer, folder)
        if executable is None:
            missing.append(peer.name)
        else:
            found.append(Contender(peer.name, _bind(peer, executable)))
    return found, missing


def _bind(peer: _Peer, executable: str) -> Callable[[Path, int, str], Start]:
    def start(folder: Path, port: int, replica_url: str) -> Start:
        begun = peer.start(executable, folder, port, replica_url)
        # They have environments of their own: nothing of this one's path.
        return Start(begun.command, {"PYTHONPATH": "", **begun.environment})

    return start


def _find(peer: _Peer, folder: Path | None) -> str | None:
    if folder is not None:
        path = folder / peer.environment / "bin" / peer.script
        if os.access(path, os.X_OK):
            return str(path.absolute())
    return shutil.which(peer.script, path=os.environ.get("PATH", "") + MORE_PATH) if peer.is_on_path else None


def _vllm_router(executable: str, folder: Path, port: int, replica_url: str) -> Start:
    return Start([executable, *_rust_flags(folder, port, replica_url), "--log-level", "warning"])


def _sglang_router(executable: str, folder: Path, port: int, replica_url: str) -> Start:
    return Start([executable, "launch", *_rust_flags(folder, port, replica_url), "--log-level", "warn"])


def _rust_flags(folder: Path, port: int, replica_url: str) -> list[str]:
    """vllm-router is a fork of sglang-router: one set of flags."""
    return [
        *("--worker-urls", replica_url, "--host", "127.0.0.1", "--port", str(port), "--policy", "round_robin"),
        *("--log-dir", str(folder), "--prometheus-host", "127.0.0.1", "--prometheus-port", str(free_port())),
    ]


def _litellm(executable: str, folder: Path, port: int, replica_url: str) -> Start:
    config = {
        "model_list": [
            {
                "model_name": MODEL,
                "litellm_params": {"model": f"openai/{MODEL}", "api_base": f"{replica_url}/v1", "api_key": "unused"},
            }
        ],
        "litellm_settings": {"telemetry": False, "num_retries": 0},
    }
    path = folder / "litellm.yaml"
    path.write_text(yaml.safe_dump(config), encoding="utf-8")
    environment = {
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",  # or it fetches one from the internet
        "LITELLM_LOG": "ERROR",
        "LITELLM_MODE": "PRODUCTION",
        "LITELLM_DANGEROUSLY_PERMIT_WEAK_OR_UNSET_MASTER_KEY": "true",
    }
    flags = ["--host", "127.0.0.1", "--port", str(port), "--telemetry", "False"]
    return Start([executable, "--config", str(path), *flags], environment)


def _nginx(executable: str, folder: Path, port: int, replica_url: str) -> Start:
    temporary = "".join(
        f"  {kind}_temp_path {folder};\n" for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    path = folder / "nginx.conf"
    path.write_text(
        f"""daemon off;
worker_processes 1;
pid {folder}/nginx.pid;
error_log stderr warn;
events {{ worker_connections 16384; }}
http {{
  access_log off;
{temporary}  keepalive_requests 1000000000;
  client_body_buffer_size 256k;
  client_max_body_size 0;
  upstream replica {{
    server {replica_url.removeprefix("http://")};
    keepalive 512;
    keepalive_requests 1000000000;
  }}
  server {{
    listen 127.0.0.1:{port};
    location / {{
      proxy_pass http://replica;
      proxy_http_version 1.1;
      proxy_set_header Connection '';
      proxy_buffering off;
    }}
  }}
}}
""",
        encoding="utf-8",
    )
    return Start([executable, "-p", str(folder), "-e", "stderr", "-c", str(path)])


def _production_stack(executable: str, _: Path, port: int, replica_url: str) -> Start:
    discovery = ["--service-discovery", "static", "--static-backends", replica_url, "--static-models", MODEL]
    flags = ["--routing-logic", "roundrobin", "--log-level", "warning"]
    return Start([executable, "--host", "127.0.0.1", "--port", str(port), *discovery, *flags])


_PEERS = (
    _Peer(VLLM_ROUTER, "vllm-router", "vllm-router", _vllm_router),
    _Peer("sglang-router", "sglang-router", "sglang-router", _sglang_router),
    _Peer("litellm", "litellm", "litellm", _litellm),
    _Peer("nginx", "nginx", "nginx", _nginx),
    # Its command has the name of the other vllm-router's: on PATH it couldn't be told from it.
    _Peer("production-stack", "production-stack", "vllm-router", _production_stack, is_on_path=False),
)
