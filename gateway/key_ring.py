"""Who calls, and on whose account: the keys of a file that is watched, or everybody where none is configured."""

import asyncio
import logging
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from policies.limits import Account

from .attribution import Record
from .config_errors import ConfigError
from .errors import Headers, Unauthorized
from .key_file import load_key_file
from .keys import EVERYBODY, NO_LIMITS, Key, KeyTable, presented
from .limits import UNLIMITED, Quota, Rates, Unlimited

logger = logging.getLogger(__name__)

LOOK_EVERY_S = 1.0

_Version = tuple[int, int, int, int] | None


class KeyRing:
    """The keys that count now, and an account for each that has limits.

    A file that changes is read again within a second. One that is wrong is refused, with its errors in the log, and the
    keys from before stay. What running requests hold is kept: an account lives as long as its key is in the file, and
    as long as a request holds something of it. All methods belong to the event loop.
    """

    def __init__(self, path: Path | None, clock: Callable[[], float], *, assumed_output_tokens: int) -> None:
        """Reads the file. Raises ConfigError. `path` None: there are no keys, and everybody may do everything."""
        self._path = path
        self._clock = clock
        self._assumed_output_tokens = assumed_output_tokens
        self._table: KeyTable | None = None
        self._rates: dict[str, Rates] = {}  # by key id
        self._task: asyncio.Task[None] | None = None
        self._seen: _Version = None
        self.is_refused = False
        """Whether the file as it is now was refused."""
        if path is not None:
            self._seen = _version(path)
            self._use(load_key_file(path).table())

    @property
    def has_keys(self) -> bool:
        """Whether a key is needed at all."""
        return self._table is not None

    @property
    def num_keys(self) -> int:
        return 0 if self._table is None else len(self._table.keys)

    @property
    def num_in_flight(self) -> int:
        """Requests being served whose keys have limits."""
        return sum(rates.account.num_in_flight for rates in self._rates.values())

    @property
    def in_flight_tokens(self) -> int:
        """Tokens that they have reserved."""
        return sum(rates.account.in_flight_tokens for rates in self._rates.values())

    def identify(self, headers: Headers) -> Key:
        """Whoever sent these headers (names in lower case). Raises Unauthorized."""
        if self._table is None:
            return EVERYBODY
        key = self._table.find(presented(headers))
        if key is None:
            raise Unauthorized("The API key is not valid.")
        return key

    def admit(self, headers: Headers, record: Record) -> Key:
        """As `identify`, and writes down whose request this is, and what may be told."""
        if self._table is None:
            return EVERYBODY
        # Until it is known who calls.
        record.has_diagnostics = record.sees_cached_tokens = False
        key = self.identify(headers)
        record.key_id, record.tenant = key.key_id, key.tenant
        record.has_diagnostics, record.sees_cached_tokens = key.has_diagnostics, key.sees_cached_tokens
        return key

    def quota(self, key: Key, record: Record) -> Unlimited:
        """The scope in which a request of this key is served."""
        rates = self._rates.get(key.key_id or "")
        if rates is None:
            return UNLIMITED
        return Quota(rates, record, assumed_output_tokens=self._assumed_output_tokens)

    def start(self) -> None:
        """Begins watching the file. Call on the loop."""
        self._task = asyncio.create_task(self._watch(), name="keys")

    async def aclose(self) -> None:
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait([task])

    async def load(self, path: Path | None) -> "LoadedKeys":
        """A file for `use`. Raises ConfigError."""
        if path is None:
            return LoadedKeys(None, None, None)
        seen = await asyncio.to_thread(_version, path)
        return LoadedKeys(path, seen, await asyncio.to_thread(lambda: load_key_file(path).table()))

    def use(self, loaded: "LoadedKeys", *, assumed_output_tokens: int) -> None:
        """From now on these keys, from that file. What running requests hold of accounts that go on is kept."""
        self._assumed_output_tokens = assumed_output_tokens
        self._path, self._seen, self.is_refused = loaded.path, loaded.seen, False
        self._use(loaded.table)

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(LOOK_EVERY_S)
            try:
                await self.refresh()
            except Exception:  # whatever it is, a key that is revoked later must not stay
                logger.exception("looking at the key file failed")

    async def refresh(self) -> None:
        """Reads the file if it isn't the one that was read last. Never raises for what is in it."""
        path = self._path
        if path is None:
            return
        seen = await asyncio.to_thread(_version, path)
        if seen == self._seen:
            return
        self._seen = seen
        try:
            table = await asyncio.to_thread(lambda: load_key_file(path).table())
        except ConfigError as error:
            self.is_refused = True
            logger.error("the keys from before stay, since the key file was refused: %s", error)
            return
        self.is_refused = False
        self._use(table)
        logger.info("%d keys read from %s", self.num_keys, path)

    def _use(self, table: KeyTable | None) -> None:
        now_s = self._clock()
        present: dict[str, Rates] = {}
        for key in () if table is None else table.keys:
            if key.key_id is None or key.limits == NO_LIMITS:
                continue
            rates = self._rates.get(key.key_id)
            if rates is None:
                rates = Rates(Account(key.limits, now_s), self._clock)
            else:
                rates.account.set_spec(key.limits, now_s)
            present[key.key_id] = rates
        self._table, self._rates = table, present


@dataclass(frozen=True, slots=True)
class LoadedKeys:
    """The keys of a file, and which state of it; all None: there are no keys."""

    path: Path | None
    seen: _Version
    table: KeyTable | None


def _version(path: Path) -> _Version:
    """What changes when the file does; None where it can't be looked at."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return (found.st_mtime_ns, found.st_ctime_ns, found.st_size, found.st_ino)
