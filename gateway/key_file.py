"""The file that API keys are kept in: JSON, a key a line, hashes instead of keys.

    {"salt": "HEX", "keys": [
     {"id": "k1f…", "tenant": "acme", "hash": "HEX", "created": "2026-01-31", "models": ["m1"], "requests_per_min": 60}
    ]}

It may be edited by hand; an unknown member, a wrong value or one given twice is an error that names it. Writing
replaces the file as a whole, under a lock, so that nobody reads half of it and no key is lost to another writer.
"""

import fcntl
import json
import os
import re
import stat
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import date
from pathlib import Path
from typing import Annotated, Any

import orjson
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, field_validator

from policies.limits import LimitSpec
from policies.types import DECLARABLE_LANES, Lane

from .config_errors import ConfigError, Problem, Problems, describe
from .keys import DIGEST_BYTES, SALT_BYTES, TAG_BYTES, Key, KeyTable, digest_of, new_salt

MAX_FILE_BYTES = 64 * 1024 * 1024
_MAX_COUNT = 10**12


def _hex(num_bytes: int, what: str) -> Callable[[object], object]:
    form = re.compile(f"[0-9a-f]{{{2 * num_bytes}}}")

    def check(value: object) -> object:
        if not isinstance(value, str) or not form.fullmatch(value):
            raise ValueError(f"must be {2 * num_bytes} hexadecimal digits: {what}")
        return value

    return check


def _some(lanes: tuple[Lane, ...]) -> tuple[Lane, ...]:
    if not lanes:
        raise ValueError("must have at least one lane")
    return lanes


def _lane(value: object) -> object:
    for lane in DECLARABLE_LANES:
        if value == lane.value:
            return lane
    raise ValueError("must be one of: " + ", ".join(lane.value for lane in DECLARABLE_LANES))


Hash = Annotated[str, BeforeValidator(_hex(DIGEST_BYTES, "the hash of a key, never the key"))]
Salt = Annotated[str, BeforeValidator(_hex(SALT_BYTES, "random"))]
KeyName = Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]{1,64}$")]
Count = Annotated[int, Field(ge=1, le=_MAX_COUNT)]
LaneName = Annotated[Lane, BeforeValidator(_lane)]
Model = Annotated[str, Field(min_length=1, max_length=256)]


class _Closed(BaseModel):
    model_config = ConfigDict(
        extra="forbid", frozen=True, strict=True, use_attribute_docstrings=True, hide_input_in_errors=True
    )


class KeyEntry(_Closed):
    """One key. What isn't given isn't limited."""

    id: KeyName
    """Short name, by which it is listed, logged and revoked."""
    tenant: KeyName
    """Whose requests share statistics, fairness and metrics; several keys may have the same."""
    hash: Hash = Field(repr=False)
    created: date | None = Field(default=None, strict=False)
    note: str | None = Field(default=None, max_length=200, pattern=r"^[^\x00-\x1f\x7f]*$")
    models: Annotated[tuple[Model, ...], Field(strict=False)] | None = None
    """Models, or aliases, that it may use."""
    lanes: Annotated[tuple[LaneName, ...], Field(strict=False), AfterValidator(_some)] | None = None
    """Lanes that it may use; without `interactive`, the best of them is asked for where a request names none."""
    priority_ceiling: Annotated[int, Field(ge=-_MAX_COUNT, le=_MAX_COUNT)] | None = None
    """Highest priority of its requests, higher going first (the opposite sign of `priority` in a body)."""
    requests_per_min: Count | None = None
    tokens_per_min: Count | None = None
    """Prompt and output tokens together."""
    max_in_flight_requests: Count | None = None
    max_in_flight_tokens: Count | None = None
    diagnostics: bool = False
    """Whether it is told replica, policy and reason."""
    admin: bool = False
    """Whether it may read the metrics and every request's timing."""

    def key(self, *, is_only_tenant: bool) -> Key:
        """As the gateway uses it."""
        return Key(
            self.id,
            self.tenant,
            digest=bytes.fromhex(self.hash),
            models=None if self.models is None else frozenset(self.models),
            lanes=None if self.lanes is None else frozenset(self.lanes),
            priority_ceiling=self.priority_ceiling,
            limits=LimitSpec(
                self.requests_per_min, self.tokens_per_min, self.max_in_flight_requests, self.max_in_flight_tokens
            ),
            has_diagnostics=self.diagnostics or self.admin,
            sees_cached_tokens=self.admin or (self.diagnostics and is_only_tenant),
            is_admin=self.admin,
        )


