"""Chat templates: Jinja as Hugging Face renders it, in a sandbox, since templates come with the weights."""

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import cache
from typing import Any, NoReturn

from jinja2 import Environment, TemplateError, TemplateSyntaxError
from jinja2.sandbox import ImmutableSandboxedEnvironment


class ChatTemplateError(ValueError):
    """There is no template, it is broken, or it refuses the messages (its own words are the message)."""


class ChatTemplate:
    """One compiled template. Rendering is thread-safe."""

    def __init__(self, source: str) -> None:
        try:
            self._template = _environment().from_string(source)
        except TemplateSyntaxError as error:
            raise ChatTemplateError(f"the chat template is broken: {error}") from error

    @staticmethod
    def missing() -> NoReturn:
        """Raise the error of a model without a template."""
        raise ChatTemplateError("the model has no chat template; use the completions route")

    def render(
        self, messages: Sequence[Mapping[str, Any]], *, add_generation_prompt: bool, arguments: Mapping[str, Any]
    ) -> str:
        """The prompt text. Raises ChatTemplateError for whatever goes wrong while rendering."""
        variables: dict[str, Any] = {"tools": None, "documents": None, **arguments}
        variables |= {"messages": messages, "add_generation_prompt": add_generation_prompt}
        try:
            return self._template.render(variables)
        except TemplateError as error:
            raise ChatTemplateError(f"the chat template refuses these messages: {error}") from error
        except (TypeError, ValueError, KeyError, AttributeError, ArithmeticError) as error:
            raise ChatTemplateError(f"the chat template can't handle these messages: {error}") from error


@cache
def _environment() -> Environment:
    # The settings and helpers that transformers gives to templates.
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
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
