"""Folders as they come with a model's weights: small tokenizers trained on the spot, in the forms of known families."""

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from gateway.model_tokenizer import ModelTokenizer

TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
SPECIALS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
LLAMA3_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|"
    r"\s+(?!\S)|\s+"
)
_TEXT = (
    "the quick brown fox jumps over the lazy dog, word for word, and it's we'll they've 1234 5678\n\n  def f(x):\n"
    "    return x\n    é ü 漢字 the the   \t  !!! ... "
)


def gpt2_like() -> Tokenizer:
    """Byte-level BPE with GPT-2's pieces."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    return _trained(tokenizer)


def smollm_like() -> Tokenizer:
    """Digits are cut off one by one first."""
    tokenizer = Tokenizer(models.BPE())
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), byte_level])
    return _trained(tokenizer)


def qwen_like() -> Tokenizer:
    """An expression of its own, and texts in normal form C."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = _pieces(LLAMA3_PATTERN.replace("{1,3}", ""))
    return _trained(tokenizer)


def llama3_like() -> Tokenizer:
    """Whole pieces count, merges have every split of a token, some tokens come about as whole pieces only, and a
    special token goes in front of a text."""
    ranks = {name: rank for rank, name in enumerate(sorted(_vocabulary(_trained(_split(LLAMA3_PATTERN))), key=len))}
    for whole in ("Ġzyxw", "qqqqqqq"):
        ranks[whole] = len(ranks)
    pairs = [
        (name[:at], name[at:])
        for name in ranks
        for at in range(1, len(name))
        if name[:at] in ranks and name[at:] in ranks
    ]
    pairs.sort(key=lambda pair: ranks["".join(pair)])
    tokenizer = Tokenizer(models.BPE(ranks, pairs, ignore_merges=True))
    tokenizer.pre_tokenizer = _pieces(LLAMA3_PATTERN)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(name, normalized=False) for name in SPECIALS])
    bos = SPECIALS[0]
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{bos} $A", pair=f"{bos} $A {bos} $B", special_tokens=[(bos, tokenizer.token_to_id(bos))]
    )
    return tokenizer


def llama2_like() -> Tokenizer:
    """Pieces begin with U+2581, put in front of the very first one only."""
    tokenizer = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    trainer = trainers.BpeTrainer(vocab_size=400, special_tokens=["<unk>", *SPECIALS], show_progress=False)
    tokenizer.train_from_iterator([_TEXT] * 5, trainer)
    return tokenizer


_loaded: dict[tuple[tuple[str, bytes], ...], ModelTokenizer] = {}
FAMILIES: dict[str, Callable[[], Tokenizer]] = {
    "gpt2": gpt2_like,
    "smollm": smollm_like,
    "qwen": qwen_like,
    "llama3": llama3_like,
}
"""Those that tiktoken can take over."""


@cache
def specification(family: str) -> str:
    """tokenizer.json of one of them."""
    built: str = FAMILIES[family]().to_str()
    return built


def make_folder(folder: Path, tokenizer: Tokenizer | str = "gpt2", **settings: Any) -> Path:
    """tokenizer.json of a tokenizer or a family, and tokenizer_config.json with a chat template and these settings."""
    folder.mkdir(parents=True, exist_ok=True)
    content = specification(tokenizer) if isinstance(tokenizer, str) else tokenizer.to_str()
    (folder / "tokenizer.json").write_text(content, encoding="utf-8")
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|im_end|>", "chat_template": TEMPLATE}
    (folder / "tokenizer_config.json").write_text(json.dumps(config | settings), encoding="utf-8")
    return folder


def embedded_folder(folder: Path) -> Path:
    """The embedded model's files, as the engine exports them."""
    from backend.model.gguf_file import GGUFCheckpoint
    from backend.tokenizer_files import tokenizer_from_gguf
    from backend.weights import embedded_path

    tokenizer_from_gguf(GGUFCheckpoint(embedded_path()).fields).export(folder)
    return folder


def load_once(folder: Path) -> ModelTokenizer:
    """As `ModelTokenizer.load`, where a folder with the same in it wasn't loaded before."""
    content = tuple(sorted((file.name, file.read_bytes()) for file in folder.iterdir()))
    if content not in _loaded:
        _loaded[content] = ModelTokenizer.load(folder)
    return _loaded[content]


def _split(pattern: str) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = _pieces(pattern)
    return tokenizer


def _pieces(pattern: str) -> Any:
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    return pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(pattern), "isolated"), byte_level])


def _trained(tokenizer: Tokenizer) -> Tokenizer:
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=600, special_tokens=list(SPECIALS), initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator([_TEXT] * 5, trainer)
    return tokenizer


def _vocabulary(tokenizer: Tokenizer) -> list[str]:
    return [name for name in tokenizer.get_vocab() if name not in SPECIALS]
