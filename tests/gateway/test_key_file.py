"""The key file: what is in it, what is refused, and how it is written."""

import json
import multiprocessing
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gateway.config_errors import ConfigError
from gateway.key_file import (
    KeyEntry,
    KeyFile,
    change_key_file,
    load_key_file,
    new_key_file,
    parse_key_file,
)
from gateway.keys import new_secret
from policies.limits import LimitSpec
from policies.types import Lane

SALT = "5a" * 32


def content(*keys: dict[str, Any], **more: Any) -> bytes:
    entries = [
        {"id": f"k{index}", "tenant": "acme", "hash": f"{index:016x}" * 4, **key} for index, key in enumerate(keys)
    ]
    return json.dumps({"salt": SALT, "keys": entries, **more}).encode()


def added(secret: str, **fields: Any) -> Callable[[KeyFile], KeyFile]:
    def change(before: KeyFile) -> KeyFile:
        entry = KeyEntry(**{"id": f"k{len(before.keys)}", "tenant": "acme", "hash": before.digest_of(secret), **fields})
        return before.model_copy(update={"keys": (*before.keys, entry)})

    return change


def test_a_whole_entry() -> None:
    """Every member becomes what the gateway uses; what isn't given isn't limited."""
    full = {
        "created": "2026-01-31",
        "note": "laptop",
        "models": ["m1"],
        "lanes": ["standard", "background"],
        "priority_ceiling": 0,
        "requests_per_min": 60,
        "tokens_per_min": 10_000,
        "max_in_flight_requests": 4,
        "max_in_flight_tokens": 50_000,
        "diagnostics": True,
    }
    first, second = parse_key_file(content(full, {}), source="test").table().keys
    assert (first.key_id, first.tenant, first.models) == ("k0", "acme", frozenset({"m1"}))
    assert first.lanes == frozenset({Lane.STANDARD, Lane.BACKGROUND})
    assert (first.priority_ceiling, first.limits) == (0, LimitSpec(60, 10_000, 4, 50_000))
    assert (first.has_diagnostics, first.sees_cached_tokens, first.is_admin) == (True, True, False)
    assert (second.models, second.lanes, second.priority_ceiling, second.limits) == (None, None, None, LimitSpec())
    assert (second.has_diagnostics, second.sees_cached_tokens, second.is_admin) == (False, False, False)


def test_cached_tokens_are_for_a_tenant_alone() -> None:
    """They tell one tenant what another sent; an admin may know."""
    keys: list[dict[str, Any]] = [
        {"diagnostics": True},
        {"diagnostics": True, "tenant": "other"},
        {"admin": True, "tenant": "ops"},
    ]
    table = parse_key_file(content(*keys), source="test").table()
    assert [key.sees_cached_tokens for key in table.keys] == [False, False, True]
    assert [key.has_diagnostics for key in table.keys] == [True, True, True]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (b"", "isn't JSON: Expecting value (line 1)"),
        (b'{"salt":\n oops}', "isn't JSON: Expecting value (line 2)"),
        (b"\xff\xfe", "isn't JSON"),
        (b"[" * 100_000, "isn't JSON"),
        (b"[]", "must be an object with the members: salt, keys"),
        (b"{}", "salt: is missing"),
        (b'{"salt": "ab"}', "salt: the value isn't allowed; must be 64 hexadecimal digits: random"),
        (b'{"salt": "x", "salt": "y"}', "salt: is given twice: a member must be unique"),
        (content(user="x"), "user: unknown key; allowed: salt, keys"),
        (content({"models": "m1"}), "keys[0].models: 'm1' isn't allowed; must be a list"),
        (content({"hash": "tg-SECRET"}), "must be 64 hexadecimal digits: the hash of a key, never the key"),
        (content({"key": "tg-SECRET"}), "keys[0].key: unknown key"),
        (content({"modles": []}), "keys[0].modles: unknown key (did you mean models?)"),
        (content({"id": "a b"}), "keys[0].id: 'a b' isn't allowed"),
        (content({"tenant": ""}), "keys[0].tenant: '' isn't allowed"),
        (content({"lanes": []}), "keys[0].lanes: [] isn't allowed; must have at least one lane"),
        (content({"lanes": ["fast"]}), "must be one of: interactive, standard, long, background"),
        (content({"lanes": ["overlong"]}), "must be one of: interactive, standard, long, background"),
        (content({"requests_per_min": 0}), "keys[0].requests_per_min: 0 isn't allowed"),
        (content({"requests_per_min": True}), "keys[0].requests_per_min: True isn't allowed"),
        (content({"tokens_per_min": 1.5}), "keys[0].tokens_per_min: 1.5 isn't allowed"),
        (content({"max_in_flight_tokens": "9"}), "keys[0].max_in_flight_tokens: '9' isn't allowed"),
        (content({"admin": 1}), "keys[0].admin: 1 isn't allowed"),
        (content({"note": "two\nlines"}), "keys[0].note: 'two\\nlines' isn't allowed"),
        (content({"created": "soon"}), "keys[0].created: 'soon' isn't allowed"),
        (content({}, {"id": "k0"}), "keys[1].id: 'k0' isn't allowed; is used before: it must be unique"),
        (content({}, {"hash": "0" * 16 + "1" * 48}), "keys[1].hash: the value isn't allowed; is used before"),
    ],
)
def test_what_is_wrong_is_named(text: bytes, problem: str) -> None:
    """With its place, its value unless that is secret, and what is allowed."""
    with pytest.raises(ConfigError) as caught:
        parse_key_file(text, source="keys.json")
    assert problem in str(caught.value)
    assert "SECRET" not in str(caught.value)
    assert caught.value.__cause__ is None


