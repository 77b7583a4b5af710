"""Chat templates render as in transformers, and can't do more than render."""

import json
from datetime import datetime
from pathlib import Path

import pytest
from transformers import PreTrainedTokenizerFast

from backend.chat_template import ChatTemplate, ChatTemplateError
from backend.tokenizer_files import tokenizer_from_huggingface
from tests.backend.tiny_models import write_tokenizer

MESSAGES = [
    {"role": "system", "content": "Be <brief> & kind."},
    {"role": "user", "content": "Hé 日本\n  indented"},
    {"role": "assistant", "content": ""},
]
TEMPLATES = [
    "{% for m in messages %}\n  {% if m.role == 'user' %}\nU: {{ m.content }}\n  {% endif %}\n{% endfor %}\nend",
    "{{ messages | tojson }}|{{ messages[0] | tojson(indent=2) }}",
    "{% for m in messages %}{% if loop.index > 1 %}{% break %}{% endif %}{{ m['content'] }}{% endfor %}",
    "{% if tools %}T{% endif %}{{ bos_token }}{{ eos_token }}{% if add_generation_prompt %}G{% endif %}",
    "{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{% endfor %}{{ ns.n }} {{ extra }}",
    "{{ messages[1].content.split('\\n')[-1].strip() | upper }}{{ strftime_now('%Y') }}",
]


@pytest.mark.parametrize("template", TEMPLATES)
def test_renders_as_transformers_does(template: str, tmp_path: Path) -> None:
    """White-space control, tojson, break, namespaces, special tokens, further arguments: the same text."""
    write_tokenizer(tmp_path)
    settings = {"eos_token": "</s>", "bos_token": "<|im_end|>", "chat_template": template}
    (tmp_path / "tokenizer_config.json").write_text(
        json.dumps(settings | {"tokenizer_class": "PreTrainedTokenizerFast"})
    )
    theirs = PreTrainedTokenizerFast.from_pretrained(tmp_path)
    ours = tokenizer_from_huggingface(tmp_path)
    for prompted in (True, False):
        expected = theirs.apply_chat_template(MESSAGES, tokenize=False, add_generation_prompt=prompted, extra="x")
        assert ours.apply_chat_template(MESSAGES, add_generation_prompt=prompted, arguments={"extra": "x"}) == expected


def render(source: str) -> str:
    """A template with the usual messages."""
    return ChatTemplate(source).render(MESSAGES, add_generation_prompt=True, arguments={})


def test_the_templates_own_refusal_is_the_error() -> None:
    """`raise_exception` in a template reaches the caller with its words."""
    with pytest.raises(ChatTemplateError, match="roles must alternate"):
        render("{{ raise_exception('roles must alternate') }}")


@pytest.mark.parametrize(
    "source",
    [
        "{{ messages[9].content }}",
        "{{ messages[0].content + 1 }}",
        "{{ 1 / 0 }}",
        "{{ messages.append(1) }}",
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ strftime_now.__globals__.keys() }}",
        "{% for i in range(10000000) %}{% endfor %}",
        "{% include 'x' %}",
    ],
)
def test_failing_and_escaping_templates_are_errors(source: str) -> None:
    """Messages a template can't handle, and templates that reach out of the sandbox, end in a ChatTemplateError."""
    with pytest.raises(ChatTemplateError):
        render(source)


def test_broken_and_missing_templates_are_errors(tmp_path: Path) -> None:
    """A syntax error says so when the template is read; a model without a template when it is used."""
    with pytest.raises(ChatTemplateError, match="is broken"):
        ChatTemplate("{% if %}")
    write_tokenizer(tmp_path)
    (tmp_path / "tokenizer_config.json").unlink()
    with pytest.raises(ChatTemplateError, match="no chat template"):
        tokenizer_from_huggingface(tmp_path).apply_chat_template(MESSAGES)


def test_strftime_now_is_today() -> None:
    """Templates may write the date."""
    assert render("{{ strftime_now('%Y') }}") in {str(datetime.now().year), str(datetime.now().year - 1)}
