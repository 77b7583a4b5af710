"""Time planted in a layer, by the gateway's own tests: how many of them hold."""

import asyncio
import re
import sys
from pathlib import Path

from .bar import Bar, at_least

_LAYERS = ("tokenize", "queue", "connect")


async def planted_bar() -> Bar:
    """Runs the tests that plant 50 ms in tokenize, queue and connect; the value is how many of the three pass.

    Needs a source tree with the test suite; without one the bar falls short.
    """
    root = Path(__file__).parents[2]
    target = root / "tests" / "gateway" / "test_layers.py"
    if not target.is_file():
        return at_least("layers-planted-50-ms-found", None, len(_LAYERS), "no test suite beside the package")
    selection = " or ".join(f"test_time_planted_in_{layer}" for layer in _LAYERS)
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "pytest", str(target), "-k", selection, "-p", "no:cacheprovider", "--no-header",
        cwd=root, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip
    output, _ = await process.communicate()
    passed = re.search(r"(\d+) passed", output.decode("utf-8", "replace"))
    return at_least("layers-planted-50-ms-found", float(passed.group(1)) if passed else 0.0, float(len(_LAYERS)))
