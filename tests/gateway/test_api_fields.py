"""What each route's body says to scheduling: the model, what is counted, the bound of what comes out."""

import json
from typing import Any

import pytest

from gateway.api.anthropic import read_messages
from gateway.api.audio import AUDIO_BYTES_PER_TOKEN, read_audio
from gateway.api.fields import PROMPT_EMBEDS_BYTES_PER_TOKEN, RequestFields, read_completions
from gateway.api.openai_fields import read_embeddings, read_model, read_responses, read_texts, read_tokenize
from gateway.api.routes import ROUTES, Reader
from gateway.api.tgi import is_overloaded, read_generate, read_generate_stream, read_root
from gateway.errors import BadRequest
from tests.support.fake_tgi import tgi_event


def read(reader: Reader, **fields: Any) -> RequestFields:
    return reader(json.dumps(fields).encode(), [], 64)


def test_responses_are_counted_as_a_conversation() -> None:
    """Instructions, text or items, tool calls and their results; unknown items and pictures count nothing."""
    fields = read(
        read_responses,
        model="m",
        instructions="be kind",
        input=[
            {"role": "developer", "content": "d"},
            {
                "role": "user",
                "content": [{"type": "input_text", "text": "a"}, {"type": "input_image", "image_url": "x"}],
            },
            {"type": "reasoning", "summary": []},
            {"type": "function_call", "name": "f", "arguments": '{"x":1}'},
            {"type": "function_call_output", "output": "r"},
        ],
        stream=True,
        max_output_tokens=7,
        tools=[{"type": "function"}],
    )
    assert fields.messages == [
        {"role": "system", "content": "be kind"},
        {"role": "system", "content": "d"},
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": 'f\n{"x":1}'},
        {"role": "tool", "content": "r"},
    ]
    assert (fields.model, fields.stream, fields.max_output_tokens, fields.tools) == (
        "m",
        True,
        7,
        [{"type": "function"}],
    )
    assert read(read_responses, input="hi").messages == [{"role": "user", "content": "hi"}]
    assert read(read_responses, previous_response_id="r").messages is None


def test_anthropics_messages_are_counted_as_a_conversation() -> None:
    """System text or blocks, tool uses and results, thoughts; tools in the shape that chat templates know."""
    fields = read(
        read_messages,
        model="m",
        system=[{"type": "text", "text": "s"}],
        messages=[
            {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "image", "source": {"data": "x"}}]},
            {
                "role": "assistant",
                "content": [
                    {"type": "thinking", "thinking": "hm"},
                    {"type": "tool_use", "name": "f", "input": {"x": 1}},
                ],
            },
            {"role": "user", "content": [{"type": "tool_result", "content": [{"type": "text", "text": "r"}]}]},
        ],
        tools=[{"name": "f", "description": "d", "input_schema": {"type": "object"}}, 3],
        max_tokens=5,
    )
    assert fields.messages == [
        {"role": "system", "content": "s"},
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": 'hm\nf\n{"x":1}'},
        {"role": "user", "content": "r"},
    ]
    function = {"name": "f", "description": "d", "parameters": {"type": "object"}}
    assert fields.tools == [{"type": "function", "function": function}]
    assert fields.max_output_tokens == 5
    assert read(read_messages, messages=[{"role": "user", "content": "a"}], system="s").messages == [
        {"role": "system", "content": "s"},
        {"role": "user", "content": "a"},
    ]


def test_embeddings_count_all_their_inputs_and_bring_nothing_out() -> None:
    """Text, ids, lists of either, vLLM's messages; parts with pictures go by the size of the body."""
    for given in ("a", ["a", "b"], [1, 2], [[1], [2, 3]]):
        fields = read(read_embeddings, model="m", input=given)
        assert (fields.prompt, fields.max_output_tokens) == (given, 0)
    assert read(read_embeddings, messages=[{"role": "user", "content": "a"}]).messages is not None
    odds: tuple[Any, ...] = ([{"content": []}], {"x": 1}, None)
    for odd in odds:
        fields = read(read_embeddings, input=odd)
        assert (fields.prompt, fields.messages, fields.estimated_tokens) == (None, None, None)
    with pytest.raises(BadRequest):
        read(read_embeddings, input=[1, "a"])


def test_completions_with_several_prompts_and_choices() -> None:
    """The bound is over all; embeddings in place of a prompt are estimated from their size."""
    fields = read(read_completions, prompt=["a", "b", "c"], n=2, best_of=4, max_tokens=10)
    assert (fields.num_choices, fields.max_output_tokens) == (12, 120)
    embeds = "A" * 3 * PROMPT_EMBEDS_BYTES_PER_TOKEN
    assert read(read_completions, prompt_embeds=embeds).estimated_tokens == 3
    assert read(read_completions, prompt_embeds=["A"]).estimated_tokens == 1


