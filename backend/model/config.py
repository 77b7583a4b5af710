"""What a model is made of: one frozen description, read from a Hugging Face `config.json` or from GGUF metadata.

What the engine can't compute exactly is refused here with an error that names the key and its value, never ignored.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .families import Family, family_for


class ModelConfigError(ValueError):
    """The model needs something the engine doesn't have. The message names the key, its value and what is known."""


@dataclass(frozen=True, slots=True)
class RopeConfig:
    """Rotary embedding: base frequency `theta` and how its frequencies are stretched for long contexts.

    kind "default" leaves them, "linear" divides all of them by `factor`, "llama3" stretches the slow ones (Llama 3.1:
    wavelengths over `original_max_tokens / low_freq_factor` are divided by `factor`, those under
    `original_max_tokens / high_freq_factor` are kept, and between them it interpolates). "factors" divides each
    frequency by its own entry of `factors` (what GGUF files carry).
    """

    theta: float = 10_000.0
    kind: str = "default"
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_tokens: int = 0
    factors: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """Sizes of a decoder-only transformer. `max_model_tokens` is the longest context the positions were trained for."""

    family: Family
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    norm_eps: float
    max_model_tokens: int
    rope: RopeConfig
    ties_embeddings: bool

    def __post_init__(self) -> None:
        for name in ("vocab_size", "hidden_size", "intermediate_size", "num_layers", "num_heads", "num_kv_heads"):
            if getattr(self, name) < 1:
                raise ModelConfigError(f"{name} is {getattr(self, name)}; at least 1 is needed")
        if self.num_heads % self.num_kv_heads:
            raise ModelConfigError(
                f"{self.num_heads} attention heads can't share {self.num_kv_heads} key/value heads evenly"
            )
        if self.head_dim < 2 or self.head_dim % 2:
            raise ModelConfigError(f"head_dim is {self.head_dim}; rotary embedding needs an even one")

    @property
    def num_queries_per_kv(self) -> int:
        """Query heads that share one key/value head."""
        return self.num_heads // self.num_kv_heads


def config_from_huggingface(raw: Mapping[str, Any]) -> ModelConfig:
    """Read `config.json`. Raises ModelConfigError for an architecture or a feature that isn't supported."""
    architectures = raw.get("architectures") or [None]
    family = family_for("architectures", architectures[0])
    _refuse_unsupported(raw)
    hidden_size, num_heads = _required(raw, "hidden_size"), _required(raw, "num_attention_heads")
    config = ModelConfig(
        family=family,
        vocab_size=_required(raw, "vocab_size"),
        hidden_size=hidden_size,
        intermediate_size=_required(raw, "intermediate_size"),
        num_layers=_required(raw, "num_hidden_layers"),
        num_heads=num_heads,
        num_kv_heads=raw.get("num_key_value_heads") or num_heads,
        head_dim=raw.get("head_dim") or hidden_size // num_heads,
        norm_eps=float(raw.get("rms_norm_eps", 1e-6)),
        max_model_tokens=_required(raw, "max_position_embeddings"),
        rope=_rope_from_huggingface(raw),
        ties_embeddings=bool(raw.get("tie_word_embeddings", False)),
    )
    _refuse_sliding_window(raw, config)
    return config


def _required(raw: Mapping[str, Any], key: str) -> int:
    value = raw.get(key)
    if not isinstance(value, int) or isinstance(value, bool):
        raise ModelConfigError(f"config.json: {key} is {value!r}; a whole number is needed")
    return value


def _refuse_unsupported(raw: Mapping[str, Any]) -> None:
    """Features that change the arithmetic and that the engine doesn't compute."""
    activation = raw.get("hidden_act", "silu")
    if activation not in ("silu", "swish"):
        raise ModelConfigError(f"config.json: hidden_act is {activation!r}; known: silu")
    # Qwen2's query/key/value biases are part of its architecture and have no key of their own.
    for key in ("attention_bias", "mlp_bias"):
        if raw.get(key):
            raise ModelConfigError(f"config.json: {key} is true, which is not supported")
    for key in ("num_experts", "num_local_experts", "n_routed_experts"):
        if raw.get(key):
            raise ModelConfigError(f"config.json: {key} is {raw[key]!r}; mixtures of experts are not supported")
    if raw.get("quantization_config"):
        raise ModelConfigError("config.json: quantization_config is set; only unquantised safetensors are supported")
    if raw.get("partial_rotary_factor", 1.0) != 1.0:
        raise ModelConfigError(
            f"config.json: partial_rotary_factor is {raw['partial_rotary_factor']!r}; known: 1.0 (the whole head)"
        )


