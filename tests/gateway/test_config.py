"""The configuration: what a good one becomes, and what a bad one says."""

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from gateway.config import GatewayConfig, load_config, parse_config
from gateway.config_errors import ConfigError
from gateway.config_sections import AdminListen, Listen, ReplicaConfig
from tests.support.keys import write_keys

REPLICA = {"url": "http://127.0.0.1:8001"}


def problems_of(data: object) -> list[str]:
    """What is wrong with this configuration; fails where nothing is."""
    with pytest.raises(ConfigError) as caught:
        parse_config(data, source="test")
    return list(caught.value.problems)


def parse(**data: Any) -> GatewayConfig:
    return parse_config({"replicas": [REPLICA], **data}, source="test")


def test_the_smallest_configuration_is_a_replica() -> None:
    """Everything but the replicas has a default."""
    config = parse()
    assert config.listen == Listen(host="127.0.0.1", port=8080)
    assert (config.timeouts.connect_s, config.timeouts.first_byte_s, config.timeouts.drain_s) == (5, 600, 30)
    assert (config.limits.max_body_bytes, config.limits.max_attempts) == (8 * 1024 * 1024, 2)
    assert config.default_model is None
    assert config.policy.spec().ordering == "adaptive"


def test_keys_and_who_reads_the_metrics(tmp_path: Path) -> None:
    """A file of keys beside the configuration; an admin key is needed where metrics are beside the other routes."""
    write_keys(tmp_path / "keys.json", one={})
    file = tmp_path / "gateway.yaml"
    file.write_text("replicas: [{url: 'http://a:1'}]\nkeys: keys.json\n")
    config = load_config(file)
    assert config.keys == tmp_path / "keys.json"
    assert config.needs_admin_key
    keys, own = str(tmp_path / "keys.json"), {"listen": {"port": 9}}
    assert not parse().needs_admin_key
    assert not parse(keys=keys, admin=own).needs_admin_key
    assert parse(keys=keys, admin={**own, "key_required": True}).needs_admin_key
    assert not parse(keys=keys, admin={"key_required": False}).needs_admin_key
    assert parse(admin={"listen": {}}).admin.listen == AdminListen(host="127.0.0.1", port=9090)


def test_keys_that_are_wrong(tmp_path: Path) -> None:
    """What is wrong in the key file is wrong with the configuration."""
    bad = tmp_path / "keys.json"
    bad.write_text('{"salt": "x", "keys": 5}')
    (problem,) = problems_of({"replicas": [REPLICA], "keys": str(bad)})
    assert "salt: the value isn't allowed; must be 64 hexadecimal digits" in problem
    assert "keys: 5 isn't allowed" in problem
    (problem,) = problems_of({"replicas": [REPLICA], "keys": str(tmp_path / "none.json")})
    assert "tailgate keys create" in problem
    (problem,) = problems_of({"replicas": [REPLICA], "admin": {"key_required": True}})
    assert problem == "admin.key_required: True isn't allowed; needs a file of keys: `keys`"
    (problem,) = problems_of({"replicas": [REPLICA], "listen": {"port": 9090}, "admin": {"listen": {}}})
    assert problem == "admin.listen.port: 9090 isn't allowed; must differ from `listen.port`"


def test_replicas_get_ids_by_position() -> None:
    """A replica without an id is r1, r2 …; one with an id keeps it."""
    config = parse(replicas=[REPLICA, {"url": "http://b:1", "id": "gpu-7"}, {"url": "http://c:1"}])
    assert [replica.id for replica in config.replicas] == ["r1", "gpu-7", "r3"]
    direct = GatewayConfig(replicas=(ReplicaConfig(url="http://a:1"),))
    assert direct.replicas[0].id == "r1"


@pytest.mark.parametrize(
    ("given", "normal"),
    [
        ("http://Host:8000/", "http://host:8000"),
        ("HTTP://host:80", "http://host"),
        ("https://host:443", "https://host"),
        ("http://[::1]:8001", "http://[::1]:8001"),
    ],
)
def test_urls_are_kept_in_one_spelling(given: str, normal: str) -> None:
    """Case, default ports and a final slash make no difference."""
    assert parse(replicas=[{"url": given}]).replicas[0].url == normal


@pytest.mark.parametrize(
    "url",
    [
        "host:8000",
        "ftp://host",
        "http://",
        "http://host:99999",
        "http://host:0",
        "http://host/v1",
        "http://host?x=1",
        "http://ho st",
        "http://host\n",
        "",
    ],
)
def test_a_bad_url_is_an_error(url: str) -> None:
    """The error names the key, the value and the form."""
    (problem,) = problems_of({"replicas": [{"url": url}]})
    assert problem.startswith("replicas[0].url: ")
    assert repr(url) in problem
    assert "http://HOST[:PORT]" in problem


