"""A new configuration for a gateway that runs, read again when the process is told to (SIGHUP).

As a whole or not at all: one that is wrong is refused, with its errors in the log, and the one from before stays.
"""

import asyncio
import logging
from collections.abc import Callable, Iterator

from pydantic import BaseModel

from .app import Gateway
from .config import GatewayConfig
from .config_errors import ConfigError
from .model_tokenizer import TokenizerLoadError

logger = logging.getLogger(__name__)

AT_START = ("listen", "admin.listen", "timing_ring")
"""Read once, when the gateway starts."""


class Reloader:
    """`read` gives the configuration as it is now: it raises ConfigError, and is called on a thread."""

    def __init__(self, gateway: Gateway, read: Callable[[], GatewayConfig]) -> None:
        self._gateway = gateway
        self._read = read

    async def __call__(self) -> None:
        """Reads and uses it. What comes of it is in the log."""
        gateway = self._gateway
        try:
            config = await asyncio.to_thread(self._read)
            changed = list(differences(gateway.config, config))
            fixed = [key for key in changed if any(f"{key}.".startswith(f"{path}.") for path in AT_START)]
            await gateway.reload(config)
        except (ConfigError, TokenizerLoadError) as error:
            logger.error("the configuration from before stays, since the new one was refused: %s", error)
            return
        logging.getLogger().setLevel(config.log.level.upper())
        for key in fixed:
            logger.warning("%s has changed, which takes a restart: it is as before", key)
        used = [key for key in changed if key not in fixed]
        logger.info("the configuration was read again; changed: %s", ", ".join(used) or "nothing")


def differences(before: BaseModel, after: BaseModel, path: str = "") -> Iterator[str]:
    """The keys that differ, such as `timeouts.drain_s`; lists and mappings as a whole, by their name."""
    for name in type(before).model_fields:
        one, other = getattr(before, name), getattr(after, name)
        if isinstance(one, BaseModel) and isinstance(other, BaseModel):
            yield from differences(one, other, f"{path}{name}.")
        elif one != other:
            yield f"{path}{name}"
