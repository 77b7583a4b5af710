"""Byte-level BPE vocabularies as tokenizer.json has them, turned into ranks of byte strings and one regular expression.

That is what `tiktoken` works with, and it is the same thing only under conditions. Here those are checked which can be
proved; what the expressions make of every character is tried out when a tokenizer is loaded (`encoders.py`).

Of two neighbours whose bytes together are a token, `tiktoken` merges those of the lowest rank, and takes a whole piece
that is a token at once. `tokenizers` merges listed pairs only. Results are equal if every token comes out of its own
bytes by the listed merges: then neighbours that make up a token unlisted never stand side by side, since what is merged
between two borders is the same whatever stands outside of them. A token that can't come about so is left out, except
where whole pieces count (`ignore_merges`): there it must be listed with all of its splits, and then the rules agree.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

from tokenizers.models import BPE

# Possessive where giving back couldn't help, so that long runs keep no alternatives.
_CONTRACTIONS = r"'(?:[sdmt]|ll|ve|re)"
GPT2_PATTERN = rf"{_CONTRACTIONS}| ?\p{{L}}++| ?\p{{N}}++| ?[^\s\p{{L}}\p{{N}}]++|\s+(?!\S)|\s"
# After digits were cut off one by one: they are pieces of their own, and a piece ends before each of them.
GPT2_DIGITS_PATTERN = rf"{_CONTRACTIONS}| ?\p{{L}}++|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]++|\s+(?![^\s\p{{N}}])|\s"
# These never occur in UTF-8.
_IMPOSSIBLE_BYTES = frozenset({0xC0, 0xC1, *range(0xF5, 0x100)})


class NotByteLevelError(Exception):
    """This tokenizer isn't one of those that are understood here; says why."""


@dataclass(frozen=True, slots=True)
class ByteLevel:
    """A byte-level BPE vocabulary.

    `token_ids` has the vocabulary's id of each rank. `missing_bytes` have no token: the tokenizer leaves them out, and
    what stands beside them becomes neighbours, which ranks can't express. `normal_form` is of Unicode, None: as it is.
    """

    ranks: dict[bytes, int]
    token_ids: list[int]
    pattern: str
    missing_bytes: bytes
    normal_form: Literal["NFC"] | None


def read_byte_level(spec: Mapping[str, Any]) -> ByteLevel:
    """From the contents of tokenizer.json. Takes a second for 150,000 tokens. Raises NotByteLevelError."""
    model = spec["model"]
    pattern, normal_form = _pattern(spec.get("pre_tokenizer")), _normal_form(spec.get("normalizer"))
    if model.get("type") != "BPE":
        raise NotByteLevelError(f"a {model.get('type')} model")
    for name in ("dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix", "byte_fallback"):
        if model.get(name):
            raise NotByteLevelError(f"BPE with {name}")
    added = {token["content"] for token in spec.get("added_tokens") or ()}
    vocab: dict[str, int] = model["vocab"]
    pairs = [_pair(merge) for merge in model["merges"]]
    ranks = _ranks(pairs)
    alphabet = _alphabet()
    prover = BPE(vocab, pairs)
    # Those that merges alone don't make.
    whole = [name for name in ranks if len(name) > 1 and len(prover.tokenize(name)) != 1]
    if model.get("ignore_merges"):
        whole += [name for name in vocab if name not in ranks and name not in added]
        _check_splits(whole, {*ranks, *whole}, set(pairs))
        for name in whole:
            ranks.setdefault(name, len(ranks))
    else:
        for name in whole:
            del ranks[name]
    missing = [name for name in alphabet if name not in vocab]
    in_order = sorted(ranks, key=ranks.__getitem__)
    return ByteLevel(
        ranks={bytes(map(alphabet.__getitem__, name)): rank for rank, name in enumerate(in_order)},
        token_ids=[vocab.get(name, -1) for name in in_order],
        pattern=pattern,
        missing_bytes=bytes(alphabet[name] for name in missing if alphabet[name] not in _IMPOSSIBLE_BYTES),
        normal_form=normal_form,
    )


def _pair(merge: str | Sequence[str]) -> tuple[str, str]:
    left, right = merge.split(" ") if isinstance(merge, str) else merge
    return left, right


def _ranks(pairs: Sequence[tuple[str, str]]) -> dict[str, int]:
    """Characters of the alphabet, then what the merges make, in their order."""
    ranks = {name: rank for rank, name in enumerate(_alphabet())}
    last = ""
    for left, right in pairs:
        name = left + right
        if name in ranks and name != last:
            raise NotByteLevelError(f"merges of the token {name!r} at different ranks")
        if name != last and not all(character in _alphabet() for character in name):
            raise NotByteLevelError(f"the token {name!r} isn't made of bytes")
        last = name
        ranks.setdefault(name, len(ranks))
    return ranks


def _check_splits(whole: Iterable[str], names: set[str], pairs: set[tuple[str, str]]) -> None:
    alphabet = _alphabet()
    for name in whole:
        if not all(character in alphabet for character in name):
            raise NotByteLevelError(f"the token {name!r} isn't made of bytes")
        for at in range(1, len(name)):
            split = (name[:at], name[at:])
            if names.issuperset(split) and split not in pairs:
                raise NotByteLevelError(f"the token {name!r} has a split that is no merge")


def _pattern(spec: Mapping[str, Any] | None) -> str:
    """The regular expression whose matches are the pieces of a text."""
    stages = (spec.get("pretokenizers", []) if spec.get("type") == "Sequence" else [spec]) if spec else []
    if not stages or stages[-1].get("type") != "ByteLevel":
        raise NotByteLevelError("its pieces aren't byte-level")
    *before, last = stages
    if last.get("add_prefix_space", True):
        raise NotByteLevelError("a space is added in front")
    if last.get("use_regex", True):
        if not before:
            return GPT2_PATTERN
        if before == [{"type": "Digits", "individual_digits": True}]:
            return GPT2_DIGITS_PATTERN
    elif len(before) == 1 and before[0].get("type") == "Split":
        split = before[0]
        expression = split.get("pattern", {}).get("Regex")
        kept = (split.get("behavior"), split.get("invert", False))
        if isinstance(expression, str) and kept in (("Isolated", False), ("Removed", True)):
            return expression
    kinds = ", ".join(str(stage.get("type")) for stage in before)
    raise NotByteLevelError(f"pieces made by {kinds or 'nothing'}, which isn't one expression")


def _normal_form(spec: Mapping[str, Any] | None) -> Literal["NFC"] | None:
    if spec is None:
        return None
    if spec.get("type") == "NFC":
        return "NFC"
    raise NotByteLevelError(f"the normalizer {spec.get('type')}")


@cache
def _alphabet() -> dict[str, int]:
    """GPT-2's: each character stands for one byte."""
    # Printable Latin-1 bytes stand for themselves, the others follow from U+0100 on (GPT-2's encoder.py).
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in set(printable)]
    return {chr(byte): byte for byte in printable} | {chr(256 + index): byte for index, byte in enumerate(others)}
