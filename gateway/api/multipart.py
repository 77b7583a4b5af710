"""Forms with files (RFC 7578), found in the bytes and never changed: where the value of each field is."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from ..errors import BadRequest, Headers

MAX_PARTS = 1000
_BOUNDARY = re.compile(rb';\s*boundary\s*=\s*(?:"((?:[^"\\]|\\.)*)"|([^\s;"]+))', re.IGNORECASE)
_NAME = re.compile(rb';\s*name\s*=\s*(?:"((?:[^"\\]|\\.)*)"|([^\s;"]+))', re.IGNORECASE)
_FILE_NAME = re.compile(rb";\s*filename\*?\s*=", re.IGNORECASE)
_DISPOSITION = re.compile(rb"(?:\A|\r\n)content-disposition[ \t]*:[ \t]*form-data\b([^\r\n]*)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Form:
    """`fields`: name → places of its values, as (start, end) in the body. `num_file_bytes`: size of all files.

    `first_delimiter` is where the first part begins, and `delimiter` what stands between two.
    """

    fields: Mapping[str, list[tuple[int, int]]]
    num_file_bytes: int
    first_delimiter: int
    delimiter: bytes


def read_form(body: bytes, headers: Headers) -> Form:
    """Raises BadRequest for what is no complete form."""
    delimiter = b"--" + _boundary(headers)
    start = 0 if body.startswith(delimiter) else body.find(b"\r\n" + delimiter) + 2
    if start == 1:
        raise BadRequest("The form has no part with the boundary of its Content-Type.")
    first_delimiter = start
    fields: dict[str, list[tuple[int, int]]] = {}
    num_file_bytes = 0
    for _ in range(MAX_PARTS):
        start += len(delimiter)
        if body.startswith(b"--", start):
            return Form(fields, num_file_bytes, first_delimiter, delimiter)
        line_end = body.find(b"\r\n", start)
        content = body.find(b"\r\n\r\n", line_end)
        end = body.find(b"\r\n" + delimiter, line_end)
        if line_end < 0 or body[start:line_end].strip(b" \t") or not line_end <= content <= end:
            raise BadRequest("The form is broken: a part of it is not complete.")
        content = min(content + 4, end)
        name, is_file = _described(body[line_end:content])
        if is_file:
            num_file_bytes += end - content
        elif name is not None:
            fields.setdefault(name, []).append((content, end))
        start = end + 2
    raise BadRequest(f"The form has more than {MAX_PARTS} parts.")


def _boundary(headers: Headers) -> bytes:
    for name, value in headers:
        if name == b"content-type" and value.lower().startswith(b"multipart/form-data"):
            found = _BOUNDARY.search(value)
            if found is not None and (boundary := found[1] or found[2]):
                return boundary
    raise BadRequest("This route takes a multipart/form-data body.")


def _described(part_head: bytes) -> tuple[str | None, bool]:
    """The part's name, and whether it is a file."""
    disposition = _DISPOSITION.search(part_head)
    if disposition is None:
        return None, False
    name = _NAME.search(disposition[1])
    if name is None:
        return None, False
    value = name[1] if name[1] is not None else name[2]
    return value.decode("utf-8", "replace"), _FILE_NAME.search(disposition[1]) is not None
