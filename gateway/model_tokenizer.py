"""A model's own tokenizer and chat template, read from the files that come with its weights."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import orjson
from jinja2 import TemplateSyntaxError
from tokenizers import Tokenizer

from .chat_template import ChatTemplate, Messages, TemplateRefused

SPECIAL_TOKENS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


class TokenizerLoadError(Exception):
    """The files can't be used; says which and why."""


class TokenizeError(Exception):
    """The tokenizer failed on a text."""


class ModelTokenizer:
    """Counts tokens. Thread-safe: nothing changes after loading."""

    def __init__(self, backend: Tokenizer, template: ChatTemplate | None) -> None:
        self._backend = backend
        self._template = template

    @classmethod
    def load(cls, folder: Path) -> "ModelTokenizer":
        """From tokenizer.json, with chat_template.jinja or the template in tokenizer_config.json, where there is one.

        Takes 0.1 to 2 seconds. Raises TokenizerLoadError.
        """
        try:
            backend = Tokenizer.from_file(str(folder / "tokenizer.json"))
        except Exception as error:  # tokenizers raises bare exceptions
            raise TokenizerLoadError(f"{folder / 'tokenizer.json'}: {error}") from error
        # Counts are of whole prompts, whatever training once cut or filled up.
        backend.no_truncation()
        backend.no_padding()
        settings = _settings(folder / "tokenizer_config.json")
        source = _template_source(folder, settings)
        if source is None:
            return cls(backend, None)
        try:
            return cls(backend, ChatTemplate(source, _special_tokens(settings)))
        except TemplateSyntaxError as error:
            raise TokenizerLoadError(f"{folder}: the chat template is broken: {error}") from error

    def count_text(self, texts: Sequence[str]) -> int:
        """Tokens of completion prompts, with the special tokens that the tokenizer adds (as vLLM does).

        Raises TokenizeError.
        """
        return self._count(list(texts), add_special_tokens=True)

    def count_chat(self, messages: Messages, tools: Sequence[Any] | None) -> int:
        """Tokens of a conversation as the model sees it. Raises TemplateRefused or TokenizeError."""
        if self._template is None:
            raise TemplateRefused("the model has no chat template")
        return self._count([self._template.render(messages, tools)], add_special_tokens=False)

    def _count(self, texts: list[str], *, add_special_tokens: bool) -> int:
        # A batch, even of one, releases the interpreter lock while it works; `encode` holds it all the time. The fast
        # one leaves out character offsets, which nobody reads here: a quarter less time.
        try:
            encodings = self._backend.encode_batch_fast(texts, add_special_tokens=add_special_tokens)
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:  # a panic in native code isn't an Exception
            raise TokenizeError(f"{type(error).__name__}: {error}") from error
        return sum(len(encoding) for encoding in encodings)


def _settings(path: Path) -> Mapping[str, Any]:
    try:
        data = orjson.loads(path.read_bytes())
    except FileNotFoundError:
        return {}
    except (OSError, orjson.JSONDecodeError) as error:
        raise TokenizerLoadError(f"{path}: {error}") from error
    if not isinstance(data, dict):
        raise TokenizerLoadError(f"{path}: must hold a JSON object")
    return data


def _template_source(folder: Path, settings: Mapping[str, Any]) -> str | None:
    try:
        return (folder / "chat_template.jinja").read_text(encoding="utf-8")
    except FileNotFoundError:
        pass
    except (OSError, UnicodeDecodeError) as error:
        raise TokenizerLoadError(f"{folder / 'chat_template.jinja'}: {error}") from error
    template = settings.get("chat_template")
    if isinstance(template, list):  # several, by name
        named = {item.get("name"): item.get("template") for item in template if isinstance(item, dict)}
        template = named.get("default")
    return template if isinstance(template, str) else None


def _special_tokens(settings: Mapping[str, Any]) -> dict[str, str]:
    found = {}
    for name in SPECIAL_TOKENS:
        token = settings.get(name)
        content = token.get("content") if isinstance(token, dict) else token
        if isinstance(content, str):
            found[name] = content
    return found
