"""Configurations are read in full, or refused with the key that stands in the way."""

from typing import Any

import pytest

from backend.model.config import ModelConfigError, RopeConfig, config_from_gguf, config_from_huggingface
from backend.model.families import UnknownFamilyError

RAW: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 100,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-5,
}
GGUF: dict[str, Any] = {
    "general.architecture": "qwen3",
    "qwen3.context_length": 2048,
    "qwen3.embedding_length": 64,
    "qwen3.feed_forward_length": 128,
    "qwen3.block_count": 2,
    "qwen3.attention.head_count": 8,
    "qwen3.attention.layer_norm_rms_epsilon": 1e-6,
}


def test_reads_a_huggingface_config() -> None:
    """Sizes come from their keys; the head size is derived where it isn't given."""
    config = config_from_huggingface(RAW)
    assert (config.num_layers, config.num_kv_heads, config.head_dim, config.num_queries_per_kv) == (2, 2, 8, 4)
    assert not config.ties_embeddings
    assert config.rope == RopeConfig(10_000.0)
    assert config_from_huggingface(RAW | {"head_dim": 32}).head_dim == 32


@pytest.mark.parametrize(
    "keys",
    [
        {"rope_theta": 5e5, "rope_scaling": {"type": "linear", "factor": 2.0}},
        {"rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 5e5}},
    ],
)
def test_reads_rope_as_old_and_new_transformers_write_it(keys: dict[str, Any]) -> None:
    """Base frequency and scaling, in either spelling, mean the same."""
    assert config_from_huggingface(RAW | keys).rope == RopeConfig(5e5, "linear", factor=2.0)


@pytest.mark.parametrize(
    "keys",
    [
        {"sliding_window": None},
        {"sliding_window": 4096},  # longer than any context
        {"sliding_window": 1024, "architectures": ["Qwen2ForCausalLM"], "use_sliding_window": False},
        {
            "sliding_window": 1024,
            "architectures": ["Qwen2ForCausalLM"],
            "use_sliding_window": True,
            "max_window_layers": 2,
        },
        {"sliding_window": 1024, "layer_types": ["full_attention", "full_attention"]},
    ],
)
def test_a_sliding_window_that_never_slides_is_fine(keys: dict[str, Any]) -> None:
    """Windows that are off, or at least as long as the context, don't stop a model from loading."""
    assert config_from_huggingface(RAW | keys).max_model_tokens == 2048


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"sliding_window": 1024, "architectures": ["MistralForCausalLM"]}, "sliding_window is 1024"),
        ({"sliding_window": 1024, "layer_types": ["full_attention", "sliding_attention"]}, "sliding_window is 1024"),
        (
            {"sliding_window": 1024, "architectures": ["Qwen2ForCausalLM"], "use_sliding_window": True},
            "sliding_window is 1024",
        ),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, "rope type is 'yarn'; known: default, linear, llama3"),
        ({"hidden_act": "gelu"}, "hidden_act is 'gelu'; known: silu"),
        ({"attention_bias": True}, "attention_bias"),
        ({"mlp_bias": True}, "mlp_bias"),
        ({"num_local_experts": 8}, "num_local_experts is 8; mixtures of experts"),
        ({"quantization_config": {"bits": 4}}, "quantization_config"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor is 0.5"),
        ({"num_hidden_layers": "2"}, "num_hidden_layers is '2'; a whole number"),
        ({"num_hidden_layers": 0}, "num_layers is 0"),
        ({"num_key_value_heads": 3}, "8 attention heads can't share 3"),
        ({"head_dim": 7}, "head_dim is 7"),
    ],
)
def test_what_cannot_be_computed_is_refused(keys: dict[str, Any], message: str) -> None:
    """The error names the key and its value."""
    with pytest.raises(ModelConfigError, match=message):
        config_from_huggingface(RAW | keys)


@pytest.mark.parametrize("architectures", [["GPT2LMHeadModel"], [], None])
def test_unknown_architectures_list_the_known(architectures: list[str] | None) -> None:
    """The error lists every family, in Hugging Face's and in GGUF's names."""
    with pytest.raises(UnknownFamilyError, match=r"known: LlamaForCausalLM \(llama in GGUF\), Mistral.*Qwen2.*Qwen3"):
        config_from_huggingface(RAW | {"architectures": architectures})
    with pytest.raises(UnknownFamilyError, match="'mamba'"):
        config_from_gguf({"general.architecture": "mamba"}, vocab_size=10, ties_embeddings=True)


def test_reads_gguf_metadata() -> None:
    """Optional keys have GGUF's defaults: as many key/value heads as heads, theta 10,000, no scaling."""
    config = config_from_gguf(GGUF, vocab_size=100, ties_embeddings=True)
    assert (config.family.architecture, config.num_kv_heads, config.head_dim) == ("Qwen3ForCausalLM", 8, 8)
    assert config.rope == RopeConfig(10_000.0)
    scaled = GGUF | {
        "qwen3.rope.scaling.type": "linear",
        "qwen3.rope.scaling.factor": 4.0,
        "qwen3.attention.key_length": 16,
    }
    config = config_from_gguf(scaled, vocab_size=100, ties_embeddings=True)
    assert (config.head_dim, config.rope) == (16, RopeConfig(10_000.0, "linear", factor=4.0))


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"qwen3.context_length": None}, "lacks qwen3.context_length"),
        ({"qwen3.expert_count": 8}, "expert_count"),
        ({"qwen3.rope.dimension_count": 4}, "dimension_count is 4; known: 8"),
        ({"qwen3.rope.scaling.type": "yarn"}, "'yarn'; known: none, linear"),
        ({"qwen3.attention.sliding_window": 512}, "sliding_window is 512"),
    ],
)
def test_gguf_features_that_cannot_be_computed_are_refused(keys: dict[str, Any], message: str) -> None:
    """The error names the key."""
    with pytest.raises(ModelConfigError, match=message):
        config_from_gguf(GGUF | keys, vocab_size=100, ties_embeddings=True)
