"""Another model name in a body: those bytes change, and no others."""

import json
import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.api.fields import read_chat
from gateway.api.model_name import in_form, in_json, model_places
from gateway.api.multipart import read_form
from gateway.errors import BadRequest

_READER = json.JSONDecoder(object_pairs_hook=list, parse_int=str, parse_float=str)
NUMBERS = st.sampled_from(["123456789012345678901234567890", "-0.0", "1e-400", "1.10", "1E5", "0"])
STRINGS = st.one_of(
    st.text(max_size=12).map(json.dumps),
    st.text(max_size=6).map(lambda text: json.dumps(text, ensure_ascii=False)),
    st.sampled_from([r'"model"', r'"\"model\": \"x\""', r'"\\"', r'"\\\""', r'"a{b[c,d:e"', r'"é\/"', r'"mo\u0064el"']),
)
SPACES = st.sampled_from(["", " ", "\n\t", "\r\n  "])
KEYS = st.one_of(STRINGS, st.sampled_from(['"model"', r'"\u006dodel"', r'"mode\u006C"', '"Model"', '"model "', '""']))


@st.composite
def arrays(draw: st.DrawFn, values: st.SearchStrategy[str]) -> str:
    space = draw(SPACES)
    return "[" + space + f"{space},{space}".join(draw(st.lists(values, max_size=3))) + space + "]"


@st.composite
def objects(draw: st.DrawFn, values: st.SearchStrategy[str]) -> str:
    members = draw(st.lists(st.tuples(KEYS, SPACES, values, SPACES), max_size=5))
    space = draw(SPACES)
    inner = ",".join(f"{space}{key}{a}:{b}{value}{a}" for key, a, value, b in members)
    return "{" + inner + space + "}"


VALUES = st.recursive(
    st.one_of(NUMBERS, STRINGS, st.sampled_from(["null", "true", "false"])),
    lambda inner: st.one_of(arrays(inner), objects(inner)),
    max_leaves=8,
)


def pairs(text: bytes) -> list[tuple[str, Any]]:
    """The members of the outermost object, repeated ones too, with numbers as they are written."""
    found: list[tuple[str, Any]] = _READER.decode(text.decode())
    return found


@settings(max_examples=400, deadline=None)
@given(objects(VALUES))
def test_exactly_the_models_value_is_found(text: str) -> None:
    """Every member of that name at the top, however it is escaped, and none further in: as a JSON reader has it."""
    body = text.encode()
    places = model_places(body)
    wanted = [value for key, value in pairs(body) if key == "model"]
    found = [pairs(b'{"x":' + body[a:b] + b"}")[0][1] for a, b in places]
    assert found == wanted
    assert all(body[a:b] == body[a:b].strip() for a, b in places)


@settings(max_examples=400, deadline=None)
@given(objects(VALUES), st.text(min_size=1, max_size=8))
def test_another_name_changes_nothing_else(text: str, name: str) -> None:
    """The members stay in order with their values, but for the model's, which comes first where it was missing."""
    body = text.encode()
    before, after = pairs(body), pairs(in_json(body, [], name))
    if any(key == "model" for key, _ in before):
        assert after == [(key, name if key == "model" else value) for key, value in before]
        rest, kept = [], in_json(body, [], name)
        start = 0
        for a, b in model_places(body):
            rest.append(body[start:a])
            start = b
        assert b"".join(rest) + body[start:] == b"".join(_without(kept, model_places(kept)))
    else:
        assert after == [("model", name), *before]
        assert in_json(body, [], name).endswith(body[body.index(b"{") + 1 :])


def _without(body: bytes, places: list[tuple[int, int]]) -> list[bytes]:
    starts, ends = [0, *(b for _, b in places)], [*(a for a, _ in places), len(body)]
    return [body[a:b] for a, b in zip(starts, ends, strict=True)]


def test_odd_bodies_keep_their_bytes() -> None:
    """Big integers, floats no double can hold, white space, duplicates, a null model."""
    body = b'\n{"a":1e999 , "model" : "x","a":[{"model":1}],"model":null,"n":123456789012345678901234567890}\n'
    expected = body.replace(b'"x"', b'"new"').replace(b"null", b'"new"')
    assert in_json(body, [], "new") == expected
    assert in_json(b" { } ", [], "n") == b' {"model":"n" } '
    assert in_json(b'{ "a":1}', [], 'q"\u00e9') == '{"model":"q\\"\u00e9", "a":1}'.encode()