def _refuse_sliding_window(raw: Mapping[str, Any], config: ModelConfig) -> None:
    window = raw.get("sliding_window")
    if window is None or window >= config.max_model_tokens:
        return
    layer_types = raw.get("layer_types")
    if layer_types is not None:
        in_use = any(kind != "full_attention" for kind in layer_types)
    elif config.family.has_sliding_switch:
        in_use = bool(raw.get("use_sliding_window")) and raw.get("max_window_layers", 0) < config.num_layers
    else:
        in_use = True
    if in_use:
        raise ModelConfigError(
            f"config.json: sliding_window is {window}, less than the context of {config.max_model_tokens} tokens; "
            "sliding-window attention is not supported"
        )


def _rope_from_huggingface(raw: Mapping[str, Any]) -> RopeConfig:
    # transformers 5 writes rope_parameters, older ones rope_theta and rope_scaling side by side.
    parameters = dict(raw.get("rope_scaling") or {}) | dict(raw.get("rope_parameters") or {})
    theta = float(parameters.get("rope_theta") or raw.get("rope_theta") or 10_000.0)
    kind = parameters.get("rope_type") or parameters.get("type") or "default"
    if kind == "default":
        return RopeConfig(theta)
    if kind == "linear":
        return RopeConfig(theta, "linear", factor=float(parameters["factor"]))
    if kind == "llama3":
        return RopeConfig(
            theta,
            "llama3",
            factor=float(parameters["factor"]),
            low_freq_factor=float(parameters["low_freq_factor"]),
            high_freq_factor=float(parameters["high_freq_factor"]),
            original_max_tokens=int(parameters["original_max_position_embeddings"]),
        )
    raise ModelConfigError(f"config.json: rope type is {kind!r}; known: default, linear, llama3")


def config_from_gguf(fields: Mapping[str, Any], *, vocab_size: int, ties_embeddings: bool) -> ModelConfig:
    """Read GGUF metadata (key → value). Raises ModelConfigError as above.

    `vocab_size` is the number of rows of the embedding table. Frequency factors, a tensor in these files, are set by
    the reader of the file.
    """
    architecture = fields.get("general.architecture")
    family = family_for("general.architecture", architecture)

    def required(key: str) -> Any:
        value = fields.get(f"{architecture}.{key}")
        if value is None:
            raise ModelConfigError(f"GGUF metadata lacks {architecture}.{key}")
        return value

    def optional(key: str, default: Any) -> Any:
        return fields.get(f"{architecture}.{key}", default)

    if optional("expert_count", 0):
        raise ModelConfigError(f"{architecture}.expert_count is set; mixtures of experts are not supported")
    hidden_size, num_heads = int(required("embedding_length")), int(required("attention.head_count"))
    head_dim = int(optional("attention.key_length", hidden_size // num_heads))
    if int(optional("rope.dimension_count", head_dim)) != head_dim:
        raise ModelConfigError(
            f"{architecture}.rope.dimension_count is {required('rope.dimension_count')}; known: {head_dim}"
        )
    max_model_tokens = int(required("context_length"))
    window = optional("attention.sliding_window", None)
    if window is not None and window < max_model_tokens:
        raise ModelConfigError(f"{architecture}.attention.sliding_window is {window}, which is not supported")
    kind = optional("rope.scaling.type", "none")
    if kind not in ("none", "linear"):
        raise ModelConfigError(f"{architecture}.rope.scaling.type is {kind!r}; known: none, linear")
    return ModelConfig(
        family=family,
        vocab_size=vocab_size,
        hidden_size=hidden_size,
        intermediate_size=int(required("feed_forward_length")),
        num_layers=int(required("block_count")),
        num_heads=num_heads,
        num_kv_heads=int(optional("attention.head_count_kv", num_heads)),
        head_dim=head_dim,
        norm_eps=float(required("attention.layer_norm_rms_epsilon")),
        max_model_tokens=max_model_tokens,
        rope=RopeConfig(
            theta=float(optional("rope.freq_base", 10_000.0)),
            kind="default" if kind == "none" else kind,
            factor=float(optional("rope.scaling.factor", 1.0)),
        ),
        ties_embeddings=ties_embeddings,
    )
