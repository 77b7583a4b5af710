"""Errors in OpenAI's shape."""

from typing import Any

from pydantic import ValidationError


class ApiError(Exception):
    """An answer with an error status. `param` names the body field that is at fault."""

    def __init__(self, status: int, message: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.param = param
        self.code = code

    def to_dict(self) -> dict[str, Any]:
        kind = "server_error" if self.status >= 500 else "invalid_request_error"
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}


def bad_request(message: str, param: str | None = None, code: str | None = None) -> ApiError:
    """A 400."""
    return ApiError(400, message, param=param, code=code)


def unsupported(field: str, detail: str = "this engine does not support it") -> ApiError:
    """A 400 for a field whose meaning this engine can't honour."""
    return ApiError(400, f"{field}: {detail}", param=field, code="unsupported_parameter")


def from_validation(error: ValidationError) -> ApiError:
    """The first thing pydantic found, with the path to it. Values sent by the client are not repeated."""
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    # Union branches appear in the path by type name; the client knows only its own keys and positions.
    path = [str(part) for part in first["loc"] if not _is_branch(part)]
    param = ".".join(path) or None
    message = first["msg"]
    return bad_request(f"{param}: {message}" if param else message, param)


def _is_branch(part: str | int) -> bool:
    return isinstance(part, str) and (part.endswith("]") or part in {"str", "int", "list", "TextPart"})