def test_numbers_beyond_doubles_are_read_and_the_rest_is_refused() -> None:
    """JSON allows them; half a surrogate pair, NaN and other text stay errors even beside one."""
    chat = '"messages":[{"role":"user","content":"hi"}]'
    fields = read_chat(f'{{"model":"m","x":1e999,"seed":{"9" * 400},"max_tokens":5,{chat}}}'.encode(), [], 64)
    assert (fields.model, fields.max_output_tokens) == ("m", 5)
    for broken in ('"y":"\\ud83d"', '"y":NaN', '"y":', '"y":"\x01"', f'"y":{"[" * 100_000}'):
        with pytest.raises(BadRequest):
            read_chat(f'{{"x":1e999,{broken},{chat}}}'.encode(), [], 64)


FORM_HEADERS = [(b"content-type", b'multipart/form-data; charset=utf-8; boundary="x y:z"')]


def form(*parts: tuple[str, bytes], boundary: bytes = b"x y:z") -> bytes:
    """Parts by their Content-Disposition parameters."""
    out = b"".join(
        b"--%b\r\nContent-Disposition: form-data; %b\r\n\r\n%b\r\n" % (boundary, described.encode(), content)
        for described, content in parts
    )
    return out + b"--%b--\r\n" % boundary


def test_a_forms_model_is_replaced_in_place() -> None:
    """The file's bytes stay, even where they look like a field."""
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    sound = random.Random(seed).randbytes(5000) + b'\r\n\r\nname="model"\r\n\r\n'
    parts = [('name="file"; filename="a.wav"', sound), ('name="model"', b"old"), ("name=language", b"en")]
    body = form(*parts)
    read = read_form(body, FORM_HEADERS)
    assert read.num_file_bytes == len(sound)
    assert [body[a:b] for a, b in read.fields["language"]] == [b"en"]
    assert in_form(body, FORM_HEADERS, "new") == form(parts[0], ('name="model"', b"new"), parts[2])
    without = form(parts[0], parts[2])
    assert in_form(without, FORM_HEADERS, "new") == form(('name="model"', b"new"), parts[0], parts[2])
    preamble = b"for old readers\r\n"
    assert in_form(preamble + without, FORM_HEADERS, "new") == preamble + form(('name="model"', b"new"), *parts[::2])


@pytest.mark.parametrize(
    ("body", "content_type"),
    [
        (b"", b"multipart/form-data; boundary=b"),
        (b"--b\r\n", b"multipart/form-data; boundary=b"),
        (form(("name=model", b"m"), boundary=b"b")[:-6], b"multipart/form-data; boundary=b"),
        (b"--bad\r\n\r\n\r\n--b--", b"multipart/form-data; boundary=b"),
        (b"--b\r\nno end of head\r\n--b--", b"multipart/form-data; boundary=b"),
        (form(*[("name=x", b"")] * 1001, boundary=b"b"), b"multipart/form-data; boundary=b"),
        (form(("name=model", b"m")), b"multipart/form-data"),
        (b"{}", b"application/json"),
    ],
)
def test_broken_forms_are_refused(body: bytes, content_type: bytes) -> None:
    """No boundary, no end, no head of a part, too many parts: never a guess."""
    with pytest.raises(BadRequest):
        read_form(body, [(b"content-type", content_type)])


def test_parts_without_a_name_are_passed_over() -> None:
    """No Content-Disposition, another one, or none with a name: nothing of them is read."""
    nameless = b"--b\r\ncontent-type: text/plain\r\n\r\nx\r\n--b\r\nContent-Disposition: form-data\r\n\r\ny\r\n"
    body = nameless + form(("name=model", b"m"), boundary=b"b")
    headers = [(b"content-type", b"text/plain"), (b"content-type", b"multipart/form-data; boundary=b")]
    assert list(read_form(body, headers).fields) == ["model"]
    assert in_form(body, headers, "new") == nameless + form(("name=model", b"new"), boundary=b"b")
