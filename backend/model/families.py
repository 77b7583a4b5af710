"""The known model families: how their checkpoints differ, in one table.

All of them are the same decoder (RMSNorm, rotary grouped-query attention, gated SiLU MLP) up to the flags below.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Family:
    """One architecture: its Hugging Face class and its name in GGUF files (None: none of its own)."""

    architecture: str
    gguf: str | None
    has_qkv_bias: bool = False
    has_qk_norm: bool = False
    has_sliding_switch: bool = False  # `sliding_window` counts only with `use_sliding_window`
    gguf_permutes_qk: bool = False  # llama.cpp stores query and key rows as interleaved pairs, not as two halves


FAMILIES = (
    Family("LlamaForCausalLM", "llama", gguf_permutes_qk=True),
    Family("MistralForCausalLM", None),
    Family("Qwen2ForCausalLM", "qwen2", has_qkv_bias=True, has_sliding_switch=True),
    Family("Qwen3ForCausalLM", "qwen3", has_qk_norm=True, has_sliding_switch=True),
)


class UnknownFamilyError(ValueError):
    """The architecture isn't one of `FAMILIES`; the message lists those."""


def family_for(key: str, name: str | None) -> Family:
    """The family of a Hugging Face class name or a GGUF architecture. `key` says where the name stands."""
    for family in FAMILIES:
        if name is not None and name in (family.architecture, family.gguf):
            return family
    known = ", ".join(f"{f.architecture} ({f.gguf} in GGUF)" if f.gguf else f.architecture for f in FAMILIES)
    raise UnknownFamilyError(f"{key} is {name!r}, an unknown architecture; known: {known}")
