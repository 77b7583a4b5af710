"""Tokenizers: byte-exact against an implementation of their definition, and streams that never split characters."""

import itertools
import json
import random
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import regex  # type: ignore[import-untyped]
from transformers import PreTrainedTokenizerFast

from backend.model.gguf_file import GGUFCheckpoint
from backend.token_bytes import TokenizerError, byte_level_bytes, sentencepiece_bytes
from backend.tokenizer import Detokenizer, Tokenizer
from backend.tokenizer_files import tokenizer_from_gguf, tokenizer_from_huggingface
from backend.weights import embedded_path
from tests.backend.tiny_models import write_tokenizer

SEED = 3
SAMPLES = [
    "",
    " ",
    "Hello, world!",
    "  leading and   inner   spaces  ",
    "tabs\tand\nnewlines\r\n\n\n  x",
    "def f(x: int) -> int:\n    return x ** 2  # square\n",
    "year 2024, 3.14159, 1,000,000 and ٣٤٥ and ½",
    "I'm sure they'll say we'd've done IT'S",
    "naïve café — “quotes” … ₤€¥",
    "日本語のテキスト 한국어 العربية हिन्दी",
    "🙂👩‍👩‍👧‍👦🏳️‍🌈 emoji",
    "<html lang='en'>&amp;</html> https://example.org/a?b=c#d",
    "a" * 300 + " " * 70 + "!" * 40,
    "e\u0301 combining \u200b zero width \ufeff",
    "<|im_start|>user\nhi<|im_end|>\n",
    "\x00\x01\x7f control",
]
GPT2_PATTERN = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"


def reference_encode(text: str, fields: dict[str, Any]) -> list[int]:
    """Byte-pair encoding by its definition, with SmolLM's rule that a digit stands alone."""
    tokens = fields["tokenizer.ggml.tokens"]
    ids, ranks = _tables(tuple(tokens), tuple(fields["tokenizer.ggml.merges"]))
    special = [t for t, kind in zip(tokens, fields["tokenizer.ggml.token_type"], strict=True) if kind == 3]
    encoded = []
    for part in regex.split("(" + "|".join(map(regex.escape, special)) + ")", text):
        if part in special:
            encoded.append(ids[part])
            continue
        for piece in regex.split(r"(\p{N})", part):
            for word in regex.findall(GPT2_PATTERN, piece):
                encoded += [ids[token] for token in _merge(tuple(_characters()[b] for b in word.encode()), ranks)]
    return encoded


@cache
def _characters() -> list[str]:
    plain = {*range(33, 127), *range(161, 173), *range(174, 256)}
    others = iter(range(256, 512))
    return [chr(b) if b in plain else chr(next(others)) for b in range(256)]


@cache
def _tables(tokens: tuple[str, ...], merges: tuple[str, ...]) -> tuple[dict[str, int], dict[tuple[str, str], int]]:
    pairs = [merge.split(" ") for merge in merges]
    return {t: i for i, t in enumerate(tokens)}, {(left, right): i for i, (left, right) in enumerate(pairs)}


def _merge(symbols: tuple[str, ...], ranks: dict[tuple[str, str], int]) -> tuple[str, ...]:
    while True:
        pairs = [(ranks.get(pair, len(ranks)), i) for i, pair in enumerate(itertools.pairwise(symbols))]
        rank, i = min(pairs, default=(len(ranks), 0))
        if rank == len(ranks):
            return symbols
        symbols = (*symbols[:i], symbols[i] + symbols[i + 1], *symbols[i + 2 :])


@pytest.fixture(scope="module")
def fields() -> dict[str, Any]:
    """The embedded model's metadata."""
    return GGUFCheckpoint(embedded_path()).fields


@pytest.fixture(scope="module")
def embedded(fields: dict[str, Any]) -> Tokenizer:
    """The embedded model's tokenizer."""
    return tokenizer_from_gguf(fields)


def random_texts() -> list[str]:
    chance = random.Random(SEED)
    alphabets = [
        "abc XYZ\n\t",
        "0123456789 .,",
        "éßøæ ñ",
        "漢字かな",
        "🙂🎉👍🏽",
        "(){}[];=+-*/<>'\"",
        "\u0301\u200d\ufe0f",
    ]
    return ["".join(chance.choice(chance.choice(alphabets)) for _ in range(60)) for _ in range(60)]


@pytest.mark.model
def test_encodes_as_the_definition_says(embedded: Tokenizer, fields: dict[str, Any]) -> None:
    """Code, scripts, emoji, digits, white space, special tokens: the ids of byte-pair encoding by its definition."""
    for text in SAMPLES + random_texts():
        assert embedded.encode(text) == reference_encode(text, fields), f"{text!r} (seed {SEED})"


