"""The exported folder is the same model."""

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM
from typer.testing import CliRunner

from backend.cli import app
from backend.export import export_huggingface
from backend.model.checkpoint import CheckpointError
from backend.runner import ModelRunner, RunnerRow
from backend.weights import load_model


@pytest.mark.model
@pytest.mark.slow
def test_an_exported_model_computes_the_same(tmp_path: Path) -> None:
    """Loaded back from the folder, by this engine and by transformers, the embedded model gives the same logits."""
    export_huggingface("embedded", tmp_path / "model", torch.float32)
    original = load_model("embedded", dtype=torch.float32, progress=lambda line: None)
    loaded = load_model(tmp_path / "model", dtype=torch.float32, progress=lambda line: None)
    token_ids = original.tokenizer.encode("The capital of France is")
    assert loaded.tokenizer.encode("The capital of France is") == token_ids
    assert loaded.tokenizer.eos_token_ids == original.tokenizer.eos_token_ids
    row = RunnerRow(token_ids, 0, [0], needs_logits=True)
    logits = [ModelRunner(m.model, num_blocks=1, block_size=16).forward([row]) for m in (original, loaded)]
    assert torch.equal(logits[0], logits[1])
    reference = AutoModelForCausalLM.from_pretrained(tmp_path / "model", dtype=torch.float32)
    with torch.inference_mode():
        expected = reference(torch.tensor([token_ids])).logits[0, -1]
    assert torch.allclose(logits[0][0], expected, atol=1e-3)


def test_a_source_that_is_no_gguf_file_is_refused(tmp_path: Path) -> None:
    """The error names the source and what would do; nothing is written."""
    with pytest.raises(CheckpointError, match=r"is not a GGUF file; known: a \.gguf file"):
        export_huggingface(str(tmp_path), tmp_path / "out", torch.float32)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [(["--dtype", "int8"], "known: bfloat16, float32"), (["--model", "nowhere.gguf"], "is not a GGUF file")],
)
def test_the_command_says_what_is_wrong(tmp_path: Path, arguments: list[str], message: str) -> None:
    """Usage errors exit with 2 and name the value and the choices."""
    result = CliRunner().invoke(app, ["export", str(tmp_path / "out"), *arguments])
    assert result.exit_code == 2
    assert message in " ".join(result.output.split())


@pytest.mark.model
def test_a_folder_that_is_a_file_is_said_so(tmp_path: Path) -> None:
    """In words."""
    (tmp_path / "out").touch()
    result = CliRunner().invoke(app, ["export", str(tmp_path / "out")])
    assert (result.exit_code, "Errno" in result.output) == (2, False)
    assert result.output.endswith("out: it is a file, not a folder\n")
