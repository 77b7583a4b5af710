"""`bars main`: the main job, end to end, on this machine."""

from collections.abc import Callable

from ..client import LoadClient
from ..compare import OnStep
from ..demo import bundled_system, compare_on
from ..prompts import PromptMaker
from .bad_input import bad_input_bar
from .bar import Bar
from .cuts import cut_bars
from .decision import decision_bar
from .demo_bars import demo_bars, total_bar
from .planted import planted_bar
from .real_client import real_client_bar
from .start import start_bars

SEEDS = (1, 2, 3)


async def main_bars(on_step: OnStep, report: Callable[[Bar], None]) -> None:
    """Measures every bar of the topic and reports each as soon as it is known; the quick ones come first."""
    on_step("deciding with 10,000 waiting", None)
    report(decision_bar())
    report(decision_bar(num_tenants=1000))
    on_step("planting 50 ms in the gateway's layers", None)
    report(await planted_bar())
    on_step("starting everything with `tailgate up`", None)
    for bar in await start_bars():
        report(bar)
    on_step("starting engine and gateway", None)
    async with bundled_system() as system:
        async with (
            LoadClient(system.engine_url, system.model) as engine,
            LoadClient(system.gateway_url, system.model) as through,
        ):
            maker = await PromptMaker.calibrate(engine)
            on_step("asking with the openai package", None)
            report(await real_client_bar(system.gateway_url, system.model))
            on_step("sending what must be refused", None)
            report(await bad_input_bar(through))
            on_step("comparing clocks", None)
            report(await total_bar(through, maker))
            on_step("hanging up on 30 % of 500 requests", None)
            for bar in await cut_bars(through, engine, maker):
                report(bar)
        for bar in demo_bars(await compare_on(system, list(SEEDS), on_step)):
            report(bar)
