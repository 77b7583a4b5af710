"""Values of a configuration: checked, and in one spelling."""

import os
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator, Field, SecretStr, ValidationInfo

from .config_errors import ConfigError
from .key_file import load_key_file
from .replica_kinds import ALL_FEATURES

URL_FORM = "http://HOST[:PORT] or https://HOST[:PORT], without path, query or user"
DEFAULT_PORTS = {"http": 80, "https": 443}


def _normal_url(text: str) -> str:
    """The URL in one spelling (lower-case scheme and host, port written out only where needed)."""
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError as error:
        raise ValueError(f"must be {URL_FORM} ({error})") from error
    extras = parts.path not in ("", "/") or parts.query or parts.fragment or "@" in parts.netloc
    host = parts.hostname
    unprintable = any(character <= " " or character == "\x7f" for character in text)
    if parts.scheme not in DEFAULT_PORTS or not host or extras or port == 0 or unprintable:
        raise ValueError(f"must be {URL_FORM}")
    shown_host = f"[{host}]" if ":" in host else host
    shown_port = "" if port in (None, DEFAULT_PORTS[parts.scheme]) else f":{port}"
    return f"{parts.scheme}://{shown_host}{shown_port}"


def _origin(text: str) -> str:
    """As browsers write it: without a slash at the end."""
    return text if text == "*" else _normal_url(text)


def _against_base_dir(value: object, info: ValidationInfo) -> object:
    base_dir = (info.context or {}).get("base_dir")
    return Path(base_dir) / value if isinstance(value, str) and base_dir is not None else value


def _has_tokenizer(path: Path) -> Path:
    if not (path / "tokenizer.json").is_file():
        raise ValueError("must be a folder with tokenizer.json in it")
    return path


def _has_good_keys(path: Path) -> Path:
    try:
        load_key_file(path)
    except ConfigError as error:
        raise ValueError("; ".join(error.problems)) from None
    return path


def _known_features(names: tuple[str, ...]) -> tuple[str, ...]:
    if unknown := set(names) - ALL_FEATURES:
        raise ValueError(f"knows no {', '.join(sorted(unknown))}; allowed: {', '.join(sorted(ALL_FEATURES))}")
    return names


def _is_header_value(text: str) -> bool:
    return bool(text) and text == text.strip() and text.isascii() and text.isprintable()


def _header_value(secret: SecretStr) -> SecretStr:
    text = secret.get_secret_value()
    if not _is_header_value(text):
        raise ValueError('must be a whole header value in printable ASCII, such as "Bearer KEY"')
    if "${" in text:
        raise ValueError("must be the header itself: variables aren't filled in; name one in `authorization_env`")
    return secret


def _holds_header_value(name: str) -> str:
    text = os.environ.get(name)
    if text is None:
        raise ValueError("must name an environment variable, and none of this name is set")
    if not _is_header_value(text):
        raise ValueError('must name a variable that holds a whole header value in printable ASCII: "Bearer KEY"')
    return name


def log_target(value: str | None, info: ValidationInfo) -> str | None:
    """None, "stderr", or the path of a file that can be appended to, as far as that can be told beforehand."""
    if value in (None, "stderr"):
        return value
    path = Path(str(_against_base_dir(value, info)))
    if path.is_dir():
        raise ValueError('must be a file, "stderr" or null; this is a folder')
    if not path.parent.is_dir():
        raise ValueError(f"must be in a folder that exists; {path.parent} doesn't")
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise ValueError("must be a file that this user may write")
    return str(path)


Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=1)]
Name = Annotated[str, Field(min_length=1, max_length=256)]
Names = Annotated[tuple[Name, ...], Field(strict=False)]
Features = Annotated[Names, AfterValidator(_known_features)]
Url = Annotated[str, AfterValidator(_normal_url)]
Origin = Annotated[str, AfterValidator(_origin)]
TokenizerPath = Annotated[Path, Field(strict=False), BeforeValidator(_against_base_dir), AfterValidator(_has_tokenizer)]
KeyFilePath = Annotated[Path, Field(strict=False), BeforeValidator(_against_base_dir), AfterValidator(_has_good_keys)]
HeaderValue = Annotated[SecretStr, AfterValidator(_header_value)]
HeaderVariable = Annotated[str, AfterValidator(_holds_header_value)]
