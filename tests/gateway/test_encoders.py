"""tiktoken stands for tokenizers only where both give the very same tokens."""

import random
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers

from gateway.byte_level import NotByteLevelError, read_byte_level
from gateway.encoders import LONG_RUN_CHARACTERS, TiktokenEncoder, TokenizeError, TokenizersEncoder, tiktoken_encoder
from gateway.tokenizer_sample import FRAGMENTS, sample_prompts, sample_texts
from tests.support.tokenizer_folders import (
    FAMILIES,
    LLAMA3_PATTERN,
    SPECIALS,
    embedded_folder,
    gpt2_like,
    llama2_like,
    specification,
)

Pair = tuple[Tokenizer, TiktokenEncoder]
ODD_CHARACTERS = st.sampled_from(
    ["\x00", "\x04", "\x1d", "\x7f", "\u0301", "\u200d", "\u2028", "ſ", "İ", "Ⅻ", "٣", "가", "ᄒ"]
)
TEXTS = st.one_of(
    st.text(max_size=60),
    st.lists(st.sampled_from(FRAGMENTS), max_size=25).map("".join),
    st.lists(
        st.one_of(
            ODD_CHARACTERS, st.sampled_from(" \t\n\r'.,1aZé漢🦊\u00a0"), st.characters(exclude_categories=["Cs"])
        ),
        max_size=40,
    ).map("".join),
    st.text(alphabet="0123456789 ,.", max_size=40),
    st.text(alphabet=" \t\n\r\x0b\u00a0\u3000x", max_size=60),
)


class Unused:
    """An encoder that must not be asked."""

    name = "unused"
    bytes_per_s = 1.0

    def count(self, text: str) -> int:
        raise AssertionError(f"tiktoken was to count {text!r}")


def encoders(content: str) -> Pair:
    backend = Tokenizer.from_str(content)
    return backend, tiktoken_encoder(orjson.loads(content), TokenizersEncoder(backend))


@pytest.fixture(scope="module", params=FAMILIES)
def family(request: pytest.FixtureRequest) -> Pair:
    return encoders(specification(request.param))


