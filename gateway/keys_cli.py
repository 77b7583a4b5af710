"""`tailgate keys`: making, listing and revoking API keys."""

import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, NoReturn

import typer
from pydantic import ValidationError

from policies.types import DECLARABLE_LANES

from .config_errors import ConfigError, describe
from .key_file import KeyEntry, KeyFile, change_key_file, load_key_file
from .keys import new_id, new_secret

ABOUT = """\
Make, list and revoke API keys.

\b
Make a file with a first key, and serve with it:
    tailgate keys create --tenant acme > acme.key
    tailgate serve --replica http://gpu1:8000 --keys keys.json
\b
A key of a batch job, which never goes before others, and one for Prometheus:
    tailgate keys create --tenant acme --lane background --tokens-per-min 200000
    tailgate keys create --tenant ops --admin
\b
Who has one, and an end to it:
    tailgate keys list
    tailgate keys revoke k3f9a1c2

The file holds hashes, never keys. It may be edited by hand, and a running gateway follows within a second: a file with
errors is refused, with the errors in the log, and the keys from before stay. `keys: keys.json` in a gateway's
configuration names it.
"""

app = typer.Typer(
    help=ABOUT,
    no_args_is_help=True,
    rich_markup_mode=None,
    context_settings={"max_content_width": 110},
)

File = Annotated[Path, typer.Option(metavar="FILE", help="The key file.")]
DEFAULT_FILE = Path("keys.json")
SHORTEST_GIVEN = 32
"""Characters. A short key might be guessed, and its hash is a quick one."""


@app.command()
def create(
    tenant: Annotated[
        str, typer.Option(metavar="NAME", help="Whose requests these are: a name, which several keys may share.")
    ],
    file: File = DEFAULT_FILE,
    note: Annotated[str | None, typer.Option(metavar="TEXT", help="Who has it, what it is for.")] = None,
    model: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="A model, or alias, that it may use; all by default.")
    ] = None,
    lane: Annotated[
        list[str] | None,
        typer.Option(
            metavar="LANE",
            help=f"A lane that it may use ({', '.join(lane.value for lane in DECLARABLE_LANES)}); all by default.",
        ),
    ] = None,
    priority_ceiling: Annotated[
        int | None,
        typer.Option(metavar="N", help="Highest priority of its requests; higher goes first, 0 is the usual one."),
    ] = None,
    requests_per_min: Annotated[
        int | None, typer.Option(metavar="N", help="Requests, a minute's worth at once.")
    ] = None,
    tokens_per_min: Annotated[int | None, typer.Option(metavar="N", help="Prompt and output tokens together.")] = None,
    max_in_flight_requests: Annotated[int | None, typer.Option(metavar="N", help="Requests at the same time.")] = None,
    max_in_flight_tokens: Annotated[
        int | None, typer.Option(metavar="N", help="Prompt + output tokens at the same time.")
    ] = None,
    diagnostics: Annotated[bool, typer.Option("--diagnostics", help="Is told replica, policy and reason.")] = False,
    admin: Annotated[bool, typer.Option("--admin", help="May read metrics and every request's timing.")] = False,
    given: Annotated[
        bool,
        typer.Option("--from-stdin", help=f"Take a key from stdin ({SHORTEST_GIVEN} characters or more, random)."),
    ] = False,
) -> None:
    """Make a key, and the file if there is none. Prints the key, this once: it can't be shown again.

    \b
    tailgate keys create --tenant acme --note "search team" --model Qwen/Qwen3-8B --requests-per-min 600
    KEY=$(tailgate keys create --tenant acme)
    """
    secret = _given_secret() if given else new_secret()
    key_id = new_id()

    def add(before: KeyFile) -> KeyFile:
        entry = KeyEntry(
            id=key_id,
            tenant=tenant,
            hash=before.digest_of(secret),
            created=datetime.now(UTC).date(),
            note=note,
            models=tuple(model) if model else None,
            lanes=tuple(lane) if lane else None,  # type: ignore[arg-type]  # names, which it turns into lanes
            priority_ceiling=priority_ceiling,
            requests_per_min=requests_per_min,
            tokens_per_min=tokens_per_min,
            max_in_flight_requests=max_in_flight_requests,
            max_in_flight_tokens=max_in_flight_tokens,
            diagnostics=diagnostics,
            admin=admin,
        )
        return before.model_copy(update={"keys": (*before.keys, entry)})

    try:
        change_key_file(file, add, may_create=True)
    except ValidationError as error:
        _fail("\n".join(describe(error, KeyEntry)))
    except ConfigError as error:
        _fail(str(error))
    if given:
        typer.echo(f"{key_id}, in {file}")
    else:
        # The key alone on stdout, for $(…).
        typer.echo(f"{key_id}, in {file}; the key is shown only now:", err=True)
        typer.echo(secret)


@app.command("list")
def list_command(file: File = DEFAULT_FILE) -> None:
    """Show the keys of a file: ids, tenants, what they may do. Never the keys themselves."""
    try:
        entries = load_key_file(file).keys
    except ConfigError as error:
        _fail(str(error))
    rows = [("id", "tenant", "created", "may use", "limits", "note")]
    for entry in entries:
        created = "" if entry.created is None else entry.created.isoformat()
        rows.append((entry.id, entry.tenant, created, _rights(entry), _limits(entry), (entry.note or "").strip()))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        typer.echo("  ".join(map(str.ljust, row, widths)).rstrip())


@app.command()
def revoke(
    key_id: Annotated[str, typer.Argument(metavar="ID", help="As `tailgate keys list` shows it.")],
    file: File = DEFAULT_FILE,
) -> None:
    """Take a key out of the file. What it has running may finish; nothing new is served."""

    def remove(before: KeyFile) -> KeyFile:
        kept = tuple(entry for entry in before.keys if entry.id != key_id)
        if len(kept) == len(before.keys):
            known = ", ".join(entry.id for entry in before.keys[:20]) or "none"
            raise ConfigError(str(file), [f"has no key {key_id}; known: {known}"])
        return before.model_copy(update={"keys": kept})

    try:
        change_key_file(file, remove)
    except ConfigError as error:
        _fail(str(error))
    typer.echo(f"{key_id} is revoked")


def _given_secret() -> str:
    secret = sys.stdin.readline().strip()
    if len(secret) < SHORTEST_GIVEN or not secret.isascii() or not secret.isprintable() or " " in secret:
        _fail(f"a key must have at least {SHORTEST_GIVEN} printable ASCII characters, without spaces")
    return secret


def _rights(entry: KeyEntry) -> str:
    parts: list[str] = []
    if entry.admin:
        parts.append("admin")
    elif entry.diagnostics:
        parts.append("diagnostics")
    parts.append("models " + (_names(entry.models) if entry.models is not None else "all"))
    if entry.lanes is not None:
        parts.append("lanes " + _names([lane.value for lane in entry.lanes]))
    if entry.priority_ceiling is not None:
        parts.append(f"priority up to {entry.priority_ceiling}")
    return "; ".join(parts)


def _limits(entry: KeyEntry) -> str:
    limits = (
        (entry.requests_per_min, "requests/min"),
        (entry.tokens_per_min, "tokens/min"),
        (entry.max_in_flight_requests, "requests at once"),
        (entry.max_in_flight_tokens, "tokens in flight"),
    )
    return "; ".join(f"{limit} {what}" for limit, what in limits if limit is not None) or "none"


def _names(names: Sequence[str]) -> str:
    return ", ".join(names) or "none"


def _fail(message: str) -> NoReturn:
    typer.echo(message, err=True)
    raise typer.Exit(1)
