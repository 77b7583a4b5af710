"""Which bytes a vocabulary entry stands for, for the two alphabets in use."""

import re
from functools import cache


class TokenizerError(ValueError):
    """The tokenizer can't be read or isn't supported; the message says which part and what is known."""


def byte_level_bytes(token: str) -> bytes:
    """GPT-2's alphabet: each character stands for one byte."""
    alphabet = _byte_of_character()
    try:
        return bytes(alphabet[character] for character in token)
    except KeyError:
        return token.encode()


def sentencepiece_bytes(token: str) -> bytes:
    """SentencePiece with byte fallback: U+2581 is a space, <0x41> the byte of that number."""
    if fallback := re.fullmatch(r"<0x([0-9A-Fa-f]{2})>", token):
        return bytes.fromhex(fallback[1])
    return token.replace("\u2581", " ").encode()


@cache
def _byte_of_character() -> dict[str, int]:
    # Printable Latin-1 bytes stand for themselves, the others follow from U+0100 on (GPT-2's encoder.py).
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in set(printable)]
    alphabet = {chr(byte): byte for byte in printable}
    return alphabet | {chr(256 + i): byte for i, byte in enumerate(others)}