@pytest.mark.model
def test_text_survives_the_round_trip(embedded: Tokenizer) -> None:
    """Decoding what was encoded gives the text back, to the byte."""
    for text in SAMPLES + random_texts():
        assert embedded.decode(embedded.encode(text), skip_special_tokens=False) == text, f"seed {SEED}"


@pytest.mark.model
def test_streams_join_to_the_whole_and_never_split_a_character(embedded: Tokenizer) -> None:
    """Token by token, the pieces join to `decode`'s text, and no piece has a broken character."""
    for text in SAMPLES + random_texts():
        ids = embedded.encode(text)
        stream = Detokenizer(embedded)
        pieces = [stream.push(i) for i in ids]
        assert not any("\ufffd" in piece for piece in pieces), f"seed {SEED}"
        assert "".join(pieces) + stream.flush() == embedded.decode(ids), f"seed {SEED}"


@pytest.mark.model
def test_random_tokens_stream_as_they_decode(embedded: Tokenizer) -> None:
    """Also for tokens in an order that isn't UTF-8: the pieces join to what `decode` makes of them."""
    chance = random.Random(SEED)
    for _ in range(200):
        ids = [chance.choice([chance.randrange(49152), chance.randrange(17, 300)]) for _ in range(30)]
        stream = Detokenizer(embedded)
        assert "".join(map(stream.push, ids)) + stream.flush() == embedded.decode(ids), f"seed {SEED}: {ids}"


@pytest.mark.model
def test_special_tokens_of_the_embedded_model(embedded: Tokenizer) -> None:
    """The end of a turn ends an answer; special tokens are left out of text unless asked for."""
    assert embedded.eos_token_ids == {2}
    assert (embedded.bos_token, embedded.eos_token, embedded.vocab_size) == ("<|im_start|>", "<|im_end|>", 49152)
    ids = embedded.encode("hi<|im_end|>")
    assert ids[-1] == 2
    assert embedded.decode(ids) == "hi"
    assert embedded.decode(ids, skip_special_tokens=False) == "hi<|im_end|>"
    assert Detokenizer(embedded, skip_special_tokens=False).push(2) == "<|im_end|>"
    assert embedded.bytes_of(60_000) == b""


@pytest.mark.model
def test_an_exported_tokenizer_is_the_same(embedded: Tokenizer, tmp_path: Path) -> None:
    """What `export` writes reads back, here and in transformers, as the same tokenizer with the same chat template."""
    embedded.export(tmp_path / "new")
    ours = tokenizer_from_huggingface(tmp_path / "new")
    theirs = PreTrainedTokenizerFast.from_pretrained(tmp_path / "new")
    for text in SAMPLES:
        assert ours.encode(text) == embedded.encode(text) == theirs(text)["input_ids"]
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "  hé\n"}]
    for prompted in (True, False):
        rendered = theirs.apply_chat_template(messages, tokenize=False, add_generation_prompt=prompted)
        assert ours.apply_chat_template(messages, add_generation_prompt=prompted) == rendered
        assert embedded.apply_chat_template(messages, add_generation_prompt=prompted) == rendered
    assert ours.eos_token_ids == embedded.eos_token_ids


def tiny_fields(**changes: Any) -> dict[str, Any]:
    """GGUF metadata of a tokenizer of single bytes, a merge and two special tokens."""
    tokens = [*_characters(), "ab", "<s>", "<|im_end|>", "<tool>"]
    fields = {
        "model": "gpt2",
        "tokens": tokens,
        "token_type": [1] * 257 + [3, 3, 4],
        "merges": ["a b"],
        "bos_token_id": 257,
        "eos_token_id": 258,
    }
    return {f"tokenizer.ggml.{key}": value for key, value in (fields | changes).items() if value is not None}


@pytest.mark.parametrize(
    ("pre", "digits"),
    [
        ("gpt-2", ["1234"]),
        ("default", ["1234"]),
        ("smollm", [*"1234"]),
        ("qwen2", [*"1234"]),
        ("llama-bpe", ["123", "4"]),
    ],
)
def test_pre_tokenizers_cut_digits_as_named(pre: str, digits: list[str]) -> None:
    """Each known rule cuts numbers its way: runs of digits merge only where the rule keeps them together."""
    tokens = [*_characters(), "12", "34", "1234", "123"]
    backend = tokenizer_from_gguf(
        tiny_fields(
            pre=pre, tokens=tokens, token_type=[1] * 260, merges=["1 2", "3 4", "12 34", "12 3"], bos_token_id=None
        )
    )
    assert [backend.decode([i]) for i in backend.encode("1234")] == digits
    assert backend.decode(backend.encode("x 1234\n\n  Ünï's!")) == "x 1234\n\n  Ünï's!"


