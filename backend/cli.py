"""`tailgate-backend`: the bundled engine as an OpenAI-compatible server."""

import logging
import socket
import sys
import time
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, NoReturn

import torch
import typer

from policies.batching import ORDERS, StepSpec, parse_options
from policies.registry import PolicyConfigError

from .export import export_huggingface
from .server import ServedModel, build_app
from .serving import bind, run, url_of
from .settings import DEFAULT_KV_CACHE_BYTES, DTYPES, EngineSettings, SettingsError, build_engine
from .weights import EMBEDDED, load_model

app = typer.Typer(
    help="The bundled engine: a small continuous-batching server for one model, on the CPU, with OpenAI's routes.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


def _show_version(is_asked: bool) -> None:
    if is_asked:
        print(f"tailgate-backend {version('tailgate')}")
        raise typer.Exit


@app.callback()
def commands(
    _version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    pass


@app.command()
def serve(
    model: Annotated[
        str,
        typer.Option(
            metavar="PATH", help='What to serve: "embedded" (SmolLM2-135M-Instruct), a .gguf file or a folder.'
        ),
    ] = EMBEDDED,
    host: Annotated[
        str,
        typer.Option(metavar="ADDRESS", help="Where to listen. There is no authentication: keep it private."),
    ] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(metavar="PORT", min=0, max=65535, help="0 picks a free one, shown when ready.")
    ] = 8001,
    served_model_name: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Name in requests, may be repeated; the first one is the default."),
    ] = None,
    dtype: Annotated[
        str, typer.Option(metavar="TYPE", help=f"Of weights and KV cache: {', '.join(DTYPES)}.")
    ] = "bfloat16",
    max_model_len: Annotated[
        int | None,
        typer.Option(
            metavar="N", min=2, help="Longest prompt plus answer in tokens. Default: what model and KV cache allow."
        ),
    ] = None,
    max_num_batched_tokens: Annotated[
        int,
        typer.Option(
            metavar="N", min=1, help="Tokens computed in one step. Larger: prompts go faster, streams pause longer."
        ),
    ] = 512,
    max_num_seqs: Annotated[
        int, typer.Option(metavar="N", min=1, help="Sequences that run at once; others wait.")
    ] = 32,
    block_size: Annotated[
        int, typer.Option(metavar="N", min=1, help="Tokens of one KV block, the unit of memory and of prefix caching.")
    ] = 16,
    num_blocks: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="KV blocks. Default: see --kv-cache-bytes.")
    ] = None,
    kv_cache_bytes: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, help=f"Memory of the KV cache. Default: {DEFAULT_KV_CACHE_BYTES} (1 GiB)."),
    ] = None,
    policy: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="Who goes first: fcfs (arrival), priority (field `priority`, lower first, then arrival), or by the "
            f"prompt's length as the gateway's orderings: {', '.join(ORDERS.names())}.",
        ),
    ] = "fcfs",
    composer: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="What a step computes: chunked (a token of every stream, then pieces of prompts), prefill-first "
            "(prompts before all streams), or sj-mlfq (what has run least goes first).",
        ),
    ] = "chunked",
    option: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME.OPTION=VALUE",
            help="Of the policy or the composer, may be repeated, such as sj-mlfq.first_quantum_s=0.2.",
        ),
    ] = None,
    threads: Annotated[
        int | None,
        typer.Option(
            metavar="N", min=1, help="Threads of one matrix product. One is often faster than two for small models."
        ),
    ] = None,
    no_prefix_caching: Annotated[
        bool, typer.Option("--no-prefix-caching", help="Compute every prompt from its first token.")
    ] = False,
    export_tokenizer: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="Write tokenizer.json and tokenizer_config.json here, for gateways that count tokens.",
        ),
    ] = None,
) -> None:
    """Load a model and serve it until SIGINT or SIGTERM.

    Prints one line to stdout when it takes requests: `tailgate-backend ready url=URL model=NAME`. Try then:

    curl URL/v1/chat/completions -d '{"messages": [{"role": "user", "content": "What is the capital of France?"}]}'
    """
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    _check_dtype(dtype)
    if threads is not None:
        torch.set_num_threads(threads)
    try:
        settings = EngineSettings(
            max_model_len=max_model_len,
            max_num_batched_tokens=max_num_batched_tokens,
            max_num_seqs=max_num_seqs,
            block_size=block_size,
            num_blocks=num_blocks,
            kv_cache_bytes=kv_cache_bytes,
            step=StepSpec(composer, policy, parse_options(option or ())),
            enable_prefix_caching=not no_prefix_caching,
        )
        sock = _bind(host, port)
        loaded = load_model(model, dtype=DTYPES[dtype], progress=_progress)
        names = served_model_name or [loaded.name]
        engine, metrics = build_engine(loaded, settings, names[0])
    except (SettingsError, PolicyConfigError) as error:
        _fail(str(error))
    except OSError as error:
        _fail(f"can't read {error.filename or model}: {_words(error)}")
    except ValueError as error:
        _fail(f"can't load {model}: {error}")
    if export_tokenizer is not None:
        try:
            loaded.tokenizer.export(export_tokenizer)
        except OSError as error:
            _fail(f"can't write the tokenizer to {export_tokenizer}: {_words(error)}")
        _progress(f"tokenizer written to {export_tokenizer}")
    served = ServedModel(names=names, root=model, tokenizer=loaded.tokenizer, created_s=int(time.time()))
    run(build_app(engine, metrics, served), sock, lambda: _ready(url_of(sock), names[0]))


@app.command()
def export(
    directory: Annotated[Path, typer.Argument(metavar="FOLDER", help="Where to write; made if it isn't there.")],
    model: Annotated[str, typer.Option(metavar="FILE", help='"embedded" or a .gguf file.')] = "embedded",
    dtype: Annotated[str, typer.Option(metavar="TYPE", help="bfloat16 or float32.")] = "bfloat16",
) -> None:
    """Write a model as a Hugging Face folder, so that another server can run the very same weights.

    tailgate-backend export /tmp/smollm2 && vllm serve /tmp/smollm2
    """
    _check_dtype(dtype)
    try:
        export_huggingface(model, directory, DTYPES[dtype])
    except OSError as error:
        _fail(f"can't export {model} to {directory}: {_words(error)}")
    except ValueError as error:
        _fail(f"can't export {model}: {error}")
    _progress(f"{model} written to {directory}")


def main() -> None:
    """Entry point of the console script."""
    app()


def _bind(host: str, port: int) -> socket.socket:
    try:
        return bind(host, port)
    except OSError as error:
        _fail(f"can't listen on {host}:{port}: {_words(error)}")


def _progress(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _ready(url: str, name: str) -> None:
    print(f"tailgate-backend ready url={url} model={name}", flush=True)


def _check_dtype(dtype: str) -> None:
    if dtype not in DTYPES:
        _fail(f"--dtype is {dtype!r}; known: {', '.join(DTYPES)}")


def _words(error: OSError) -> str:
    """Why, without the number and the path."""
    if isinstance(error, FileExistsError | NotADirectoryError):
        return "it is a file, not a folder"
    return (error.strerror or str(error)).lower()


def _fail(message: str) -> NoReturn:
    _progress(f"tailgate-backend: {message}")
    raise typer.Exit(2)