def test_secrets_stay_out_of_errors_and_reprs() -> None:
    """Neither a password in a URL nor an authorization header is ever shown."""
    (problem,) = problems_of({"replicas": [{"url": "http://me:hunter2@host"}]})
    assert "hunter2" not in problem
    (problem,) = problems_of({"replicas": [{**REPLICA, "authorization": "Bearer hunter2\r\nX: y"}]})
    assert problem.startswith("replicas[0].authorization: ")
    assert "hunter2" not in problem
    config = parse(replicas=[{**REPLICA, "authorization": "Bearer hunter2"}])
    assert "hunter2" not in repr(config)
    assert config.replicas[0].authorization is not None
    assert config.replicas[0].authorization.get_secret_value() == "Bearer hunter2"


def test_an_authorization_may_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the variable's name: what it holds is checked and shown nowhere; one that isn't set is an error."""
    monkeypatch.setenv("REPLICA_KEY", "Bearer hunter2")
    config = parse(replicas=[{**REPLICA, "authorization_env": "REPLICA_KEY"}])
    assert config.replicas[0].authorization_header == "Bearer hunter2"
    assert "hunter2" not in repr(config)
    for text, said in (("hunter2\r\nX: y", "header value"), ("", "header value"), (None, "none of this name is set")):
        if text is None:
            monkeypatch.delenv("REPLICA_KEY")
        else:
            monkeypatch.setenv("REPLICA_KEY", text)
        (problem,) = problems_of({"replicas": [{**REPLICA, "authorization_env": "REPLICA_KEY"}]})
        assert problem.startswith("replicas[0].authorization_env: the value isn't allowed; must name")
        assert said in problem
        assert "hunter2" not in problem


def test_a_secret_in_the_wrong_place_stays_a_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    """Given as a variable's name, or as a variable to be filled in, which nothing does; two places are one too many."""
    (problem,) = problems_of({"replicas": [{**REPLICA, "authorization_env": "Bearer hunter2"}]})
    assert "hunter2" not in problem
    (problem,) = problems_of({"replicas": [{**REPLICA, "authorization": "Bearer ${hunter2}"}]})
    assert "name one in `authorization_env`" in problem
    assert "hunter2" not in problem
    monkeypatch.setenv("REPLICA_KEY", "Bearer hunter2")
    both = {"authorization": "Bearer hunter2", "authorization_env": "REPLICA_KEY"}
    (problem,) = problems_of({"replicas": [{**REPLICA, **both}]})
    assert "give one of them" in problem
    assert "hunter2" not in problem


