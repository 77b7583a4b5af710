"""Text to token ids and back, and the chat template."""

import codecs
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import tokenizers

from .chat_template import ChatTemplate
from .token_bounds import token_bounds


class Tokenizer:
    """A model's tokenizer.

    eos_token_ids: every token that ends an answer. vocab_size: ids are below it. token_bytes: a function from a
    token's text in the vocabulary to the bytes it stands for (`token_bytes.py`). Thread-safe.
    """

    def __init__(
        self,
        backend: tokenizers.Tokenizer,
        *,
        token_bytes: Callable[[str], bytes],
        eos_token_ids: Iterable[int],
        bos_token: str | None,
        eos_token: str | None,
        chat_template: str | None,
    ) -> None:
        self._backend = backend
        self._token_bytes = token_bytes
        self.eos_token_ids = frozenset(eos_token_ids)
        self.bos_token = bos_token
        self.eos_token = eos_token
        self.chat_template = chat_template
        self.vocab_size = max(backend.get_vocab(with_added_tokens=True).values(), default=-1) + 1
        added = backend.get_added_tokens_decoder()
        self._special_ids = frozenset(token_id for token_id, token in added.items() if token.special)
        self._added = {token_id: token.content.encode() for token_id, token in added.items()}
        self._template = ChatTemplate(chat_template) if chat_template is not None else None
        self._bounds = token_bounds(backend, lambda token_id: self.bytes_of(token_id, skip_special_tokens=False))

    @property
    def has_chat_template(self) -> bool:
        """Whether `apply_chat_template` works."""
        return self._template is not None

    def encode(self, text: str, *, add_special_tokens: bool = False) -> list[int]:
        """Token ids of text. Special tokens spelled out in it count as such."""
        # Only the batch call releases the interpreter lock while it works.
        [encoding] = self._backend.encode_batch_fast([text], add_special_tokens=add_special_tokens)
        ids: list[int] = encoding.ids
        return ids

    def fewest_tokens(self, text: str) -> int:
        """Tokens a text has at least, told without tokenising it; 0 where that can't be told."""
        return 0 if self._bounds is None else self._bounds.fewest_tokens(text)

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """Text of token ids; bytes that aren't UTF-8 become U+FFFD."""
        text: str = self._backend.decode(list(ids), skip_special_tokens=skip_special_tokens)
        return text

    def bytes_of(self, token_id: int, *, skip_special_tokens: bool = True) -> bytes:
        """The bytes one token adds to the text; none for ids that no token has (padding of the embedding table)."""
        if token_id in self._special_ids and skip_special_tokens:
            return b""
        added = self._added.get(token_id)
        if added is not None:
            return added
        token = self._backend.id_to_token(token_id)
        return b"" if token is None else self._token_bytes(token)

    def apply_chat_template(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool = True,
        arguments: Mapping[str, Any] | None = None,
    ) -> str:
        """The conversation as the model was trained to see it. `arguments` are further variables of the template.

        Raises ChatTemplateError when the model has no template or the template refuses the messages.
        """
        template = self._template or ChatTemplate.missing()
        variables = {"bos_token": self.bos_token, "eos_token": self.eos_token}
        return template.render(
            messages,
            add_generation_prompt=add_generation_prompt,
            arguments={**{key: value for key, value in variables.items() if value is not None}, **(arguments or {})},
        )

    def export(self, directory: Path) -> None:
        """Write tokenizer.json and tokenizer_config.json, so that others count tokens as this engine does."""
        directory.mkdir(parents=True, exist_ok=True)
        self._backend.save(str(directory / "tokenizer.json"))
        settings = {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "bos_token": self.bos_token,
            "eos_token": self.eos_token,
            "chat_template": self.chat_template,
        }
        present = {key: value for key, value in settings.items() if value is not None}
        text = json.dumps(present, ensure_ascii=False, indent=2)
        (directory / "tokenizer_config.json").write_text(text + "\n", encoding="utf-8")


class Detokenizer:
    """Turns one sequence's tokens into text as they come, never splitting a character.

    The pieces that `push` and `flush` return join to what `decode` makes of the whole sequence, except that the space
    which SentencePiece vocabularies put before a first word is kept: what comes continues a prompt.
    """

    def __init__(self, tokenizer: Tokenizer, *, skip_special_tokens: bool = True) -> None:
        self._tokenizer = tokenizer
        self._skip_special_tokens = skip_special_tokens
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def push(self, token_id: int) -> str:
        """Text that became certain with this token; empty while a character is incomplete."""
        return self._decoder.decode(self._tokenizer.bytes_of(token_id, skip_special_tokens=self._skip_special_tokens))

    def flush(self) -> str:
        """What is left at the end: U+FFFD for a character that never got complete, else nothing."""
        return self._decoder.decode(b"", final=True)
