"""A model's own tokenizer and chat template, read from the files that come with its weights."""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
from jinja2 import TemplateSyntaxError
from tokenizers import Tokenizer

from .added_tokens import MAX_PARTS, AddedTokens, NotIndependentError, independent_tokens
from .byte_level import NotByteLevelError
from .chat_template import ChatTemplate, Messages, TemplateRefused
from .encoders import Encoder, TokenizersEncoder, tiktoken_encoder
from .tokenizer_sample import sample_prompts, sample_texts

TOKENIZER, SETTINGS, TEMPLATE = "tokenizer.json", "tokenizer_config.json", "chat_template.jinja"
"""What is read of a model's folder; the first must be there."""
SPECIAL_TOKENS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


class TokenizerLoadError(Exception):
    """The files can't be used; says which and why."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt, cut where tokenization can't cross.

    `parts` are counted each by itself; `whole` are its texts where there would be too many parts. `num_special` tokens
    are known already.
    """

    parts: list[str]
    whole: list[str]
    num_special: int


class ModelTokenizer:
    """Renders prompts and cuts them into parts. Thread-safe: nothing changes after loading.

    `encoder` counts parts, `exact` whole texts; `why` says why the first isn't the quicker one (None: it is).
    """

    def __init__(
        self,
        encoder: Encoder,
        exact: TokenizersEncoder,
        *,
        added: AddedTokens,
        num_framing: int,
        template: ChatTemplate | None,
        why: str | None = None,
    ) -> None:
        """`num_framing`: special tokens put in front of a text and behind it."""
        self.encoder = encoder
        self.exact = exact
        self.why = why
        self._added = added
        self._num_framing = num_framing
        self._template = template

    @classmethod
    def load(cls, folder: Path) -> "ModelTokenizer":
        """From tokenizer.json, with chat_template.jinja or the template in tokenizer_config.json, where there is one.

        Takes 0.5 to 4 seconds, most of it to make sure of the quicker encoder. Raises TokenizerLoadError.
        """
        try:
            content = (folder / TOKENIZER).read_bytes()
            backend = Tokenizer.from_str(content.decode())
        except Exception as error:  # tokenizers raises bare exceptions
            raise TokenizerLoadError(f"{folder / TOKENIZER}: {error}") from error
        # Counts are of whole prompts, whatever training once cut or filled up.
        backend.no_truncation()
        backend.no_padding()
        settings = _settings(folder / SETTINGS)
        source = _template_source(folder, settings)
        try:
            template = None if source is None else ChatTemplate(source, _special_tokens(settings))
        except TemplateSyntaxError as error:
            raise TokenizerLoadError(f"{folder}: the chat template is broken: {error}") from error
        exact = TokenizersEncoder(backend)
        encoder: Encoder = exact
        added, why = AddedTokens(()), None
        spec = orjson.loads(content)
        try:
            added = _checked(independent_tokens(spec), spec, exact)
            quick = tiktoken_encoder(spec, exact)
            quick.check(backend, [part for text in sample_texts() if (cut := added.split(text)) for part in cut[0]])
            encoder = quick
        except (NotIndependentError, NotByteLevelError) as error:
            why = str(error)
        num_framing = backend.num_special_tokens_to_add(is_pair=False)
        return cls(encoder, exact, added=added, num_framing=num_framing, template=template, why=why)

    def texts(self, texts: Sequence[str]) -> Prompt:
        """Completion prompts, with the special tokens that the tokenizer adds (as vLLM does)."""
        return self._prompt(texts, len(texts) * self._num_framing)

    def chat(self, messages: Messages, tools: Sequence[Any] | None) -> Prompt:
        """A conversation as the model sees it. Raises TemplateRefused."""
        if self._template is None:
            raise TemplateRefused("the model has no chat template")
        return self._prompt([self._template.render(messages, tools)], 0)

    def _prompt(self, texts: Sequence[str], num_special: int) -> Prompt:
        all_parts: list[str] = []
        num_added = 0
        for text in texts:
            cut = self._added.split(text)
            if cut is None or len(all_parts) + len(cut[0]) > MAX_PARTS:
                return Prompt([], list(texts), num_special)
            all_parts += cut[0]
            num_added += cut[1]
        return Prompt(all_parts, [], num_special + num_added)


def _checked(added: AddedTokens, spec: Mapping[str, Any], exact: TokenizersEncoder) -> AddedTokens:
    """Raises NotIndependentError where parts don't add up to the whole."""
    prompts = sample_prompts([token["content"] for token in spec.get("added_tokens") or ()])
    cuts = [added.split(prompt) or ([prompt], 0) for prompt in prompts]
    of_parts = iter(exact.counts([part for parts, _ in cuts for part in parts]))
    for tokens, (parts, num_added) in zip(exact.counts(prompts), cuts, strict=True):
        if tokens != num_added + sum(itertools.islice(of_parts, len(parts))):
            raise NotIndependentError("what stands between added tokens isn't tokenized by itself")
    return added


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


def versions_of(folder: Path) -> tuple[tuple[int, int, int] | None, ...]:
    """What tells the files from those of the same names before: equal where none has changed."""

    def version(name: str) -> tuple[int, int, int] | None:
        try:
            found = (folder / name).stat()
        except OSError:
            return None
        return found.st_mtime_ns, found.st_size, found.st_ino

    return tuple(version(name) for name in (TOKENIZER, SETTINGS, TEMPLATE))


def _template_source(folder: Path, settings: Mapping[str, Any]) -> str | None:
    try:
        return (folder / TEMPLATE).read_text(encoding="utf-8")
    except FileNotFoundError:
        pass
    except (OSError, UnicodeDecodeError) as error:
        raise TokenizerLoadError(f"{folder / TEMPLATE}: {error}") from error
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
