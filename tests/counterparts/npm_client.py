"""The npm package `openai`, run by node."""

import asyncio
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from .entrance import Entrance

FOLDER = Path(__file__).parent / "npm"
DEADLINE_S = 60.0

needs_npm_package = pytest.mark.skipif(
    shutil.which("node") is None or not (FOLDER / "node_modules" / "openai").is_dir(),
    reason="the npm package openai isn't installed: `make npm` does it, where there is npm and its registry",
)


async def told_by(entrance: Entrance, *scenarios: str) -> dict[str, Any]:
    """What each of these found, in their order."""
    process = await asyncio.create_subprocess_exec(
        *("node", "clients.mjs", entrance.url, entrance.model, *scenarios),
        cwd=FOLDER,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    async with asyncio.timeout(DEADLINE_S):
        out, err = await process.communicate()
    assert process.returncode == 0, err.decode()
    told: dict[str, Any] = json.loads(out)
    return told
