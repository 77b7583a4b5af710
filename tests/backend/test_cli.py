"""The command line: what it refuses before it serves."""

import socket
from importlib.metadata import version
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from backend.cli import app

pytestmark = pytest.mark.model


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["serve", "--port", "0", *arguments], env={"COLUMNS": "400", "TERM": "dumb"})


def test_help_explains_every_option() -> None:
    """The text names the options and what they mean."""
    result = run("--help")
    assert result.exit_code == 0
    for option in (
        "--max-num-batched-tokens",
        "--kv-cache-bytes",
        "--policy",
        "--export-tokenizer",
        "--no-prefix-cach",
    ):
        assert option in result.output
    assert "curl" in result.output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--max-model-len", "4096", "--num-blocks", "10"], "KV cache holds 160"),
        (["--max-model-len", "99999"], "trained for 8192"),
        (["--max-num-batched-tokens", "8", "--max-num-seqs", "9"], "at least the second"),
        (["--policy", "random"], "policy: 'random' isn't allowed; allowed: aged-sjf, boost, fcfs, priority"),
        (["--composer", "random"], "composer: 'random' isn't allowed; allowed: chunked, prefill-first, sj-mlfq"),
        (["--composer", "sj-mlfq", "--option", "sj-mlfq.num_levels=0"], "num_levels: 0 isn't allowed; must be"),
        (["--option", "first_quantum_s=1"], "must be NAME.OPTION=VALUE"),
        (["--num-blocks", "10", "--kv-cache-bytes", "1000000"], "give one of them"),
        (["--kv-cache-bytes", "10"], "one block of 16 tokens takes"),
        (["--dtype", "int8"], "known: bfloat16, float32"),
        (["--model", "no/such/file.gguf"], "can't load no/such/file.gguf"),
        (["--num-blocks", "0"], "greater than or equal to 1"),
    ],
)
def test_impossible_settings_are_refused(arguments: list[str], message: str) -> None:
    """Exit status 2, and a message that says what would work."""
    result = run(*arguments)
    assert result.exit_code == 2
    assert message in " ".join(result.output.replace("│", " ").split()), result.output
    assert "Errno" not in result.output


def test_a_tokenizer_that_cannot_be_written_ends_the_start(tmp_path: Path) -> None:
    """With the path and the reason, not a traceback."""
    (tmp_path / "file").touch()
    result = run("--export-tokenizer", str(tmp_path / "file"))
    assert result.exit_code == 2
    assert result.output.splitlines()[-1].endswith("file: it is a file, not a folder")


def test_it_knows_its_version() -> None:
    """The package's."""
    result = CliRunner().invoke(app, ["--version"])
    assert (result.exit_code, result.output) == (0, f"tailgate-backend {version('tailgate')}\n")


def test_a_port_in_use_is_said_so() -> None:
    """No traceback: the address and the reason."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        sock.listen()
        port = sock.getsockname()[1]
        result = CliRunner().invoke(app, ["serve", "--port", str(port)])
    assert result.exit_code == 2
    assert f"can't listen on 127.0.0.1:{port}: address already in use\n" in result.output
