"""Set-up for all tests."""

from fnmatch import fnmatchcase
from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling, Scheduling

SHARING = (
    "tests/backend/test_embedded_server.py",
    "tests/backend/test_embedded_engine.py",
    "tests/backend/test_embedded_model.py",
    "tests/counterparts/test_*_engine.py",
    "tests/counterparts/test_*_llama.py",
)
"""Files whose tests share what takes seconds to start: all tests of such a pattern run in one process."""


class _ByWhatIsShared(LoadScopeScheduling):  # type: ignore[misc]  # it has no types
    """Each test by itself, but for those that share something. (Marked groups don't work with pytest 9.2.)"""

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        return next((pattern for pattern in SHARING if fnmatchcase(file, pattern)), nodeid)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Scheduling | None:
    """A hook of pytest-xdist: who runs what, where nothing else was asked for."""
    return _ByWhatIsShared(config, log) if config.getvalue("dist") == "load" else None