def test_beginning_of_text_is_added_only_on_request() -> None:
    """A file that asks for a beginning token gets it with add_special_tokens, and never otherwise."""
    tokenizer = tokenizer_from_gguf(tiny_fields(add_bos_token=True))
    assert tokenizer.encode("ab") == [256]
    assert tokenizer.encode("ab", add_special_tokens=True) == [257, 256]
    assert tokenizer_from_gguf(tiny_fields()).encode("ab", add_special_tokens=True) == [256]
    assert tokenizer.decode(tokenizer.encode("<tool>")) == "<tool>"  # user-defined, not special


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": "llama"}, r"tokenizer.ggml.model is 'llama'; known"),
        ({"pre": "klingon"}, r"tokenizer.ggml.pre is 'klingon'; known: .*qwen2, smollm"),
        ({"merges": None}, r"lacks tokenizer.ggml.merges"),
        ({"merges": ["q zz"]}, r"don't fit together"),
    ],
)
def test_unknown_gguf_tokenizers_are_refused(changes: dict[str, Any], message: str) -> None:
    """The error names the key, its value and what is known."""
    with pytest.raises(TokenizerError, match=message):
        tokenizer_from_gguf(tiny_fields(**changes))


def test_stop_tokens_come_from_every_place(tmp_path: Path) -> None:
    """The tokenizer's end token, generation_config's list, config.json's and the template's end of turn all count."""
    write_tokenizer(tmp_path)
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [7, 8]}')
    (tmp_path / "config.json").write_text('{"eos_token_id": 9}')
    assert tokenizer_from_huggingface(tmp_path).eos_token_ids == {256, 257, 7, 8, 9}


@pytest.mark.parametrize(
    ("file", "content", "expected"),
    [
        ("chat_template.jinja", "from jinja", "from jinja"),
        ("chat_template.json", '{"chat_template": "from json"}', "from json"),
        ("tokenizer_config.json", '{"chat_template": [{"name": "default", "template": "named"}]}', "named"),
        ("tokenizer_config.json", "{}", None),
    ],
)
def test_the_chat_template_is_found(tmp_path: Path, file: str, content: str, expected: str | None) -> None:
    """In a file of its own, in tokenizer_config.json, or one named default of several; or there is none."""
    write_tokenizer(tmp_path)
    (tmp_path / file).write_text(content)
    tokenizer = tokenizer_from_huggingface(tmp_path)
    assert tokenizer.chat_template == expected
    assert tokenizer.has_chat_template == (expected is not None)


@pytest.mark.parametrize("template", [[{"name": "rag", "template": "x"}], 5])
def test_a_chat_template_of_another_kind_is_refused(tmp_path: Path, template: object) -> None:
    """Neither text nor a list with a default: an error, not a guess."""
    write_tokenizer(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": template}))
    with pytest.raises(TokenizerError, match="chat_template"):
        tokenizer_from_huggingface(tmp_path)


def test_broken_tokenizer_files_are_refused(tmp_path: Path) -> None:
    """A missing or broken tokenizer.json, or one with an unknown decoder, is an error that names it."""
    with pytest.raises(TokenizerError, match="is missing"):
        tokenizer_from_huggingface(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(TokenizerError, match="can't be read"):
        tokenizer_from_huggingface(tmp_path)
    write_tokenizer(tmp_path)
    content = json.loads((tmp_path / "tokenizer.json").read_text())
    (tmp_path / "tokenizer.json").write_text(json.dumps(content | {"decoder": None}))
    with pytest.raises(TokenizerError, match="decoder is None"):
        tokenizer_from_huggingface(tmp_path)


def test_sentencepiece_tokens_are_bytes_too(tmp_path: Path) -> None:
    """Vocabularies with byte fallback stream whole characters; the space before a word is kept."""
    write_tokenizer(tmp_path)
    content = json.loads((tmp_path / "tokenizer.json").read_text())
    content["model"] = {
        "type": "BPE",
        "vocab": {"<0xC3>": 0, "<0xA9>": 1, "▁caf": 2, "<unk>": 3},
        "merges": [],
        "byte_fallback": True,
    }
    steps = [
        {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
    ]
    content |= {"decoder": {"type": "Sequence", "decoders": steps}, "added_tokens": [], "pre_tokenizer": None}
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    tokenizer = tokenizer_from_huggingface(tmp_path)
    stream = Detokenizer(tokenizer)
    assert [stream.push(i) for i in (2, 0, 1)] == [" caf", "", "é"]
    assert tokenizer.decode([2, 0, 1]) == " café"
    assert stream.push(0) + stream.flush() == "\ufffd"


def test_alphabets() -> None:
    """Both alphabets map a token's text to bytes; text outside them stands for itself."""
    assert byte_level_bytes("Ġhi") == b" hi"
    assert byte_level_bytes("日") == "日".encode()
    assert sentencepiece_bytes("▁a▁b") == b" a b"
    assert sentencepiece_bytes("<0x0A>") == b"\n"
