"""Adapter for runners of gateway cases: translates the settings of a case, then becomes the gateway.

    case_adapter.py --describe         prints what the gateway offers, as a JSON object
    case_adapter.py SETTINGS.json      writes the configuration and execs `tailgate serve` on it

A setting that has no translation is refused: a case that needs it must not pass for the wrong reason.
"""

import json
import os
import sys
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from gateway.key_file import KeyEntry, new_key_file

DESCRIBE: dict[str, Any] = {
    "name": "tailgate",
    "ready": "/readyz",
    "live": "/healthz",
    "metrics": "/metrics",
    "in_flight": {"path": "/metrics", "re": r"^tailgate_requests_in_flight (\S+)$"},
    "queued": {"path": "/metrics", "re": r"^tailgate_requests_queued\{.*\} (\S+)$"},
    "capabilities": ["auth", "cors", "heartbeat", "key_models", "limits", "token_limits", "priorities"],
    "priority": {
        "high": {"headers": {"x-tailgate-lane": "interactive"}},
        "low": {"headers": {"x-tailgate-lane": "background"}},
    },
}

# Setting → where its value goes, unchanged.
SAME = {
    "queue_max": ("policy", "options", "queue", "max_requests"),
    "queue_timeout_s": ("timeouts", "queue_s"),
    "first_byte_timeout_s": ("timeouts", "first_byte_s"),
    "idle_timeout_s": ("timeouts", "idle_s"),
    "connect_timeout_s": ("timeouts", "connect_s"),
    "header_timeout_s": ("timeouts", "head_s"),
    "body_timeout_s": ("timeouts", "receive_s"),
    "drain_s": ("timeouts", "drain_s"),
    "cors_origins": ("cors", "origins"),
    "health_interval_s": ("probes", "interval_s"),
    "heartbeat_s": ("streams", "heartbeat_s"),
    "log_level": ("log", "level"),
    "default_max_tokens": ("limits", "assumed_output_tokens"),
}
# Limits of every key, and what the product calls them.
KEY_LIMITS = {
    "max_parallel_per_key": "max_in_flight_requests",
    "requests_per_minute": "requests_per_min",
    "tokens_per_minute": "tokens_per_min",
}
ANY_KEY = {"key": "sk-any", "models": None}
"""What clients send where a case names no key."""
# Those that arrive in a place of their own, and are read there.
ELSEWHERE = {"models_per_backend", "backend_name", "slots_per_backend", "backend_key"}
ANY_TOKENS = 10**9


def main(argument: str) -> None:
    """Prints the description, or doesn't return."""
    if argument == "--describe":
        print(json.dumps(DESCRIBE))
        return
    case = json.loads(Path(argument).read_text())
    file = Path(case["work_dir"], "gateway.yaml")
    file.write_text(json.dumps(translate(case)))  # JSON is YAML
    command = [sys.executable, "-c", "from gateway.cli import main; main()", "serve", "--config", str(file)]
    os.execv(command[0], command)


def translate(case: dict[str, Any]) -> dict[str, Any]:
    """The configuration for a case. Exits with a message where it asks for something that isn't offered."""
    settings = dict(case["settings"])
    config: dict[str, Any] = {"listen": case["listen"], "replicas": [_replica(item, case) for item in case["backends"]]}
    limits: dict[str, Any] = {own: settings.pop(name) for name, own in KEY_LIMITS.items() if name in settings}
    if settings.pop("over_limit", "reject") != "reject":
        sys.exit("over a limit, requests are rejected")
    if case["api_keys"] or limits:
        config["keys"] = _key_file(case, limits)
        config["admin"] = {"key_required": False}
    for name in ELSEWHERE:
        settings.pop(name, None)
    if "retries" in settings:
        _put(config, ("limits", "max_attempts"), 1 + settings.pop("retries"))
    if "max_body_mb" in settings:
        _put(config, ("limits", "max_body_bytes"), int(settings.pop("max_body_mb") * 2**20))
    if "starvation_bound_s" in settings:
        # Until it is served, so the bound holds the wait for whoever runs when it is overdue, too.
        path = ("policy", "options", "background", "max_wait_s")
        _put(config, path, settings.pop("starvation_bound_s") * 0.8)
    # Prompts are not followed to the replica that has their prefix: the default policy serves such cases. It remembers
    # nothing of them, which is within any bound.
    if settings.get("policy") == "prefix":
        del settings["policy"]
        settings.pop("prefix_index_max_mb", None)
    for name in SAME.keys() & settings.keys():
        value = settings.pop(name)
        _put(config, SAME[name], float(value) if name.endswith("_s") else value)
    if settings:
        sys.exit(f"settings without a translation: {', '.join(sorted(settings))}")
    return config


def _replica(backend: dict[str, Any], case: dict[str, Any]) -> dict[str, Any]:
    settings = case["settings"]
    url = urlsplit(backend["url"])
    host = settings.get("backend_name", url.hostname)
    replica = {"id": backend["id"], "url": f"{url.scheme}://{host}:{url.port}"}
    if "models_per_backend" in settings:
        replica["models"] = backend["models"]
    if "backend_key" in settings:
        replica["authorization"] = f"Bearer {settings['backend_key']}"
    if "slots_per_backend" in settings:
        replica["max_in_flight_requests"] = settings["slots_per_backend"]
        # Requests are what counts then, so nothing else may hold them back.
        replica["max_in_flight_tokens"] = replica["max_prefill_tokens"] = ANY_TOKENS
    return replica


def _key_file(case: dict[str, Any], limits: dict[str, Any]) -> str:
    """A file with the case's keys, all of them with these limits; its name."""
    file = new_key_file()
    entries = [
        KeyEntry(id=f"k{index}", tenant=f"t{index}", hash=file.digest_of(item["key"]), models=item["models"], **limits)
        for index, item in enumerate(case["api_keys"] or [ANY_KEY])
    ]
    path = Path(case["work_dir"], "keys.json")
    path.write_bytes(file.model_copy(update={"keys": tuple(entries)}).text())
    return str(path)


def _put(config: dict[str, Any], path: tuple[str, ...], value: object) -> None:
    for key in path[:-1]:
        config = config.setdefault(key, {})
    config[path[-1]] = value


if __name__ == "__main__":
    main(sys.argv[1])
