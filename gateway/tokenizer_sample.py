"""Texts on which two ways of tokenizing must agree before one may stand for the other.

Every character that expressions may class differently, the corners of the usual expressions, and mixtures of them.
"""

import random
from collections.abc import Iterator, Sequence

FRAGMENTS = (
    "The quick brown fox", " jumps", "over", " the lazy dog.", " I'll", " we've", "it's", "THEY'RE", " don'T", "'ſ",
    "\u2019s", " 1", "12", "3456789", " 3.14159", "1,000,000", "²½Ⅻ", "٣٤٥", "०१", "0x7f", "v2", "a1b2", " ", "  ",
    "   ", "\t", " \t ", "\n", "\n\n", "\r\n", " \n", "\n ", "\u00a0", "\u3000", "\u2028", "\x0b\x0c", "\x85",
    "\u200b", "\ufeff", "!", "?!", " ...", "…", "---", " {", "})", " =>", "://", "_", "__init__", "#", " // ", "<|",
    "|>", "<", ">", "</s>", "def f(x):\n    return x\n", "if (a && b) {\n\t\treturn;\n\t}\n",
    '{"key": [1, 2, null]}', "https://example.org/a?b=c&d=%20", "naïve café", "nai\u0308ve cafe\u0301",
    "Å\u0327\u030a", "Straße", "İstanbul ıi", "Привет, мир", "Ελληνικά", "עברית", "العربية", "हिन्दी", "ภาษาไทย",
    "한국어", "\u1112\u1161\u11ab", "日本語テスト", "你好，世界", "𠮷野家", "𝔘𝔫𝔦𝔠𝔬𝔡𝔢", "🦊",
    "👩\u200d👩\u200d👧\u200d👦", "🇫🇷🇩🇪", "👍🏽", "☕\ufe0f", "\u0301", "\ufffd", "\ue000", "\U0010fffd",
)  # fmt: skip
_RUNS = (" ", "\n", "\t", "\r\n", "a", "é", "A", "1", "=", "-", "漢", "🦊", " a", "\n ", " \n")
_NUM_MIXTURES = 300
# Ideographs, syllables, surrogates and private use: thousands of characters of one class each.
_LARGE_BLOCKS = ((0x3400, 0x9FFF), (0xAC00, 0xD7A3), (0xD800, 0xF8FF), (0x17000, 0x18CFF), (0x20000, 0x10FFFF))
_SAMPLES_OF_BLOCKS = (
    0x3400,
    0x9FFF,
    0xAC00,
    0xD7A3,
    0xE000,
    0x17000,
    0x18CFF,
    0x20000,
    0x2A6DF,
    0x30000,
    0xE0001,
    0x10FFFD,
)
_NUM_PER_TEXT = 512


def sample_texts() -> list[str]:
    """About 0.4 MB, the same each time."""
    rng = random.Random(0)
    mixtures = ["".join(rng.choices(FRAGMENTS, k=rng.randrange(1, 40))) for _ in range(_NUM_MIXTURES)]
    runs = [run * length for run in _RUNS for length in (1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 33, 64, 100, 257)]
    framed = [f"x{run}y {run}1{run}" for run in runs if len(run) < 10]
    return ["", *FRAGMENTS, *mixtures, *runs, *framed, *_every_character()]


def sample_prompts(added: Sequence[str]) -> list[str]:
    """Texts with these added tokens in them: between any two fragments, side by side, at both ends, and cut short."""
    if not added:
        return []
    rng = random.Random(1)
    shown = rng.sample(list(added), min(len(added), 200))
    prompts = ["".join(shown), "".join(f"{token} {token}\n{token}a" for token in shown)]
    prompts += [token + fragment + token for token in shown[:8] for fragment in FRAGMENTS]
    for _ in range(_NUM_MIXTURES):
        pieces = []
        for _ in range(rng.randrange(1, 12)):
            token = rng.choice(shown)
            pieces += [token if rng.random() < 0.8 else token[:-1], *rng.choices(FRAGMENTS, k=rng.randrange(4))]
        prompts.append("".join(pieces))
    return prompts


def _every_character() -> Iterator[str]:
    """Of those in wide use, and every fourth of the next plane: between letters, and between a space and a digit.

    Code points without a character are among them: newer Unicode may have one.
    """
    planes = (*range(0x10000), *range(0x10000, 0x20000, 4))
    points = [point for point in planes if not any(first <= point <= last for first, last in _LARGE_BLOCKS)]
    points += _SAMPLES_OF_BLOCKS
    for start in range(0, len(points), _NUM_PER_TEXT):
        yield "".join(f"x{chr(point)}y {chr(point)}1" for point in points[start : start + _NUM_PER_TEXT])