def test_all_problems_are_told_at_once() -> None:
    """One for each wrong value."""
    with pytest.raises(ConfigError) as caught:
        parse_key_file(content({"id": "a b", "admin": 1}, {"lanes": ["x"]}), source="keys.json")
    assert len(caught.value.problems) == 3


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    """The error says how to make one; a folder or one without rights can't be read."""
    with pytest.raises(ConfigError, match="tailgate keys create --file"):
        load_key_file(tmp_path / "keys.json")
    with pytest.raises(ConfigError, match="can't be read: Is a directory"):
        load_key_file(tmp_path)


def test_what_is_written_is_what_is_read(tmp_path: Path) -> None:
    """New files are their owner's alone, a key a line, and hold hashes only."""
    path, secret = tmp_path / "keys.json", new_secret()
    change_key_file(path, added(secret, models=("m1",), lanes=(Lane.LONG,), requests_per_min=5), may_create=True)
    change_key_file(path, added("other", note="“laptop” \\"))
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    text = path.read_text()
    assert text.count("\n") == 4
    assert secret not in text
    assert secret.removeprefix("tg-") not in text
    file = load_key_file(path)
    found = file.table().find(secret.encode())
    assert found is not None
    assert (found.key_id, found.models, found.lanes) == ("k0", frozenset({"m1"}), frozenset({Lane.LONG}))
    assert file.keys[1].note == "“laptop” \\"
    assert [name for name in os.listdir(tmp_path) if name != "keys.json"] == []
    assert file.salt not in repr(file)
    assert file.keys[0].hash not in repr(file)


def test_the_mode_stays_and_a_link_stays_one(tmp_path: Path) -> None:
    """A file shared with a group stays shared, and a link goes on pointing to the file."""
    path, link = tmp_path / "keys.json", tmp_path / "link.json"
    change_key_file(path, lambda before: before, may_create=True)
    path.chmod(0o640)
    link.symlink_to(path)
    change_key_file(link, added("x"))
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    assert link.is_symlink()
    assert len(load_key_file(path).keys) == 1


def test_nothing_bad_is_written(tmp_path: Path) -> None:
    """A change that would be refused, or one of a bad file, leaves the file as it was."""
    path = tmp_path / "keys.json"
    with pytest.raises(ConfigError, match="doesn't exist"):
        change_key_file(path, added("x"))
    change_key_file(path, added("x"), may_create=True)
    before = path.read_bytes()
    with pytest.raises(ConfigError, match="is used before"):
        change_key_file(path, added("x", id="k9"))
    assert path.read_bytes() == before
    path.write_bytes(b"{")
    with pytest.raises(ConfigError, match="isn't JSON"):
        change_key_file(path, added("x"), may_create=True)
    assert path.read_bytes() == b"{"
    with pytest.raises(ConfigError, match="can't be written: No such file"):
        change_key_file(tmp_path / "nowhere" / "keys.json", added("x"), may_create=True)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_the_owner_stays(tmp_path: Path) -> None:
    """An operator who is root doesn't take the file from the gateway's own user."""
    path = tmp_path / "keys.json"
    change_key_file(path, added("x"), may_create=True)
    os.chown(path, 12345, 23456)
    change_key_file(path, added("y"))
    assert (path.stat().st_uid, path.stat().st_gid) == (12345, 23456)


def test_a_disk_that_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file stays as it was, and nothing is left lying about."""
    path = tmp_path / "keys.json"
    change_key_file(path, added("x"), may_create=True)
    before = path.read_bytes()

    def fails(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", fails)
    with pytest.raises(ConfigError, match="can't be written: No space left"):
        change_key_file(path, added("y"))
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ["keys.json"]


def test_a_file_out_of_all_proportion(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Refused before it is parsed."""
    monkeypatch.setattr("gateway.key_file.MAX_FILE_BYTES", 10)
    path = tmp_path / "keys.json"
    path.write_bytes(content())
    with pytest.raises(ConfigError, match="larger than 10 bytes"):
        load_key_file(path)


def _add_ten(path: str, name: str) -> None:
    for index in range(10):
        change_key_file(Path(path), added(new_secret(), id=f"{name}{index}"), may_create=True)


def test_writers_at_the_same_time_lose_nothing(tmp_path: Path) -> None:
    """Several processes, the file not there at first: every key is in it afterwards."""
    path = tmp_path / "keys.json"
    context = multiprocessing.get_context("spawn")
    writers = [context.Process(target=_add_ten, args=(str(path), name)) for name in "abc"]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(60)
    assert [writer.exitcode for writer in writers] == [0, 0, 0]
    assert {entry.id for entry in load_key_file(path).keys} == {
        f"{name}{index}" for name in "abc" for index in range(10)
    }


def test_new_files_have_salts_of_their_own() -> None:
    """So that one file's hashes say nothing of another's."""
    assert new_key_file().salt != new_key_file().salt
