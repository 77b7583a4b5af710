"""`bars proxy`: a proxy that can be trusted."""

import asyncio
import json
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from ..compare import OnStep
from ..errors import TargetError
from .bar import Bar, at_least, skipped
from .soak.run import NUM_REQUESTS, soak_bars

ADAPTER = Path(__file__).parents[2] / "tests" / "support" / "case_adapter.py"
RUNS = 2
RUN_LIMIT_S = 900.0


async def proxy_bars(
    on_step: OnStep,
    report: Callable[[Bar], None],
    *,
    cases: Path | None = None,
    soak_requests: int = NUM_REQUESTS,
    soak_seed: str | None = None,
) -> None:
    """Measures every bar of the topic and reports each as soon as it is known.

    `cases`: folder of a runner of gateway cases, `run_cases.py` with `handed.yaml`; None: its bars are skipped.
    `soak_requests`: of the soak, 0 for none; `soak_seed` None: a new one.
    """
    for run in range(1, RUNS + 1):
        name = f"proxy-cases-run-{run}"
        if cases is None:
            report(skipped(name, "no runner of gateway cases; name its folder with --cases"))
            continue
        on_step(f"running the gateway cases, {run} of {RUNS}", None)
        report(await case_bar(name, cases))
    if soak_requests:
        await soak_bars(on_step, report, num_requests=soak_requests, seed=soak_seed)
    else:
        report(skipped("soak", "no requests were asked for with --soak-requests"))


async def case_bar(name: str, cases: Path) -> Bar:
    """How many cases pass, of all there are; one that is skipped doesn't. Raises TargetError."""
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder) / "result.json"
        arguments = (str(cases / "handed.yaml"), "--target", str(ADAPTER), "--json", str(result))
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, str(cases / "run_cases.py"), *arguments),
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
        )
        try:
            async with asyncio.timeout(RUN_LIMIT_S):
                _, errors = await process.communicate()
        except TimeoutError:
            raise TargetError(f"the cases in {cases} took longer than {RUN_LIMIT_S:g} s") from None
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        if not result.is_file():
            raise TargetError(f"the cases in {cases} could not be run: {errors.decode('utf-8', 'replace')[-500:]}")
        rows = json.loads(result.read_text())["cases"]
    missed = [f"{row['id']}: {(row['failures'] or [row['reason']])[0]}" for row in rows if row["outcome"] != "passed"]
    return at_least(name, len(rows) - len(missed), len(rows), "; ".join(missed))
