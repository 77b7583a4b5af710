"""How few tokens a text can possibly be, without tokenising it."""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import tokenizers

from .token_bytes import byte_level_bytes

# What Unicode's composition can shrink a text by at most: three letters of Hangul, nine bytes, become one of three.
_NFC_RATIO = 3
_UTF8_BYTES = [*range(0xC0), *range(0xC2, 0xF5)]
# Ways of cutting a text that drop nothing of it.
_LOSSLESS_CUTS = frozenset({"ByteLevel", "Digits", "Metaspace"})


@dataclass(frozen=True, slots=True)
class TokenBounds:
    """most_bytes: no token stands for more bytes of a text. dropped: bytes that have no token, and may go lost."""

    most_bytes: int
    dropped: bytes = b""

    def fewest_tokens(self, text: str) -> int:
        """Tokens a text has at least."""
        return -(-len(text.encode().translate(None, self.dropped)) // self.most_bytes)


def token_bounds(backend: tokenizers.Tokenizer, bytes_of: Callable[[int], bytes]) -> TokenBounds | None:
    """None where a tokenizer may drop or rewrite any part of a text. `bytes_of`: the bytes of a token id."""
    parts = json.loads(backend.to_str())
    ratio = _ratio(parts["normalizer"])
    cuts = list(_cuts(parts["pre_tokenizer"]))
    if ratio is None or parts["truncation"] is not None or not all(map(_keeps_all, cuts)):
        return None
    dropped = _dropped(parts["model"], is_byte_level=any(cut["type"] == "ByteLevel" for cut in cuts))
    # Which bytes a text consists of isn't known before it is rewritten.
    if dropped is None or (dropped and ratio > 1):
        return None
    # Such a token takes any length of white space around it.
    if any(token["lstrip"] or token["rstrip"] for token in parts["added_tokens"]):
        return None
    vocabulary = backend.get_vocab(with_added_tokens=True).values()
    return TokenBounds(ratio * max(1, max((len(bytes_of(token_id)) for token_id in vocabulary), default=1)), dropped)


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


def _dropped(model: Mapping[str, Any], *, is_byte_level: bool) -> bytes | None:
    """Bytes of UTF-8 without a token of their own: they are dropped, or share one with their neighbours.

    None: what happens to them isn't known.
    """
    vocabulary: Iterable[str] = model.get("vocab", ()) if model.get("type") == "BPE" else ()
    if model.get("byte_fallback"):
        return b"" if {f"<0x{byte:02X}>" for byte in range(256)} <= set(vocabulary) else None
    if not is_byte_level:
        return None
    known = {byte_level_bytes(token) for token in vocabulary if len(token) == 1}
    return bytes(byte for byte in _UTF8_BYTES if bytes([byte]) not in known)