@pytest.fixture(scope="module")
def embedded(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    """The embedded model's, as the engine exports it."""
    folder = embedded_folder(tmp_path_factory.mktemp("embedded"))
    return encoders((folder / "tokenizer.json").read_text())


def test_the_sample_is_the_same_each_time_and_varied() -> None:
    """Every class of characters, and added tokens in every place."""
    texts = sample_texts()
    assert texts == sample_texts()
    characters = set("".join(texts))
    assert len(characters) > 30_000
    assert {" ", "\n", "\u3000", "é", "漢", "🦊", "ǆ", "٣"} <= characters
    prompts = sample_prompts(SPECIALS)
    assert prompts == sample_prompts(SPECIALS)
    assert any(prompt.startswith(SPECIALS[0]) and prompt.endswith(SPECIALS[0]) for prompt in prompts)
    assert any(SPECIALS[1] + SPECIALS[2] in prompt for prompt in prompts)
    assert sample_prompts([]) == []


def test_known_families_are_taken_over(family: Pair) -> None:
    """On the whole sample, id by id."""
    backend, quick = family
    quick.check(backend, sample_texts())


@given(TEXTS)
@settings(deadline=None)
def test_any_text_has_as_many_tokens_in_both(family: Pair, text: str) -> None:
    """Unicode of every kind, white space, digits, contractions."""
    backend, quick = family
    quick.check(backend, [text])
    assert quick.count(text) == len(backend.encode(text, add_special_tokens=False))


@pytest.mark.model
def test_the_embedded_vocabulary_is_taken_over(embedded: Pair) -> None:
    """On the sample, and on characters of all planes in several surroundings."""
    backend, quick = embedded
    quick.check(backend, sample_texts())
    points = [point for point in range(sys.maxunicode + 1) if not 0xD800 <= point <= 0xDFFF and point % 29 < 2]
    rows = (points[start : start + 2000] for start in range(0, len(points), 2000))
    quick.check(backend, ["".join(f"a {chr(point)}b1{chr(point)}  2" for point in row) for row in rows])


@pytest.mark.model
@given(TEXTS)
@settings(deadline=None, max_examples=500)
def test_any_text_has_as_many_tokens_in_the_embedded_vocabulary(embedded: Pair, text: str) -> None:
    """Those with bytes that it has no token for, too."""
    backend, quick = embedded
    quick.check(backend, [text])
    assert quick.count(text) == len(backend.encode(text, add_special_tokens=False))


def test_random_vocabularies_are_taken_over_or_refused() -> None:
    """Merges in any order: whatever isn't refused gives the same tokens."""
    seed = random.randrange(2**32)
    print("seed", seed)
    rng = random.Random(seed)
    num_taken = 0
    for _ in range(60):
        names = sorted(pre_tokenizers.ByteLevel.alphabet())
        letters, pairs = list("abc"), []
        for _ in range(rng.randrange(2, 14)):
            pair = (rng.choice(letters), rng.choice(letters))
            if "".join(pair) not in letters or rng.random() < 0.3:
                pairs.append(pair)
                letters.append("".join(pair))
        vocabulary = {name: index for index, name in enumerate(dict.fromkeys([*names, *letters]))}
        backend = Tokenizer(models.BPE(vocabulary, list(dict.fromkeys(pairs)), ignore_merges=rng.random() < 0.5))
        backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        try:
            quick = tiktoken_encoder(orjson.loads(backend.to_str()), Unused())
        except NotByteLevelError:
            continue
        num_taken += 1
        quick.check(backend, ["".join(rng.choices("abc", k=rng.randrange(30))) for _ in range(200)])
    assert num_taken > 5


def test_a_token_that_merges_cannot_make_is_left_out() -> None:
    """With `bc` merged first, `ab` + `c` never stand side by side, and nothing else makes `abc`."""
    names = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {name: index for index, name in enumerate([*names, "bc", "ab", "abc"])}
    backend = Tokenizer(models.BPE(vocabulary, [("b", "c"), ("a", "b"), ("ab", "c")]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    quick = tiktoken_encoder(orjson.loads(backend.to_str()), Unused())
    assert quick.count("abc") == len(backend.encode("abc")) == 2
    quick.check(backend, ["abc", "ab", "abcabc", "xabcx"])


def test_tokens_added_to_a_normalized_text_are_found_in_it() -> None:
    """In their normal form, wherever they stand."""
    tokenizer = FAMILIES["qwen"]()
    tokenizer.add_tokens([AddedToken("<caf\u00e9>", normalized=True)])
    backend, quick = encoders(tokenizer.to_str())
    for text in ("a<cafe\u0301>b", "<caf\u00e9><caf\u00e9>", "no <cafe>"):
        quick.check(backend, [text])
        assert quick.count(text) == len(backend.encode(text, add_special_tokens=False))


class Recorder:
    """An encoder that remembers what it was asked."""

    name = "recorder"
    bytes_per_s = 1.0

    def __init__(self) -> None:
        self.asked: list[str] = []

    def count(self, text: str) -> int:
        self.asked.append(text)
        return 7


@pytest.mark.parametrize("character", [" ", "\n", "\u00a0", "\u3000"])
def test_long_runs_of_white_space_are_left_to_the_tokenizer(character: str) -> None:
    """tiktoken's expressions would run out of stack; shorter ones, and long runs of anything else, are no trouble."""
    exact = Recorder()
    quick = tiktoken_encoder(orjson.loads(specification("gpt2")), exact)
    run = character * (2 * LONG_RUN_CHARACTERS)
    for text in (run, "x" + run, "x " * 33_333 + run + "y", run * 5):
        assert quick.count(text) == 7
    assert len(exact.asked) == 4
    assert quick.count("x" + character * (LONG_RUN_CHARACTERS - 1) + "y") > 7
    assert quick.count("x" * (3 * LONG_RUN_CHARACTERS)) > 7
    assert len(exact.asked) == 4


def test_bytes_without_a_token_are_left_to_the_tokenizer() -> None:
    """It leaves them out, and what stands beside them may merge."""
    spec = orjson.loads(specification("gpt2"))
    del spec["model"]["vocab"]["Ā"]  # the byte 0
    spec["model"]["merges"] = [merge for merge in spec["model"]["merges"] if "Ā" not in "".join(merge)]
    exact = Recorder()
    quick = tiktoken_encoder(spec, exact)
    assert read_byte_level(spec).missing_bytes == b"\x00"
    assert (quick.count("th\x00e"), quick.count("é\x00")) == (7, 7)
    assert exact.asked == ["th\x00e", "é\x00"]
    assert quick.count("thé") != 7


def test_what_tiktoken_fails_on_is_left_to_the_tokenizer(monkeypatch: pytest.MonkeyPatch) -> None:
    """A panic isn't an Exception; but whoever wants to end the program may."""

    class Panic(BaseException):
        pass

    exact = Recorder()
    quick = tiktoken_encoder(orjson.loads(specification("gpt2")), exact)
    for error, is_caught in ((Panic(), True), (ValueError(), True), (KeyboardInterrupt(), False)):

        def fail(_: str, error: BaseException = error) -> list[int]:
            raise error

        monkeypatch.setattr(quick._encoding, "encode_ordinary", fail)
        if is_caught:
            assert quick.count("x") == 7
        else:
            with pytest.raises(KeyboardInterrupt):
                quick.count("x")


def test_a_tokenizer_that_fails_says_so() -> None:
    """Whatever it raises, apart from the end of the program."""

    class Broken:
        def __init__(self, error: BaseException) -> None:
            self.error = error

        def encode_batch_fast(self, *_: Any, **__: Any) -> None:
            raise self.error

    class Panic(BaseException):
        pass

    for error in (Panic("native"), ValueError("no")):
        with pytest.raises(TokenizeError, match=type(error).__name__):
            TokenizersEncoder(Broken(error)).count("x")  # type: ignore[arg-type]
    with pytest.raises(SystemExit):
        TokenizersEncoder(Broken(SystemExit())).count("x")  # type: ignore[arg-type]


def changed(**parts: Any) -> Mapping[str, Any]:
    spec: dict[str, Any] = orjson.loads(specification("gpt2"))
    model = parts.pop("model", {})
    return {**spec, **parts, "model": {**spec["model"], **model}}


BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "use_regex": False}
SPLIT = {"type": "Split", "pattern": {"Regex": "x"}, "behavior": "Isolated", "invert": False}


@pytest.mark.parametrize(
    ("spec", "why"),
    [
        (changed(model={"type": "Unigram"}), "Unigram"),
        (changed(model={"dropout": 0.1}), "dropout"),
        (changed(model={"byte_fallback": True}), "byte_fallback"),
        (changed(model={"end_of_word_suffix": "</w>"}), "end_of_word_suffix"),
        (changed(normalizer={"type": "NFKC"}), "NFKC"),
        (changed(pre_tokenizer=None), "byte-level"),
        (changed(pre_tokenizer={"type": "Whitespace"}), "byte-level"),
        (changed(pre_tokenizer={**BYTE_LEVEL, "add_prefix_space": True}), "space"),
        (changed(pre_tokenizer=BYTE_LEVEL), "nothing"),
        (changed(pre_tokenizer={"type": "Sequence", "pretokenizers": [SPLIT, SPLIT, BYTE_LEVEL]}), "Split, Split"),
        (
            changed(
                pre_tokenizer={
                    "type": "Sequence",
                    "pretokenizers": [{**SPLIT, "behavior": "MergedWithNext"}, BYTE_LEVEL],
                }
            ),
            "one expression",
        ),
        (
            changed(
                pre_tokenizer={"type": "Sequence", "pretokenizers": [{**SPLIT, "pattern": {"String": "x"}}, BYTE_LEVEL]}
            ),
            "one expression",
        ),
        (
            changed(
                pre_tokenizer={"type": "Sequence", "pretokenizers": [{**SPLIT, "pattern": {"Regex": "("}}, BYTE_LEVEL]}
            ),
            "refuses",
        ),
        (changed(model={"merges": [["Ġ", "t"], ["h", "e"], ["Ġt", "he"], ["h", "e"]]}), "different ranks"),
        (changed(model={"vocab": {"a": 0, "b": 1, "€": 2, "a€": 3}, "merges": ["a €"]}), "bytes"),
        (changed(added_tokens=[{"content": "<a>", "normalized": True, "rstrip": True}]), "beside"),
    ],
)
def test_what_is_not_understood_is_refused(spec: Mapping[str, Any], why: str) -> None:
    """With the reason."""
    with pytest.raises(NotByteLevelError, match=why):
        tiktoken_encoder(spec, Unused())


def test_whole_pieces_must_be_listed_with_all_their_splits() -> None:
    """Else tiktoken might put them together inside of longer pieces."""
    spec = orjson.loads(specification("llama3"))
    read_byte_level(spec)
    vocabulary = spec["model"]["vocab"]
    vocabulary["Ġtheqq"] = len(vocabulary) + 100
    read_byte_level(spec)
    vocabulary["qq"] = len(vocabulary) + 100
    with pytest.raises(NotByteLevelError, match="no merge"):
        read_byte_level(spec)
    del vocabulary["qq"]
    vocabulary["€€"] = len(vocabulary) + 100
    with pytest.raises(NotByteLevelError, match="bytes"):
        read_byte_level(spec)


def test_merges_may_be_written_as_text() -> None:
    """As older files have them."""
    spec = orjson.loads(specification("gpt2"))
    pairs = spec["model"]["merges"]
    spec["model"]["merges"] = [" ".join(pair) for pair in pairs]
    assert read_byte_level(spec).ranks == read_byte_level(changed()).ranks


def test_an_expression_that_leaves_something_out_is_noticed() -> None:
    """tokenizers keeps what no match covers; tiktoken drops it."""
    tokenizer = gpt2_like()
    pieces = [
        pre_tokenizers.Split(Regex(r"\p{L}+|\s+"), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    ]
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(pieces)
    backend, quick = encoders(tokenizer.to_str())
    quick.check(backend, ["only words"])
    with pytest.raises(NotByteLevelError, match="differ"):
        quick.check(backend, sample_texts())


def test_removing_the_rest_is_the_same_as_keeping_the_matches() -> None:
    """The other way in which files say it."""
    tokenizer = FAMILIES["qwen"]()
    split = pre_tokenizers.Split(Regex(LLAMA3_PATTERN), "removed", invert=True)
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, byte_level])
    tokenizer.normalizer = normalizers.NFC()
    backend, quick = encoders(tokenizer.to_str())
    quick.check(backend, sample_texts())


def test_other_models_are_refused(tmp_path: Path) -> None:
    """Those with U+2581 for a space."""
    with pytest.raises(NotByteLevelError):
        read_byte_level(orjson.loads(llama2_like().to_str()))
