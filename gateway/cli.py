"""`tailgate`: the command line of the gateway."""

import logging
import sys
from contextlib import ExitStack
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from .app import build_app
from .config import GatewayConfig, load_config, parse_config
from .config_errors import ConfigError
from .engine_process import EngineError
from .key_file import load_key_file
from .keys_cli import app as keys_app
from .reload import Reloader
from .server import ListenError, bind, serve, url_of
from .summary import summary
from .up import UpOptions, run_up

ABOUT = """\
A scheduling gateway in front of LLM servers: short interactive calls stop waiting for long ones, and every request
says where its time went.

\b
Try it, with a small model of its own:
    tailgate up
\b
Put it in front of a server that runs, such as vLLM:
    tailgate serve --replica http://gpu1:8000
\b
With everything configured:
    tailgate check gateway.yaml && tailgate serve --config gateway.yaml
"""

app = typer.Typer(
    help=ABOUT,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"max_content_width": 110},
)

app.add_typer(keys_app, name="keys")

HOST = typer.Option(metavar="ADDRESS", help="Where to listen; 0.0.0.0 for every interface.")
PORT = typer.Option(metavar="PORT", min=0, max=65535, help="0 picks a free one.")
ACCESS_LOG = typer.Option(
    metavar="FILE", help='Where the access log goes, a JSON line per request: a file or "stderr".'
)


def _show_version(is_asked: bool) -> None:
    if is_asked:
        print(f"tailgate {version('tailgate')}")
        raise typer.Exit


@app.callback()
def commands(
    _version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    pass


@app.command("serve")
def serve_command(
    config: Annotated[Path | None, typer.Option(metavar="FILE", help="YAML file; see: tailgate check --help")] = None,
    replica: Annotated[
        list[str] | None,
        typer.Option(metavar="URL", help="A server to put the gateway in front of, without a file. May be repeated."),
    ] = None,
    keys: Annotated[
        Path | None, typer.Option(metavar="FILE", help="API keys that clients need; see: tailgate keys --help")
    ] = None,
    host: Annotated[str | None, HOST] = None,
    port: Annotated[int | None, PORT] = None,
    access_log: Annotated[str | None, ACCESS_LOG] = None,
) -> None:
    """Serve, in front of servers that run already.

    \b
    tailgate serve --replica http://gpu1:8000 --replica http://gpu2:8000
    tailgate serve --config gateway.yaml --port 9000
    tailgate serve --replica http://gpu1:8000 --keys keys.json

    vLLM, TGI, SGLang, llama.cpp and other OpenAI-compatible servers are recognised by themselves. With --replica, a
    request that names no model means the only one there is, if there is only one; a file says so by itself
    (default_model, only_model_is_default). Prints
    `tailgate ready url=URL` to stdout once it listens; GET /readyz says when a replica is available. SIGTERM and
    Ctrl-C let running answers finish (timeouts.drain_s); a second one stops at once. SIGHUP reads the configuration
    again, dropping nothing: one with errors is refused and logged, and what takes a restart (listen, admin.listen,
    timing_ring) is said. It opens the access log anew, too.
    """
    if (config is None) == (not replica):
        raise typer.BadParameter("give either --config FILE or --replica URL")

    def read() -> GatewayConfig:
        if config is not None:
            found = load_config(config)
        else:
            without_file = {"replicas": [{"url": url} for url in replica or ()], "only_model_is_default": True}
            found = parse_config(without_file, source="--replica")
        update: dict[str, object] = {}
        if keys is not None:
            load_key_file(keys)
            update["keys"] = keys
        given = {key: value for key, value in (("host", host), ("port", port)) if value is not None}
        update["listen"] = found.listen.model_copy(update=given)
        if access_log is not None:
            update["log"] = found.log.model_copy(update={"access": access_log})
        return found.model_copy(update=update)

    try:
        resolved = read()
    except ConfigError as error:
        _fail(str(error))
    _log_to_stderr(resolved.log.level)
    gateway = build_app(resolved)
    with ExitStack() as closing:
        try:
            socks = [closing.enter_context(bind(resolved.listen.host, resolved.listen.port))]
            text = f"tailgate ready url={url_of(socks[0])}"
            if resolved.admin.listen is not None:
                inside = closing.enter_context(bind(resolved.admin.listen.host, resolved.admin.listen.port))
                gateway.access.port = inside.getsockname()[1]
                if gateway.access.port == socks[0].getsockname()[1]:
                    raise ListenError("admin.listen must have a port of its own")
                socks.append(inside)
                text += f" admin={url_of(inside)}"
        except ListenError as error:
            _fail(str(error))

        async def announce() -> None:
            print(text, flush=True)

        reload = Reloader(gateway, read)
        is_good = serve(gateway, gateway.front, *socks, on_listening=announce, on_hangup=reload)
    raise typer.Exit(0 if is_good else 1)


@app.command()
def check(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="YAML.")],
) -> None:
    """Check a configuration: shows what it resolves to, or every error in it (exit code 1).

    \b
    The smallest file:
        replicas:
          - url: http://gpu1:8000
    \b
    A larger one:
        listen: {host: 0.0.0.0, port: 8080}
        replicas:
          - {url: http://gpu1:8000, id: gpu1, max_in_flight_tokens: 200000}
          - {url: http://gpu2:8000, id: gpu2, authorization: Bearer KEY}
        models:
          - {name: Qwen/Qwen3-8B, aliases: [gpt-4o-mini], tokenizer: /models/qwen3-8b}
        default_model: Qwen/Qwen3-8B
        keys: keys.json
        admin: {listen: {host: 127.0.0.1, port: 9090}}
        policy: {ordering: adaptive, flows: vtc}
        timeouts: {queue_s: 120, drain_s: 60}
    \b
    Every key there is, with its default and what it means: deploy/gateway.yaml
    """
    try:
        config = load_config(file)
    except ConfigError as error:
        _fail(str(error))
    print(f"{file} is good\n{summary(config)}")