def test_an_access_log_that_cannot_be_written_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As far as that can be told before it is opened."""
    monkeypatch.chdir(tmp_path)

    def said(path: str) -> str:
        (problem,) = problems_of({"replicas": [REPLICA], "log": {"access": path}})
        assert problem.startswith(f"log.access: {path!r} isn't allowed; ")
        return problem

    assert "a folder that exists; none doesn't" in said("none/access.jsonl")
    assert "this is a folder" in said(".")
    assert not list(tmp_path.iterdir())
    monkeypatch.setattr("os.access", lambda _path, _mode: False)
    assert "may write" in said("access.jsonl")


def test_an_unknown_key_is_an_error_that_names_the_known_ones() -> None:
    """With the nearest one as a hint, in nested sections too."""
    problems = problems_of({"replicas": [REPLICA | {"kinda": "vllm"}], "timeout": {}, "timeouts": {"conect_s": 1}})
    by_key = {problem.split(":")[0]: problem for problem in problems}
    assert set(by_key) == {"replicas[0].kinda", "timeout", "timeouts.conect_s"}
    assert "did you mean kind?" in by_key["replicas[0].kinda"]
    assert "max_in_flight_tokens" in by_key["replicas[0].kinda"]
    assert "did you mean timeouts?" in by_key["timeout"]
    assert "did you mean connect_s?" in by_key["timeouts.conect_s"]


def test_all_errors_are_listed_at_once() -> None:
    """Problems in different places come in one message."""
    problems = problems_of(
        {
            "listen": {"port": 70_000},
            "replicas": [{"url": "nope"}, {"url": "http://a:1", "kind": "olama"}],
            "limits": {"max_attempts": 0},
            "policy": {"ordering": "no-such-part", "options": {"cost": {"decode_s_per_token": 0}}},
            "probes": {"interval_s": float("nan")},
        }
    )
    assert [problem.split(": ")[0] for problem in problems] == [
        "listen.port",
        "replicas[0].url",
        "replicas[1].kind",
        "policy.ordering",
        "policy.options.cost.decode_s_per_token",
        "limits.max_attempts",
        "probes.interval_s",
    ]


@pytest.mark.parametrize(
    ("section", "key", "value"),
    [
        ("listen", "port", "8080"),
        ("listen", "port", True),
        ("listen", "port", 80.5),
        ("timeouts", "connect_s", "5"),
        ("timeouts", "connect_s", 0),
        ("timeouts", "idle_s", float("inf")),
        ("limits", "max_body_bytes", -1),
        ("log", "level", "loud"),
    ],
)
def test_nothing_is_coerced(section: str, key: str, value: object) -> None:
    """A value of the wrong type or out of range is an error with its value, not a guess."""
    (problem,) = problems_of({"replicas": [REPLICA], section: {key: value}})
    assert problem.startswith(f"{section}.{key}: {value!r} isn't allowed; ")


@pytest.mark.parametrize(
    ("data", "said"),
    [
        ({"replicas": REPLICA}, "replicas: a mapping isn't allowed; must be a list"),
        (
            {"replicas": [REPLICA], "listen": 8080},
            "listen: 8080 isn't allowed; must be a mapping with some of: host, port",
        ),
        (
            {"replicas": [REPLICA], "admin": {"listen": 1}},
            "admin.listen: 1 isn't allowed; must be a mapping with some of: host, port",
        ),
        (
            {"replicas": [REPLICA], "policy": {"options": {"cost": 1}}},
            "policy.options.cost: 1 isn't allowed; must be a mapping",
        ),
        ({"replicas": [REPLICA], "models": [{"name": 7}]}, "models[0].name: 7 isn't allowed; must be text"),
        ({"replicas": [REPLICA], "listen": {"port": 1.5}}, "listen.port: 1.5 isn't allowed; must be a whole number"),
        (
            {"replicas": [REPLICA], "probes": {"timeout_s": "2"}},
            "probes.timeout_s: '2' isn't allowed; must be a number",
        ),
        (
            {"replicas": [REPLICA | {"priority_scheduling": "on"}]},
            "replicas[0].priority_scheduling: 'on' isn't allowed; must be true or false",
        ),
    ],
)
def test_kinds_of_values_are_told_in_the_files_own_words(data: object, said: str) -> None:
    """Lists and mappings, not what they become in here."""
    assert problems_of(data) == [said]


def test_duplicates_are_errors() -> None:
    """Replica ids, replica URLs, model names and aliases must be unique."""
    problems = problems_of({"replicas": [{"url": "http://a:80", "id": "x"}, {"url": "http://A", "id": "x"}]})
    assert [problem.split(": ")[0] for problem in problems] == ["replicas[1].id", "replicas[1].url"]
    problems = problems_of(
        {"replicas": [REPLICA], "models": [{"name": "m", "aliases": ["gpt"]}, {"name": "gpt", "aliases": ["m"]}]}
    )
    assert [problem.split(": ")[0] for problem in problems] == ["models[1].name", "models[1].aliases[0]"]


def test_no_replica_is_an_error() -> None:
    """A gateway in front of nothing doesn't start."""
    assert problems_of({}) == ["replicas: is missing"]
    assert problems_of({"replicas": []})[0].startswith("replicas: [] isn't allowed")
    assert "mapping" in problems_of([REPLICA])[0]


def test_the_default_model_must_exist_where_that_can_be_known() -> None:
    """Listed models and aliases are known; where replicas are probed for names, only they can tell."""
    listed = {"replicas": [{**REPLICA, "models": ["m1", "m2"]}], "models": [{"name": "m2", "aliases": ["gpt"]}]}
    for name in ("m1", "m2", "gpt"):
        assert parse(**listed, default_model=name).default_model == name
    (problem,) = problems_of({**listed, "default_model": "m3"})
    assert problem.startswith("default_model: 'm3' isn't allowed")
    assert "gpt, m1, m2" in problem
    assert parse(default_model="probed-later").default_model == "probed-later"


def test_the_time_without_readiness_is_part_of_the_drain() -> None:
    """It can't be longer than the whole."""
    (problem,) = problems_of({"replicas": [REPLICA], "timeouts": {"drain_s": 5.0, "unready_s": 6.0}})
    assert problem == "timeouts.unready_s: 6.0 isn't allowed; must be at most drain_s, which is 5"


