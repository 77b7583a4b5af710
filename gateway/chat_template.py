"""Chat templates, rendered as Hugging Face transformers renders them, in a sandbox: they come with the weights."""

import json
import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import cache
from typing import Any, NoReturn

from jinja2 import Environment, TemplateError, nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

Messages = Sequence[Mapping[str, Any]]

# A template that walks through a message's content takes a list of parts; others want plain text (vLLM's distinction).
TAKES_PARTS = re.compile(r"""for\s+\w+\s+in\s+\w+(\.content|\[['"]content['"]\])""")


class TemplateRefused(Exception):  # noqa: N818 - it is an answer, not a fault
    """The template doesn't render these messages; the message says why."""


class ChatTemplate:
    """One compiled template with the model's special tokens. Raises jinja2.TemplateSyntaxError for a broken one."""

    def __init__(self, source: str, special_tokens: Mapping[str, str]) -> None:
        self._template = _environment().from_string(source)
        self._special_tokens = dict(special_tokens)
        self._takes_parts = TAKES_PARTS.search(source) is not None

    def render(self, messages: Messages, tools: Sequence[Any] | None) -> str:
        """The prompt's text, generation prompt included. Thread-safe. Raises TemplateRefused."""
        shown = messages if self._takes_parts else [_flattened(message) for message in messages]
        try:
            return self._template.render(
                messages=shown, tools=tools, documents=None, add_generation_prompt=True, **self._special_tokens
            )
        except Exception as error:  # templates are programs: they may fail in any way
            raise TemplateRefused(f"{type(error).__name__}: {error}") from error


def _flattened(message: Mapping[str, Any]) -> Mapping[str, Any]:
    """Its text parts joined by line breaks, as vLLM does. Images and sound have no text and count nothing here."""
    content = message.get("content")
    if not isinstance(content, list):
        return message
    parts = (part.get("text") if isinstance(part, dict) else part for part in content)
    return {**message, "content": "\n".join(part for part in parts if isinstance(part, str))}


class _GenerationTag(Extension):
    """`{% generation %}` marks what an assistant wrote, for training; for a prompt it is only its content."""

    tags = {"generation"}  # noqa: RUF012 - jinja's own way

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


@cache
def _environment() -> Environment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationTag, "jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    return environment


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # Jinja's own filter escapes HTML.
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> NoReturn:
    raise TemplateError(message)


def _strftime_now(layout: str) -> str:
    return datetime.now().strftime(layout)
