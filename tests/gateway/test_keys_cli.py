"""`tailgate keys`: a key is shown once and stored nowhere, and what is wrong is named."""

from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from gateway.key_file import load_key_file
from gateway.keys import new_secret
from gateway.keys_cli import app
from policies.limits import LimitSpec
from policies.types import Lane


def run(*arguments: str, given: str | None = None) -> Result:
    return CliRunner().invoke(app, list(arguments), input=given)


@pytest.fixture
def file(tmp_path: Path) -> str:
    return str(tmp_path / "keys.json")


def test_a_key_is_made_shown_once_and_stored_nowhere(file: str) -> None:
    """The key alone on stdout; in the file and in the list there is nothing of it."""
    made = run("create", "--file", file, "--tenant", "acme", "--note", "laptop")
    assert made.exit_code == 0
    secret = made.stdout.strip()
    assert secret.startswith("tg-")
    assert secret not in made.stderr
    found = load_key_file(Path(file)).table().find(secret.encode())
    assert found is not None
    assert (found.tenant, found.limits, found.models, found.is_admin) == ("acme", LimitSpec(), None, False)
    assert found.key_id is not None
    assert found.key_id in made.stderr
    listed = run("list", "--file", file)
    assert all(text in listed.stdout for text in (found.key_id, "acme", "laptop", "models all", "none"))
    everything = Path(file).read_text() + listed.stdout + listed.stderr
    assert not any(secret[start : start + 8] in everything for start in range(3, len(secret) - 8))
    assert found.digest.hex() not in listed.stdout


def test_every_right_and_limit(file: str) -> None:
    """As given, and as listed."""
    options = (
        "--model m1 --model m2 --lane standard --lane background --priority-ceiling -1 --requests-per-min 5"
        " --tokens-per-min 600 --max-in-flight-requests 2 --max-in-flight-tokens 4000 --diagnostics"
    )
    assert run("create", "--file", file, "--tenant", "acme", *options.split()).exit_code == 0
    assert run("create", "--file", file, "--tenant", "ops", "--admin").exit_code == 0
    first, second = load_key_file(Path(file)).table().keys
    assert (first.models, first.lanes) == (frozenset({"m1", "m2"}), frozenset({Lane.STANDARD, Lane.BACKGROUND}))
    assert (first.priority_ceiling, first.limits) == (-1, LimitSpec(5, 600, 2, 4000))
    assert (first.has_diagnostics, first.is_admin, second.is_admin) == (True, False, True)
    listed = run("list", "--file", file).stdout
    assert len(listed.splitlines()) == 3
    for text in (
        "diagnostics; models m1, m2; lanes standard, background; priority up to -1",
        "5 requests/min; 600 tokens/min; 2 requests at once; 4000 tokens in flight",
        "admin; models all",
    ):
        assert text in listed


def test_a_key_from_elsewhere(file: str) -> None:
    """It may be brought along, unless it might be guessed."""
    secret = new_secret()
    brought = run("create", "--file", file, "--tenant", "acme", "--from-stdin", given=secret + "\n")
    assert brought.exit_code == 0
    assert secret not in brought.output
    assert load_key_file(Path(file)).table().find(secret.encode()) is not None
    for weak in ("sk-1", "x" * 31, "x" * 40 + " y", "ü" * 40):
        refused = run("create", "--file", file, "--tenant", "acme", "--from-stdin", given=weak + "\n")
        assert refused.exit_code == 1
        assert "at least 32 printable ASCII characters" in refused.stderr
    again = run("create", "--file", file, "--tenant", "acme", "--from-stdin", given=secret + "\n")
    assert again.exit_code == 1
    assert "is used before" in again.stderr
    assert len(load_key_file(Path(file)).keys) == 1


def test_a_revoked_key_is_gone(file: str) -> None:
    """Others stay; one that isn't there is an error that names those that are."""
    secrets = [run("create", "--file", file, "--tenant", "acme").stdout.strip() for _ in range(2)]
    ids = [entry.id for entry in load_key_file(Path(file)).keys]
    assert run("revoke", ids[0], "--file", file).stdout == f"{ids[0]} is revoked\n"
    table = load_key_file(Path(file)).table()
    assert [table.find(secret.encode()) is not None for secret in secrets] == [False, True]
    again = run("revoke", ids[0], "--file", file)
    assert again.exit_code == 1
    assert f"has no key {ids[0]}; known: {ids[1]}" in again.stderr


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["create", "--tenant", "a b"], "tenant: 'a b' isn't allowed"),
        (["create", "--tenant", "a", "--lane", "fast"], "must be one of: interactive, standard, long, background"),
        (["create", "--tenant", "a", "--requests-per-min", "0"], "requests_per_min: 0 isn't allowed"),
        (["list"], "doesn't exist; make it with: tailgate keys create"),
        (["revoke", "k1"], "doesn't exist"),
    ],
)
def test_what_is_wrong_is_named(file: str, arguments: list[str], problem: str) -> None:
    """Nothing is written then."""
    result = run(*arguments, "--file", file)
    assert result.exit_code == 1
    assert problem in result.stderr
    assert not Path(file).exists()


def test_the_help_teaches() -> None:
    """From a first key to revoking it."""
    text = run("--help").stdout
    assert "tailgate keys create --tenant acme" in text
    assert "tailgate keys revoke" in text
    assert all(command in text for command in ("create", "list", "revoke"))
    assert "--requests-per-min" in run("create", "--help").stdout
