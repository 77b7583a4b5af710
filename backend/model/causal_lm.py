"""The decoder: embeddings, layers of attention and MLP, final norm and vocabulary projection."""

from collections.abc import Mapping

import torch
from torch.nn import functional

from .attention import AttentionPlan, attend
from .cache import PagedCache
from .config import ModelConfig
from .layers import GatedMLP, Linear, RMSNorm
from .rotary import interleave_rows, inverse_frequencies, rotate_, rotations

EMBEDDING = "model.embed_tokens.weight"
FINAL_NORM = "model.norm.weight"
OUTPUT = "lm_head.weight"


def expected_tensors(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Name → shape of every tensor of a checkpoint, in Hugging Face names and layout."""
    hidden, head_dim = config.hidden_size, config.head_dim
    queries, kv = config.num_heads * head_dim, config.num_kv_heads * head_dim
    shapes: dict[str, tuple[int, ...]] = {EMBEDDING: (config.vocab_size, hidden), FINAL_NORM: (hidden,)}
    if not config.ties_embeddings:
        shapes[OUTPUT] = (config.vocab_size, hidden)
    for layer in range(config.num_layers):
        prefix = f"model.layers.{layer}."
        shapes |= {
            f"{prefix}input_layernorm.weight": (hidden,),
            f"{prefix}self_attn.q_proj.weight": (queries, hidden),
            f"{prefix}self_attn.k_proj.weight": (kv, hidden),
            f"{prefix}self_attn.v_proj.weight": (kv, hidden),
            f"{prefix}self_attn.o_proj.weight": (hidden, queries),
            f"{prefix}post_attention_layernorm.weight": (hidden,),
            f"{prefix}mlp.gate_proj.weight": (config.intermediate_size, hidden),
            f"{prefix}mlp.up_proj.weight": (config.intermediate_size, hidden),
            f"{prefix}mlp.down_proj.weight": (hidden, config.intermediate_size),
        }
        if config.family.has_qkv_bias:
            shapes |= {f"{prefix}self_attn.{p}_proj.bias": (n,) for p, n in (("q", queries), ("k", kv), ("v", kv))}
        if config.family.has_qk_norm:
            shapes |= {f"{prefix}self_attn.{p}_norm.weight": (head_dim,) for p in "qk"}
    return shapes


class DecoderLayer:
    """Pre-norm attention and MLP, each added to the residual stream."""

    def __init__(self, config: ModelConfig, tensors: Mapping[str, torch.Tensor], layer: int) -> None:
        prefix = f"model.layers.{layer}."
        self.layer = layer
        self.head_dim = config.head_dim
        self.num_heads = config.num_heads
        self.num_rotated_heads = config.num_heads + config.num_kv_heads
        self.input_norm = RMSNorm(tensors[f"{prefix}input_layernorm.weight"], config.norm_eps)
        self.post_norm = RMSNorm(tensors[f"{prefix}post_attention_layernorm.weight"], config.norm_eps)
        self.qkv = Linear(
            self._fuse(config, tensors, f"{prefix}self_attn.", "weight"),
            self._fuse(config, tensors, f"{prefix}self_attn.", "bias") if config.family.has_qkv_bias else None,
        )
        self.query_norm: RMSNorm | None = None
        self.key_norm: RMSNorm | None = None
        if config.family.has_qk_norm:
            query, key = (interleave_rows(tensors[f"{prefix}self_attn.{p}_norm.weight"], 1) for p in "qk")
            self.query_norm, self.key_norm = RMSNorm(query, config.norm_eps), RMSNorm(key, config.norm_eps)
        self.output = Linear(tensors[f"{prefix}self_attn.o_proj.weight"])
        self.mlp = GatedMLP(*(tensors[f"{prefix}mlp.{name}_proj.weight"] for name in ("gate", "up", "down")))

    @staticmethod
    def _fuse(config: ModelConfig, tensors: Mapping[str, torch.Tensor], prefix: str, kind: str) -> torch.Tensor:
        query = interleave_rows(tensors[f"{prefix}q_proj.{kind}"], config.num_heads)
        key = interleave_rows(tensors[f"{prefix}k_proj.{kind}"], config.num_kv_heads)
        return torch.cat((query, key, tensors[f"{prefix}v_proj.{kind}"]))

    def __call__(
        self, hidden: torch.Tensor, rotation: torch.Tensor, cache: PagedCache, plan: AttentionPlan
    ) -> torch.Tensor:
        heads = self.qkv(self.input_norm(hidden)).view(len(hidden), -1, self.head_dim)
        queries, keys = heads[:, : self.num_heads], heads[:, self.num_heads : self.num_rotated_heads]
        if self.query_norm is not None and self.key_norm is not None:
            queries.copy_(self.query_norm(queries))
            keys.copy_(self.key_norm(keys))
        rotate_(heads[:, : self.num_rotated_heads], rotation)
        attended = attend(queries, heads[:, self.num_heads :], cache, self.layer, plan)
        hidden = hidden + self.output(attended.reshape(len(hidden), -1))
        return hidden.add_(self.mlp(self.post_norm(hidden)))


class CausalLM:
    """A whole model. `tensors` are in Hugging Face names and layout, all of one dtype; see `expected_tensors`."""

    def __init__(self, config: ModelConfig, tensors: Mapping[str, torch.Tensor]) -> None:
        self.config = config
        self.embedding = tensors[EMBEDDING]
        self.dtype = self.embedding.dtype
        self.frequencies = inverse_frequencies(config.rope, config.head_dim)
        self.layers = [DecoderLayer(config, tensors, layer) for layer in range(config.num_layers)]
        self.norm = RMSNorm(tensors[FINAL_NORM], config.norm_eps)
        self.output = Linear(self.embedding if config.ties_embeddings else tensors[OUTPUT])

    def forward(
        self, token_ids: torch.Tensor, positions: torch.Tensor, cache: PagedCache, plan: AttentionPlan
    ) -> torch.Tensor:
        """Hidden states after the last layer, before the final norm: [n, hidden] for token_ids and positions [n]."""
        rotation = rotations(self.frequencies, positions)
        hidden = functional.embedding(token_ids, self.embedding)
        for layer in self.layers:
            hidden = layer(hidden, rotation, cache, plan)
        return hidden

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """float32 [n, vocab] for hidden states [n, hidden] as `forward` returns them."""
        return self.output(self.norm(hidden)).float()