def test_a_model_that_no_replica_lists_is_an_error() -> None:
    """Where every replica's models are written down; a replica that is asked for them may serve it."""
    models = [{"name": "x"}, {"name": "y"}]
    (problem,) = problems_of({"replicas": [{**REPLICA, "models": ["x"]}], "models": models})
    assert problem == "models[1].name: 'y' isn't allowed; no replica lists it; listed: x"
    parse(replicas=[{**REPLICA, "models": ["x"]}, {"url": "http://b:1"}], models=models)


def test_a_policy_that_does_not_exist_names_the_ones_that_do() -> None:
    """The policies are built while checking, so their own errors come out with their key."""
    (problem,) = problems_of({"replicas": [REPLICA], "policy": {"routing": "magic"}})
    assert problem.startswith("policy.routing: 'magic' isn't allowed; allowed: ")
    assert "least-tokens" in problem
    (problem,) = problems_of(
        {"replicas": [REPLICA], "policy": {"ordering": "aged-sjf", "options": {"aged-sjf": {"alfa": 1.0}}}}
    )
    assert problem.startswith("policy.options")


def test_a_tokenizer_folder_must_hold_a_tokenizer(tmp_path: Path) -> None:
    """A missing path is an error; a relative one is taken from the configuration's folder."""
    models = [{"name": "m", "tokenizer": "tok"}]
    (problem,) = problems_of({"replicas": [REPLICA], "models": models})
    assert problem.startswith("models[0].tokenizer: ")
    assert "tokenizer.json" in problem
    (tmp_path / "tok").mkdir()
    (tmp_path / "tok" / "tokenizer.json").write_text("{}")
    file = tmp_path / "gateway.yaml"
    file.write_text("replicas: [{url: 'http://a:1'}]\nmodels: [{name: m, tokenizer: tok}]\nlog: {access: log.jsonl}\n")
    config = load_config(file)
    assert config.models[0].tokenizer == tmp_path / "tok"
    assert config.log.access == str(tmp_path / "log.jsonl")


def test_a_repeated_key_is_an_error(tmp_path: Path) -> None:
    """YAML would keep the last one silently; here every one is named with its line, at any depth."""
    file = tmp_path / "gateway.yaml"
    file.write_text("replicas:\n  - url: http://a:1\n    url: http://b:1\nlisten: {}\nlisten: {port: 1}\n")
    with pytest.raises(ConfigError) as caught:
        load_config(file)
    assert [problem.split(":")[0] for problem in caught.value.problems] == ["url (line 3)", "listen (line 5)"]


def test_merge_keys_may_override(tmp_path: Path) -> None:
    """`<<` brings in keys that may be set again: that is what it is for."""
    file = tmp_path / "gateway.yaml"
    file.write_text(
        "replicas:\n"
        "  - &first {url: 'http://a:1', max_in_flight_tokens: 10}\n"
        "  - &second {<<: *first, url: 'http://b:1'}\n"
        "  - {<<: *second, url: 'http://c:1'}\n"
    )
    config = load_config(file)
    assert [replica.url for replica in config.replicas] == ["http://a:1", "http://b:1", "http://c:1"]
    assert {replica.max_in_flight_tokens for replica in config.replicas} == {10}


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"replicas: [", "isn't YAML"),
        (b"\xff\xfe\xff", "can't be read"),
        (b"when: 2026-99-99", "isn't YAML"),
        (b"x: !!python/object/apply:os.getcwd []", "isn't YAML"),
        (b"", "replicas: is missing"),
        (b"just text", "must be a mapping"),
        (b"? [a, b]\n: 1\n", "isn't YAML"),
        (b"x: \0", "isn't YAML: special characters are not allowed (character 4)"),
    ],
)
def test_a_file_that_is_no_configuration_says_so(tmp_path: Path, content: bytes, said: str) -> None:
    """Broken, foreign or empty files are configuration errors that name the file."""
    file = tmp_path / "gateway.yaml"
    file.write_bytes(content)
    with pytest.raises(ConfigError) as caught:
        load_config(file)
    assert said in str(caught.value)
    assert str(file) in str(caught.value)
    assert "<unicode string>" not in str(caught.value)


def test_a_missing_file_is_a_configuration_error(tmp_path: Path) -> None:
    """The path and the system's reason are in the message, in words."""
    with pytest.raises(ConfigError, match=r"none\.yaml: 1 error\n  can't be read: No such file or directory$"):
        load_config(tmp_path / "none.yaml")


def test_a_configuration_is_frozen() -> None:
    """Nothing changes under a running gateway."""
    config = parse()
    with pytest.raises(ValidationError):
        config.timing_ring = 1
