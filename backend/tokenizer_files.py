"""Reading tokenizers: from GGUF metadata, or from the files of a Hugging Face folder."""

import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, processors

from .model.huggingface import read_json
from .token_bytes import TokenizerError, byte_level_bytes, sentencepiece_bytes
from .tokenizer import Tokenizer

# How text is cut before merging, by the name GGUF files give it (llama.cpp, src/llama-vocab.cpp).
_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_WORDS = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_REST = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_GPT2, _SMOLLM, _LLAMA3, _QWEN2 = "gpt-2", "smollm", "llama-bpe", "qwen2"
_ALIASES = {
    "default": _GPT2,
    "llama3": _LLAMA3,
    "llama-v3": _LLAMA3,
    "deepseek-r1-qwen": _QWEN2,
}
_CONTROL, _USER_DEFINED = 3, 4
# Tokens that end a turn of a chat, in the formats in use.
_CHAT_ENDS = ("<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|end|>", "<end_of_turn>")


def tokenizer_from_gguf(fields: Mapping[str, Any]) -> Tokenizer:
    """A tokenizer from GGUF metadata. Raises TokenizerError for kinds that aren't known."""
    kind = fields.get("tokenizer.ggml.model")
    if kind != "gpt2":
        raise TokenizerError(
            f"tokenizer.ggml.model is {kind!r}; known in GGUF files: 'gpt2' (for others use the Hugging Face folder)"
        )
    name = fields.get("tokenizer.ggml.pre", "default")
    tokens, merges, types = (_required(fields, f"tokenizer.ggml.{key}") for key in ("tokens", "merges", "token_type"))
    pairs = [tuple(merge.split(" ", 1)) for merge in merges]
    vocabulary = {token: token_id for token_id, token in enumerate(tokens)}
    pre_tokenizer = _pre_tokenizer(name)
    is_llama3 = _ALIASES.get(name, name) == _LLAMA3
    try:
        backend = tokenizers.Tokenizer(models.BPE(vocabulary, pairs, ignore_merges=is_llama3))
    except Exception as error:  # the library raises bare Exception
        raise TokenizerError(f"the GGUF file's vocabulary and merges don't fit together: {error}") from error
    backend.pre_tokenizer = pre_tokenizer
    backend.decoder = decoders.ByteLevel()
    if _ALIASES.get(name, name) == _QWEN2:
        backend.normalizer = normalizers.NFC()
    backend.add_special_tokens(
        [AddedToken(t, special=True, normalized=False) for t, k in zip(tokens, types, strict=True) if k == _CONTROL]
    )
    backend.add_tokens(
        [AddedToken(t, normalized=False) for t, k in zip(tokens, types, strict=True) if k == _USER_DEFINED]
    )
    bos, eos = (_token_at(tokens, fields.get(f"tokenizer.ggml.{key}_token_id")) for key in ("bos", "eos"))
    if bos is not None and fields.get("tokenizer.ggml.add_bos_token", is_llama3):
        _prepend(backend, bos)
    template = fields.get("tokenizer.chat_template")
    ends = {token_id for key in ("eos", "eot", "eom") if (token_id := fields.get(f"tokenizer.ggml.{key}_token_id"))}
    return Tokenizer(
        backend,
        token_bytes=byte_level_bytes,
        eos_token_ids=ends | _chat_ends(backend, template),
        bos_token=bos,
        eos_token=eos,
        chat_template=template,
    )


def tokenizer_from_huggingface(directory: Path) -> Tokenizer:
    """A tokenizer from tokenizer.json, tokenizer_config.json, generation_config.json and the chat template's file."""
    file = directory / "tokenizer.json"
    if not file.is_file():
        raise TokenizerError(f"{file} is missing; only folders with a tokenizer.json are supported")
    try:
        backend = tokenizers.Tokenizer.from_file(str(file))
    except Exception as error:  # the library raises bare Exception
        raise TokenizerError(f"{file} can't be read: {error}") from error
    settings, generation, model = (
        read_json(directory / name) if (directory / name).exists() else {}
        for name in ("tokenizer_config.json", "generation_config.json", "config.json")
    )
    template = _template_of(directory, settings)
    bos, eos = (_token_text(settings.get(f"{key}_token")) for key in ("bos", "eos"))
    ends = {*_as_ids(generation.get("eos_token_id")), *_as_ids(model.get("eos_token_id"))}
    if eos is not None and (eos_id := backend.token_to_id(eos)) is not None:
        ends.add(eos_id)
    return Tokenizer(
        backend,
        token_bytes=_alphabet(json.loads(backend.to_str())["decoder"]),
        eos_token_ids=ends | _chat_ends(backend, template),
        bos_token=bos,
        eos_token=eos,
        chat_template=template,
    )


