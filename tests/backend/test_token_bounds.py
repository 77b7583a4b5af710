"""The least number of tokens a text can have: never more than it has, and told only where it is certain."""

import random
import string
from typing import Any

import pytest
import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers

from backend.model.gguf_file import GGUFCheckpoint
from backend.token_bounds import TokenBounds, token_bounds
from backend.token_bytes import byte_level_bytes, sentencepiece_bytes
from backend.tokenizer_files import tokenizer_from_gguf
from backend.weights import embedded_path

SEED = 4


def byte_level(*, without: str = "", **parts: Any) -> tokenizers.Tokenizer:
    """Every byte, and runs of up to 16 letters "a"."""
    alphabet = sorted(set(pre_tokenizers.ByteLevel.alphabet()) - set(without))
    runs = ["a" * 2**i for i in range(1, 5)]
    vocabulary = {token: i for i, token in enumerate([*alphabet, *runs])}
    backend = tokenizers.Tokenizer(models.BPE(vocabulary, [(run[: len(run) // 2],) * 2 for run in runs]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    backend.decoder = decoders.ByteLevel()
    for name, part in parts.items():
        setattr(backend, name, part)
    return backend


def cut(behavior: str) -> Any:
    split = pre_tokenizers.Split(Regex(r"\s+"), behavior)
    return pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


def truncating() -> tokenizers.Tokenizer:
    backend = byte_level()
    backend.enable_truncation(8)
    return backend


def sentencepiece(*, num_bytes: int = 256) -> tokenizers.Tokenizer:
    tokens = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(num_bytes)), "\u2581", "a", "aa"]
    vocabulary = {token: i for i, token in enumerate(tokens)}
    backend = tokenizers.Tokenizer(
        models.BPE(vocabulary, [("a", "a")], unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    )
    backend.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])
    return backend


def bound(backend: tokenizers.Tokenizer) -> TokenBounds | None:
    to_bytes = sentencepiece_bytes if backend.token_to_id("<0x00>") else byte_level_bytes
    return token_bounds(backend, lambda token_id: to_bytes(backend.id_to_token(token_id) or ""))


@pytest.mark.parametrize(
    ("backend", "expected"),
    [
        (byte_level(), 16),
        (byte_level(normalizer=normalizers.NFC()), 48),
        (byte_level(pre_tokenizer=cut("isolated")), 16),
        (byte_level(without="x"), 16),
        (sentencepiece(), 5),
    ],
)
def test_no_text_has_fewer_tokens(backend: tokenizers.Tokenizer, expected: int) -> None:
    """The bound is the longest token, and holds for what compresses best and for random text."""
    bounds = bound(backend)
    assert bounds is not None
    assert bounds.most_bytes == expected
    print(f"seed {SEED}")
    chance = random.Random(SEED)
    pieces = ["a" * 64, " ", "\u1100\u1161\u11a8", "e\u0302\u0301", "\u03b1\u0313\u0301\u0345", *string.printable]
    texts = [piece * 50 for piece in pieces]
    texts += ["".join(chance.choices(pieces, k=50)) for _ in range(200)]
    for text in texts:
        assert 0 < bounds.fewest_tokens("y" + text) <= len(backend.encode("y" + text).ids), repr(text)


def with_added(token: AddedToken) -> tokenizers.Tokenizer:
    backend = byte_level()
    backend.add_tokens([token])
    return backend


def test_a_long_added_token_counts() -> None:
    """It is one token, however long."""
    assert bound(with_added(AddedToken("<" + "x" * 98 + ">"))) == TokenBounds(100)


def test_bytes_without_a_token_do_not_count() -> None:
    """They may vanish: a text of nothing else has no tokens."""
    bounds = bound(byte_level(without="x"))
    assert bounds == TokenBounds(16, b"x")
    assert bounds.fewest_tokens("x" * 1000 + "y" * 17) == 2


@pytest.mark.model
def test_the_embedded_model_tells() -> None:
    """Its tokenizer lacks some control characters; megabytes of anything else can't fit its context."""
    tokenizer = tokenizer_from_gguf(GGUFCheckpoint(embedded_path()).fields)
    assert tokenizer.fewest_tokens("hello 12 " * 100_000) > 8192
    for text in ("\x04" * 1000, "\x04\x06" * 50 + "a" * 10, "#" * 160, "\n" + " " * 80, "🙂 naïve 日本語" * 9):
        assert tokenizer.fewest_tokens(text) <= len(tokenizer.encode(text)), repr(text)


@pytest.mark.parametrize(
    "backend",
    [
        byte_level(normalizer=normalizers.Strip()),
        byte_level(normalizer=normalizers.NFKC()),
        byte_level(normalizer=normalizers.Replace("a", "")),
        byte_level(normalizer=normalizers.Sequence([normalizers.NFC(), normalizers.Lowercase()])),
        byte_level(pre_tokenizer=pre_tokenizers.WhitespaceSplit()),
        byte_level(pre_tokenizer=cut("removed")),
        byte_level(pre_tokenizer=None),
        byte_level(normalizer=normalizers.NFC(), without="x"),
        truncating(),
        with_added(AddedToken("<mask>", lstrip=True)),
        sentencepiece(num_bytes=255),
        tokenizers.Tokenizer(models.WordLevel({"a": 0, "<unk>": 1}, unk_token="<unk>")),
    ],
)
def test_nothing_is_said_where_text_may_vanish(backend: tokenizers.Tokenizer) -> None:
    """Stripped, rewritten or unknown text may be any number of bytes a token."""
    assert bound(backend) is None
