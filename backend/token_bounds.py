"""How few tokens a text can possibly be, without tokenising it."""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import tokenizers

from .token_bytes import byte_level_bytes

# What Unicode's composition can shrink a text by at most: three letters of Hangul, nine bytes, become one of three.
_NFC_RATIO = 3
# Ways of cutting a text that drop nothing of it.
_LOSSLESS_CUTS = frozenset({"ByteLevel", "Digits", "Metaspace"})


def most_bytes_per_token(backend: tokenizers.Tokenizer, bytes_of: Callable[[int], bytes]) -> int | None:
    """No token stands for more bytes of a text; None where a tokenizer may drop or rewrite some of it.

    `bytes_of`: the bytes of a token id.
    """
    parts = json.loads(backend.to_str())
    ratio = _ratio(parts["normalizer"])
    cuts = list(_cuts(parts["pre_tokenizer"]))
    if ratio is None or parts["truncation"] is not None or not all(map(_keeps_all, cuts)):
        return None
    if not _knows_all(parts["model"], is_byte_level=any(cut["type"] == "ByteLevel" for cut in cuts)):
        return None
    # Such a token takes any length of white space around it.
    if any(token["lstrip"] or token["rstrip"] for token in parts["added_tokens"]):
        return None
    vocabulary = backend.get_vocab(with_added_tokens=True).values()
    return ratio * max(1, max((len(bytes_of(token_id)) for token_id in vocabulary), default=1))


def _ratio(normalizer: Mapping[str, Any] | None) -> int | None:
    """How much shorter a text may become; None: unknown."""
    if normalizer is None:
        return 1
    match normalizer["type"]:
        case "NFC":
            return _NFC_RATIO
        case "Prepend":
            return 1
        case "Replace" if normalizer["pattern"] == {"String": " "} and normalizer["content"] == "\u2581":
            return 1  # a token's bytes have the space again
        case "Sequence":
            ratio = 1
            for step in normalizer["normalizers"]:
                step_ratio = _ratio(step)
                if step_ratio is None:
                    return None
                ratio *= step_ratio
            return ratio
        case _:
            return None


def _cuts(pre_tokenizer: Mapping[str, Any] | None) -> Iterator[Mapping[str, Any]]:
    if pre_tokenizer is None:
        return
    if pre_tokenizer["type"] == "Sequence":
        for step in pre_tokenizer["pretokenizers"]:
            yield from _cuts(step)
    else:
        yield pre_tokenizer


def _keeps_all(cut: Mapping[str, Any]) -> bool:
    return cut["type"] in _LOSSLESS_CUTS or (cut["type"] == "Split" and cut["behavior"] != "Removed")


def _knows_all(model: Mapping[str, Any], *, is_byte_level: bool) -> bool:
    """Whether every byte has a token of its own: what has none may be dropped, or share one with its neighbours."""
    vocabulary: Iterable[str] = model.get("vocab", ()) if model.get("type") == "BPE" else ()
    if model.get("byte_fallback"):
        return {f"<0x{byte:02X}>" for byte in range(256)} <= set(vocabulary)
    return is_byte_level and len({byte_level_bytes(token) for token in vocabulary if len(token) == 1}) == 256
