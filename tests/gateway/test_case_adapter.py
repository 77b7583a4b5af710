"""The adapter for case runners: what it offers, and that it translates each setting or refuses it."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from gateway.config import GatewayConfig, parse_config
from gateway.key_file import load_key_file
from policies.limits import LimitSpec
from tests.support import case_adapter
from tests.support.case_adapter import translate


def case(**settings: Any) -> dict[str, Any]:
    """What a runner hands over."""
    return {
        "listen": {"host": "127.0.0.1", "port": 1},
        "work_dir": "/nowhere",
        "backends": [{"id": "b1", "url": "http://127.0.0.1:2", "models": ["m1"]}],
        "api_keys": [],
        "settings": settings,
    }


def configured(**settings: Any) -> GatewayConfig:
    return parse_config(translate(case(**settings)), source="case")


def test_it_describes_itself() -> None:
    """As one JSON object, with a part of a request for either priority."""
    command = [sys.executable, str(Path(case_adapter.__file__)), "--describe"]
    answer = json.loads(subprocess.run(command, capture_output=True, text=True, timeout=30, check=True).stdout)
    assert answer["name"] == "tailgate"
    assert answer["ready"] == "/readyz"
    assert set(answer["priority"]) == {"high", "low"}


def test_nothing_set_is_the_products_default() -> None:
    """Beyond the address and the replicas, whose models are probed."""
    config = configured()
    plain = parse_config({"replicas": [{"url": "http://127.0.0.1:2", "id": "b1"}]}, source="plain")
    assert config.model_copy(update={"listen": plain.listen}) == plain


def test_settings_arrive() -> None:
    """Each where the gateway reads it, whole numbers of seconds too."""
    config = configured(
        slots_per_backend=3,
        queue_max=5,
        queue_timeout_s=2,
        starvation_bound_s=5,
        policy="prefix",
        prefix_index_max_mb=16,
        heartbeat_s=2,
        backend_name="localhost",
        retries=0,
        max_body_mb=16,
        drain_s=8,
        cors_origins=["https://a.example"],
        header_timeout_s=2,
        body_timeout_s=1,
        models_per_backend={"b1": ["m1"]},
        backend_key="sk-b",
        log_level="debug",
    )
    (replica,) = config.replicas
    assert (replica.max_in_flight_requests, replica.models) == (3, ("m1",))
    assert replica.authorization is not None
    assert replica.authorization.get_secret_value() == "Bearer sk-b"
    assert config.policy.options == {"queue": {"max_requests": 5}, "background": {"max_wait_s": 4.0}}
    assert (config.timeouts.queue_s, config.timeouts.drain_s) == (2.0, 8.0)
    assert (config.timeouts.head_s, config.timeouts.receive_s) == (2.0, 1.0)
    assert (config.limits.max_attempts, config.limits.max_body_bytes) == (1, 16 * 2**20)
    assert config.log.level == "debug"
    assert (config.streams.heartbeat_s, replica.url) == (2.0, "http://localhost:2")
    assert config.cors is not None
    assert config.cors.origins == ("https://a.example",)


def test_keys_and_their_limits_become_a_key_file(tmp_path: Path) -> None:
    """Models as given; where only limits are, the key that clients send by default has them."""
    keys = [{"key": "sk-1", "models": ["m1"]}, {"key": "sk-2", "models": None}]
    limits = {"max_parallel_per_key": 1, "requests_per_minute": 2, "tokens_per_minute": 3}
    for given, sent in ((keys, b"sk-1"), ([], b"sk-any")):
        handed = case(**limits, default_max_tokens=7, over_limit="reject")
        config = parse_config(translate({**handed, "work_dir": str(tmp_path), "api_keys": given}), source="case")
        assert config.keys is not None
        assert (config.needs_admin_key, config.limits.assumed_output_tokens) == (False, 7)
        table = load_key_file(config.keys).table()
        key = table.find(sent)
        assert key is not None
        assert key.limits == LimitSpec(2, 3, 1, None)
        assert key.models == (frozenset({"m1"}) if given else None)
        assert len(table.keys) == (len(given) or 1)


@pytest.mark.parametrize("settings", [{"shared_store": "redis://x"}, {"prefix_index_max_mb": 1}, {"policy": "random"}])
def test_a_setting_without_a_translation_is_refused(settings: dict[str, Any]) -> None:
    """By name: the case must not pass for the wrong reason."""
    with pytest.raises(SystemExit, match=next(iter(settings))):
        configured(**settings)
