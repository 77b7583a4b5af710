"""Prompts of every shape → token ids, on a thread pool; what can't fit is refused before it is tokenised."""

import asyncio
from collections.abc import Mapping, Sequence
from concurrent.futures import Executor
from typing import Any, Protocol

from ..chat_template import ChatTemplateError
from .errors import ApiError, bad_request
from .fields import Message

TOO_LONG = "context_length_exceeded"


class Tokenizer(Protocol):
    """What the API needs of the model's tokenizer. Called on a thread pool."""

    @property
    def vocab_size(self) -> int: ...
    def encode(self, text: str, *, add_special_tokens: bool = False) -> list[int]: ...
    def fewest_tokens(self, text: str) -> int: ...
    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str: ...
    def bytes_of(self, token_id: int, *, skip_special_tokens: bool = True) -> bytes: ...
    def apply_chat_template(
        self, messages: Sequence[Mapping[str, Any]], *, add_generation_prompt: bool = True
    ) -> str: ...


class Prompts:
    """Tokenises on `pool`, so that a long prompt doesn't stop the event loop."""

    def __init__(self, tokenizer: Tokenizer, pool: Executor, max_model_len: int) -> None:
        self.vocab_size = tokenizer.vocab_size
        self._tokenizer = tokenizer
        self._pool = pool
        self._max_model_len = max_model_len

    async def chat_tokens(self, messages: Sequence[Message], *, add_generation_prompt: bool | None) -> list[int]:
        """Messages through the chat template."""
        plain = [_plain_message(message, position) for position, message in enumerate(messages)]

        def render_and_encode() -> list[int]:
            try:
                text = self._tokenizer.apply_chat_template(
                    plain, add_generation_prompt=add_generation_prompt is not False
                )
            except ChatTemplateError as error:
                raise bad_request(f"the model's chat template refuses these messages: {error}", "messages") from error
            return self._encode(text, "messages", add_special_tokens=False)

        return await asyncio.get_running_loop().run_in_executor(self._pool, render_and_encode)

    async def text_tokens(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """Plain text."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(
            self._pool, lambda: self._encode(text, "prompt", add_special_tokens=add_special_tokens)
        )

    def _encode(self, text: str, param: str, *, add_special_tokens: bool) -> list[int]:
        """Raises a 400 for what can't fit: tokenising megabytes takes seconds, and gigabytes."""
        fewest_tokens = self._tokenizer.fewest_tokens(text)
        if fewest_tokens > self._max_model_len:
            raise self.too_long(f"at least {fewest_tokens}", param)
        return self._tokenizer.encode(text, add_special_tokens=add_special_tokens)

    def too_long(self, num_tokens: str, param: str) -> ApiError:
        """The 400 for a prompt of so many tokens."""
        return bad_request(
            f"the prompt has {num_tokens} tokens; this model's context is {self._max_model_len} tokens, "
            "and the answer needs at least one of them",
            param,
            TOO_LONG,
        )


def check_ids(token_ids: Sequence[int], vocab_size: int, param: str = "stop_token_ids") -> Sequence[int]:
    for token_id in token_ids:
        if not 0 <= token_id < vocab_size:
            raise bad_request(f"{param}: token id {token_id} is outside the vocabulary of {vocab_size}", param)
    return token_ids


def read_prompts(prompt: str | list[Any], vocab_size: int) -> list[str | Sequence[int]]:
    """OpenAI's four shapes: a text, texts, token ids, lists of token ids."""
    if isinstance(prompt, str):
        return [prompt]
    if not prompt:
        raise bad_request("prompt: must not be empty", "prompt")
    if all(type(item) is int for item in prompt):
        return [check_ids(prompt, vocab_size, "prompt")]
    prompts: list[str | Sequence[int]] = []
    for item in prompt:
        if isinstance(item, list) and all(type(token_id) is int for token_id in item):
            prompts.append(check_ids(item, vocab_size, "prompt"))
        elif isinstance(item, str):
            prompts.append(item)
        else:
            raise bad_request("prompt: must be a text, a list of texts, token ids, or lists of token ids", "prompt")
    if len({type(item) for item in prompts}) > 1:
        raise bad_request("prompt: texts and token ids can't be mixed", "prompt")
    return prompts


def _plain_message(message: Message, position: int) -> dict[str, Any]:
    """A message with its text parts joined."""
    content = message.content
    if isinstance(content, list):
        texts = []
        for index, part in enumerate(content):
            param = f"messages.{position}.content.{index}"
            if part.get("type") != "text":
                raise bad_request(f"{param}: only parts of type text are supported", param, "unsupported_content")
            if not isinstance(part.get("text"), str):
                raise bad_request(f"{param}.text: must be a string", f"{param}.text")
            texts.append(part["text"])
        content = "".join(texts)
    if content is None:
        content = ""
    plain: dict[str, Any] = {"role": message.role, "content": content}
    if message.name is not None:
        plain["name"] = message.name
    return plain