def _pre_tokenizer(name: str) -> Any:
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)

    def split(digits: str) -> Any:
        pattern = "|".join((_CONTRACTIONS, _WORDS, digits, _REST))
        return pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(pattern), "isolated"), byte_level])

    gpt2 = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    known: dict[str, Callable[[], Any]] = {
        _GPT2: lambda: gpt2,
        _SMOLLM: lambda: pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), gpt2]),
        _LLAMA3: lambda: split(r"\p{N}{1,3}"),
        _QWEN2: lambda: split(r"\p{N}"),
    }
    build = known.get(_ALIASES.get(name, name))
    if build is None:
        raise TokenizerError(f"tokenizer.ggml.pre is {name!r}; known: {', '.join(sorted([*known, *_ALIASES]))}")
    return build()


def _prepend(backend: tokenizers.Tokenizer, bos: str) -> None:
    backend.post_processor = processors.TemplateProcessing(
        single=f"{bos} $A", pair=f"{bos} $A {bos} $B", special_tokens=[(bos, backend.token_to_id(bos))]
    )


def _alphabet(decoder: Mapping[str, Any] | None) -> Callable[[str], bytes]:
    steps = [] if decoder is None else [decoder, *decoder.get("decoders", [])]
    kinds = {step["type"] for step in steps}
    if "ByteLevel" in kinds:
        return byte_level_bytes
    if "ByteFallback" in kinds:
        return sentencepiece_bytes
    raise TokenizerError(
        f"tokenizer.json: the decoder is {decoder['type'] if decoder else None!r}; known: ByteLevel, or a sequence "
        "with ByteFallback"
    )


def _template_of(directory: Path, settings: Mapping[str, Any]) -> str | None:
    """The chat template: of a file of its own first, as transformers looks for it."""
    if (directory / "chat_template.jinja").exists():
        return (directory / "chat_template.jinja").read_text(encoding="utf-8")
    template = settings.get("chat_template")
    if (directory / "chat_template.json").exists():
        template = read_json(directory / "chat_template.json").get("chat_template", template)
    if isinstance(template, list):  # several, by name
        named = {entry.get("name"): entry.get("template") for entry in template}
        template = named.get("default")
        if template is None:
            raise TokenizerError(f"chat_template has no entry named 'default', only {sorted(map(str, named))}")
    if template is not None and not isinstance(template, str):
        raise TokenizerError(f"chat_template is a {type(template).__name__}; known: text, or a list of named texts")
    return template


def _chat_ends(backend: tokenizers.Tokenizer, template: str | None) -> set[int]:
    """End-of-turn tokens that the vocabulary has and the template writes."""
    found = (backend.token_to_id(token) for token in _CHAT_ENDS if template is not None and token in template)
    return {token_id for token_id in found if token_id is not None}


def _required(fields: Mapping[str, Any], key: str) -> Any:
    if key not in fields:
        raise TokenizerError(f"GGUF metadata lacks {key}")
    return fields[key]


def _token_at(tokens: list[str], token_id: int | None) -> str | None:
    return tokens[token_id] if token_id is not None and 0 <= token_id < len(tokens) else None


def _token_text(token: str | Mapping[str, Any] | None) -> str | None:
    """tokenizer_config.json has plain text or a description of the token."""
    return token["content"] if isinstance(token, Mapping) else token


def _as_ids(value: int | Iterable[int] | None) -> list[int]:
    return [] if value is None else [value] if isinstance(value, int) else list(value)
