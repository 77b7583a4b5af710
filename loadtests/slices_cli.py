"""`tailgate-load slices`."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from .client import LoadClient
from .demo import steps
from .guard import guarded
from .machine import current_commit, describe_machine
from .report import save_json
from .slices import SCENES, measure_slices, print_slices, three_ways, to_dict


def slices(
    url: Annotated[str, typer.Option(metavar="URL", help="Of an engine that caches prefixes, such as a stock vLLM.")],
    rounds: Annotated[int, typer.Option(metavar="N", min=1)] = 3,
    long_tokens: Annotated[int, typer.Option(metavar="N", min=1000, help="Of the longest prompt.")] = 16_000,
    scene: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help=f"{', '.join(scene.name for scene in SCENES)}; all by default."),
    ] = None,
    tools: Annotated[bool, typer.Option(help="Chats with tools, so that a wrong template is seen.")] = True,
    model: Annotated[str | None, typer.Option(metavar="NAME", help="Model; the server's first by default.")] = None,
    out: Annotated[Path, typer.Option(metavar="FOLDER", help="For slices.json.")] = Path("out/slices"),
) -> None:
    """Sends short requests beside long prompts straight to an engine, through a gateway that sends prompts whole, and
    through one that cuts them into slices; the gateways are started for it.

    `one`: a long prompt, and a request of 64 tokens every half second. `late`: those begin three seconds later.
    `three`: three prompts of half the length at once. `alone`: nothing beside it.
    """
    console = Console()
    chosen = [each for each in SCENES if scene is None or each.name in scene]
    if unknown := set(scene or ()) - {each.name for each in SCENES}:
        raise typer.BadParameter(f"{', '.join(sorted(unknown))}; there are: {', '.join(each.name for each in SCENES)}")

    async def body() -> None:
        async with LoadClient(url, model or "") as client:
            name = model or await client.first_model()
        with steps(console) as on_step:
            on_step("starting two gateways", None)
            async with three_ways(url, name) as clients:
                found = await measure_slices(
                    clients,
                    long_tokens=long_tokens,
                    num_rounds=rounds,
                    scenes=chosen,
                    with_tools=tools,
                    on_step=on_step,
                )
        print_slices(found, console)
        out.mkdir(parents=True, exist_ok=True)
        result = {"commit": current_commit(), "machine": describe_machine(), "long_tokens": long_tokens}
        save_json({**result, "rounds": to_dict(found)}, out / "slices.json")

    guarded(body())