def test_adapters_beside_the_model_are_known() -> None:
    """One, several or none; of another type they are an error."""
    assert read(read_completions, prompt="a", lora_path="x").adapters == ("x",)
    assert read(read_completions, prompt="a", lora_path=["x", None, "y"]).adapters == ("x", "y")
    assert read(read_embeddings, input="a", lora_path=None).adapters == ()
    assert read(read_generate, inputs="a", parameters={"adapter_id": "x"}).adapters == ("x",)
    with pytest.raises(BadRequest):
        read(read_completions, prompt="a", lora_path=3)


def test_texts_and_light_bodies() -> None:
    """Only the model, and that nothing is generated."""
    fields = read(read_texts, model="m", query="q", documents=["a"])
    assert (fields.model, fields.max_output_tokens, fields.prompt) == ("m", 0, None)
    assert read(read_model, model="m", anything=[1]).model == "m"
    assert read(read_tokenize, prompt="a").feature == "tokenize"
    assert read(read_tokenize, inputs="a").feature == "tgi"
    assert read(read_tokenize, content="a").feature == "llama-tokenize"


def test_tgis_generate() -> None:
    """The bound is over all of best_of; the route or the body says whether it streams."""
    fields = read(read_generate, inputs="a", parameters={"max_new_tokens": 5, "best_of": 3}, stream=True)
    assert (fields.prompt, fields.max_output_tokens, fields.stream) == ("a", 15, False)
    assert read(read_generate_stream, inputs="a", parameters=None).stream
    assert read(read_root, inputs="a", stream=True).stream
    assert not read(read_root, inputs="a").stream


def test_tgis_overload_is_known_by_the_first_event() -> None:
    """And by nothing that a model could write."""
    overloaded = tgi_event({"error": "Model is overloaded", "error_type": "overloaded"})
    assert is_overloaded(overloaded)
    assert not is_overloaded(tgi_event({"error": "x", "error_type": "validation"}))
    assert not is_overloaded(tgi_event({"token": {"text": '"error_type":"overloaded"'}}) + overloaded)


def test_a_sound_is_estimated_from_its_size() -> None:
    """The model and the wish to stream come from the form's fields, never from the file."""
    sound = b'name="model"' + bytes(1000 * AUDIO_BYTES_PER_TOKEN - 12)
    body = (
        b'--b\r\nContent-Disposition: form-data; name="file"; filename="model"\r\n\r\n' + sound + b"\r\n"
        b'--b\r\ncontent-disposition: form-data; name="model"\r\n\r\nw\xc3\xa9\r\n'
        b'--b\r\nContent-Disposition: form-data; name="stream"\r\n\r\ntrue\r\n--b--\r\n'
    )
    headers = [(b"content-type", b"multipart/form-data; boundary=b")]
    fields = read_audio(body, headers, 64)
    assert (fields.model, fields.stream, fields.estimated_tokens) == ("w\u00e9", True, 1000)
    with pytest.raises(BadRequest):
        read_audio(body.replace(b"\xc3", b"\xff"), headers, 64)


BROKEN: list[tuple[Reader, dict[str, Any], str]] = [
    (read_responses, {"input": 3}, "input"),
    (read_responses, {"input": ["a"]}, "input[0]"),
    (read_responses, {"input": [{"role": 3}]}, "input[0].role"),
    (read_responses, {"input": "a", "max_output_tokens": "9"}, "max_output_tokens"),
    (read_messages, {"messages": []}, "messages"),
    (read_messages, {"messages": [{"role": "user", "content": 3}]}, "messages[0].content"),
    (read_messages, {"messages": [{"role": "user"}], "tools": {}}, "tools"),
    (read_embeddings, {"input": []}, "input"),
    (read_generate, {}, "inputs"),
    (read_generate, {"inputs": ["a"]}, "inputs"),
    (read_generate, {"inputs": "a", "parameters": []}, "parameters"),
    (read_generate, {"inputs": "a", "parameters": {"best_of": 0}}, "best_of"),
    (read_texts, {"model": 3}, "model"),
    (read_model, {"model": []}, "model"),
]


@pytest.mark.parametrize(("reader", "fields", "param"), BROKEN)
def test_wrong_members_are_named(reader: Reader, fields: dict[str, Any], param: str) -> None:
    """A 400 that says which member it is."""
    with pytest.raises(BadRequest) as raised:
        read(reader, **fields)
    assert raised.value.param == param


@pytest.mark.parametrize("route", [route for route in ROUTES if route.method == "POST"], ids=lambda route: route.path)
@pytest.mark.parametrize(
    "body", [b"", b"[]", b'"a"', b"\xff\xfe{\x00}\x00", b"{}{}", b"[" * 100_000, b'{"a":"\\ud800"}']
)
def test_every_reader_refuses_what_is_no_object(route: Any, body: bytes) -> None:
    """BadRequest each time, never another exception."""
    with pytest.raises(BadRequest):
        route.read(body, [(b"content-type", b"application/json")], 64)