class KeyFile(_Closed):
    """A whole file."""

    salt: Salt = Field(repr=False)
    keys: Annotated[tuple[KeyEntry, ...], Field(strict=False)] = ()

    @field_validator("keys")
    @classmethod
    def _distinct(cls, entries: tuple[KeyEntry, ...]) -> tuple[KeyEntry, ...]:
        problems: list[Problem] = []
        for member, size in (("id", None), ("hash", 2 * TAG_BYTES)):
            seen: set[str] = set()
            for index, entry in enumerate(entries):
                value = getattr(entry, member)[:size]
                if value in seen:
                    problems.append(Problem((index, member), value, "is used before: it must be unique"))
                seen.add(value)
        if problems:
            raise Problems(problems)
        return entries

    def table(self) -> KeyTable:
        """The keys as the gateway uses them."""
        is_only_tenant = len({entry.tenant for entry in self.keys}) < 2
        return KeyTable([entry.key(is_only_tenant=is_only_tenant) for entry in self.keys], bytes.fromhex(self.salt))

    def digest_of(self, secret: str) -> str:
        """What this file stores of a key."""
        return digest_of(secret.encode(), bytes.fromhex(self.salt)).hex()

    def text(self) -> bytes:
        """The file's content, a key a line."""
        lines = [orjson.dumps(entry.model_dump(mode="json", exclude_defaults=True)) for entry in self.keys]
        return b'{"salt": "%b", "keys": [\n %b\n]}\n' % (self.salt.encode(), b",\n ".join(lines))


def new_key_file() -> KeyFile:
    """One without keys, and with a salt of its own."""
    return KeyFile(salt=new_salt().hex())


def parse_key_file(content: bytes, *, source: str) -> KeyFile:
    """Raises ConfigError with every problem found. `source` names the file in errors."""
    try:
        data = json.loads(content, object_pairs_hook=_members)
    except _RepeatedError as error:
        raise ConfigError(source, [f"{error}: is given twice: a member must be unique"]) from None
    except json.JSONDecodeError as error:
        raise ConfigError(source, [f"isn't JSON: {error.msg} (line {error.lineno})"]) from None
    except (UnicodeDecodeError, RecursionError):
        raise ConfigError(source, ["isn't JSON"]) from None
    if not isinstance(data, dict):
        raise ConfigError(source, ["must be an object with the members: " + ", ".join(KeyFile.model_fields)])
    try:
        return KeyFile.model_validate(data)
    except ValidationError as error:
        raise ConfigError(source, describe(error, KeyFile)) from None


def load_key_file(path: Path) -> KeyFile:
    """Raises ConfigError with every problem found."""
    try:
        with path.open("rb") as file:
            content = file.read(MAX_FILE_BYTES + 1)
    except FileNotFoundError:
        hint = f"doesn't exist; make it with: tailgate keys create --file {path} --tenant NAME"
        raise ConfigError(str(path), [hint]) from None
    except OSError as error:
        raise ConfigError(str(path), [f"can't be read: {error.strerror}"]) from error
    if len(content) > MAX_FILE_BYTES:
        raise ConfigError(str(path), [f"is larger than {MAX_FILE_BYTES} bytes"])
    return parse_key_file(content, source=str(path))


def change_key_file(path: Path, change: Callable[[KeyFile], KeyFile], *, may_create: bool = False) -> KeyFile:
    """Replaces the file by what `change` makes of it.

    Raises ConfigError: it can't be read or written, or what it would be isn't valid.
    """
    path = Path(os.path.realpath(path))
    try:
        with _locked(path.parent):
            is_new = may_create and not path.exists()
            before = new_key_file() if is_new else load_key_file(path)
            # Checked as if it had been read, so that nothing is written that would be refused.
            after = parse_key_file(change(before).text(), source=str(path))
            _replace(path, after.text(), None if is_new else path.stat())
    except OSError as error:
        raise ConfigError(str(path), [f"can't be written: {error.strerror}"]) from error
    return after


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """One writer at a time; the lock is the folder's, so that none is left lying about."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _replace(path: Path, content: bytes, before: os.stat_result | None) -> None:
    """With the owner and the mode of the file before; a new one is its maker's alone."""
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "wb") as file:
            if before is not None:
                os.fchmod(descriptor, stat.S_IMODE(before.st_mode))
                if (before.st_uid, before.st_gid) != (os.geteuid(), os.getegid()):
                    os.fchown(descriptor, before.st_uid, before.st_gid)
            file.write(content)
            file.flush()
            os.fsync(descriptor)
        os.replace(name, path)
    except BaseException:
        os.unlink(name)
        raise


class _RepeatedError(ValueError):
    """The name of a member that is given twice."""


def _members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) < len(pairs):
        names = [name for name, _ in pairs]
        raise _RepeatedError(next(name for name in names if names.count(name) > 1))
    return members