@app.command(context_settings={"allow_extra_args": True})
def up(
    context: typer.Context,
    host: Annotated[
        str, typer.Option(metavar="ADDRESS", help="Where the gateway listens. The engine stays on loopback.")
    ] = "127.0.0.1",
    port: Annotated[int, PORT] = 8080,
    engine_port: Annotated[
        int, typer.Option(metavar="PORT", min=0, max=65535, help="The engine's; 0 picks a free one.")
    ] = 0,
    model: Annotated[
        str,
        typer.Option(metavar="PATH", help='"embedded" (SmolLM2-135M-Instruct), a .gguf file or a Hugging Face folder.'),
    ] = "embedded",
    access_log: Annotated[str | None, ACCESS_LOG] = None,
) -> None:
    """Start the bundled engine and a gateway in front of it: everything on this machine, no GPU needed.

    \b
    tailgate up
    tailgate up --model ./Qwen3-0.6B --port 9000
    tailgate up -- --threads 1 --max-num-seqs 16       what follows -- goes to the engine: tailgate-backend serve --help

    Prints a curl to try once the model is loaded. Ctrl-C or SIGTERM lets running answers finish and ends both.
    """
    _log_to_stderr("info")
    options = UpOptions(host, port, engine_port, model, access_log, tuple(context.args))
    try:
        code = run_up(options)
    except (ListenError, EngineError, ConfigError) as error:
        _fail(str(error))
    raise typer.Exit(code)


def main() -> None:
    """Entry point of the console script."""
    app()


def _log_to_stderr(level: str) -> None:
    logging.basicConfig(
        level=level.upper(), stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    # A line per probe and per start would drown the gateway's own.
    logging.getLogger("httpx").setLevel(logging.WARNING)
    logging.getLogger("uvicorn").setLevel(logging.WARNING)


def _fail(message: str) -> NoReturn:
    print(message, file=sys.stderr)
    raise typer.Exit(1)
