"""The server's commands: `ludus up`, and each role by itself. Imports of the roles happen when one is run."""

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ludus.logging import configure_logging
from ludus.validation import in_words
from server.kit.db.texts import JsonObject
from server.kit.errors import LudusError
from server.kit.ports import CannotStart

if TYPE_CHECKING:
    from server.embedded.stack import Ready
    from server.kit.settings import Settings

STOP_SECONDS = 30.0


def load_settings(**overrides: Mapping[str, object] | Path) -> "Settings":
    """Read the settings from the environment; what an option said goes before. All mistakes are listed at once."""
    from pydantic import ValidationError  # noqa: PLC0415
    from pydantic_settings import SettingsError  # noqa: PLC0415

    from server.kit.settings import Settings  # noqa: PLC0415

    try:
        return Settings(**overrides)  # type: ignore[arg-type]  # pydantic validates the groups' mappings
    except ValidationError as error:
        lines = [f"  {_mistake(one, one['loc'])}" for one in error.errors()]
    except SettingsError as error:  # it names the group alone; its cause has the value
        value = getattr(error.__cause__, "doc", None)
        names = [name.upper() for name in sorted(os.environ) if os.environ[name] == value]
        lines = [f"  {name}: not JSON: {value}" for name in names if name.startswith("LUDUS_")] or [f"  {error}"]
    raise click.UsageError("\n".join(["These settings are wrong:", *lines]))


def _mistake(error: Mapping[str, object], path: tuple[int | str, ...]) -> str:
    from server.kit.settings import Settings  # noqa: PLC0415

    variable = "LUDUS_" + "__".join(str(part).upper() for part in path)
    if error["type"] != "extra_forbidden":
        sentence = in_words(error)
        return f"{variable}: {sentence}" if path else sentence
    group = Settings.model_fields[str(path[0])].annotation
    near = get_close_matches(str(path[-1]), getattr(group, "model_fields", ()), 1)
    meant = f"; did you mean LUDUS_{str(path[0]).upper()}__{near[0].upper()}?" if near else ""
    return f"{variable}: there is no such setting{meant}"


@contextmanager
def one_sentence_errors() -> Iterator[None]:
    """Show an error that an operator can act on as one sentence, without a traceback."""
    try:
        yield
    except LudusError as error:
        raise click.ClickException(str(error)) from error
    except CannotStart as error:
        click.echo(f"Error: {error}", err=True)
        sys.exit(error.exit_code)


@contextmanager
def _process(name: str, *, awaits_schema: bool = False) -> Iterator["Settings"]:
    """Read the settings of one role, set up its logs, and show what an operator can act on as one sentence.

    `awaits_schema`: it cannot work before `ludus migrate` has ended, and waits for it where the settings say so; else
    it ends where there has been none.
    """
    settings = load_settings()
    configure_logging(name, log_format=settings.log.format, level=settings.log.level)
    from server.kit.db.checks import check_database, check_migrated  # noqa: PLC0415

    with one_sentence_errors():
        check_database(settings.database)
        if awaits_schema and settings.database.await_schema_seconds:
            from server.kit.db.migrate import await_schema  # noqa: PLC0415

            await_schema(settings.database)
        elif awaits_schema:
            check_migrated(settings.database)
        yield settings


@click.command()
@click.option("--home", type=click.Path(file_okay=False, path_type=Path), help="Folder of all data. [.ludus]")
@click.option("--port", type=click.IntRange(0, 65535), help="Port of the HTTP API; 0: any free one.")
@click.option("--gateway-port", type=click.IntRange(0, 65535), help="Port of the gateway; 0: any free one.")
@click.option("--slots", type=click.IntRange(min=1), help="Runs to train at once.")
@click.option("--stop-seconds", type=float, default=STOP_SECONDS, show_default=True, help="Longest graceful stop.")
@click.option(
    "--ready-file", type=click.Path(dir_okay=False, path_type=Path), help="Write the addresses here when ready."
)
@click.option("--ready-fd", type=int, help="Write the addresses to this open file descriptor when ready.")
@click.option("--open", "open_pages", is_flag=True, help="Open the pages in a browser when ready.")
@click.option(
    "--show",
    type=click.Choice(["debug", "info", "warning", "error"]),
    default="warning",
    help="Lowest level of the logs on the console.",
)
def up(
    *,
    home: Path | None,
    port: int | None,
    gateway_port: int | None,
    slots: int | None,
    stop_seconds: float,
    ready_file: Path | None,
    ready_fd: int | None,
    open_pages: bool,
    show: str,
) -> None:
    """Start everything on this machine: API, gateway, controller and worker.

    Needs nothing installed: SQLite, a folder as queue and a folder of artifacts, all in the home folder. What dies is
    started again. Ctrl-C stops (running trainings save a checkpoint and continue at the next start), twice: at once.
    """
    if not sys.platform.startswith("linux"):
        raise click.ClickException("The server runs on Linux: on this system use WSL2 or Docker (docker-compose.yml).")
    from server.embedded.console import Console  # noqa: PLC0415
    from server.embedded.stack import Stack  # noqa: PLC0415

    overrides: JsonObject = {} if home is None else {"home": home}
    for group, field, value in (("api", "port", port), ("gateway", "port", gateway_port), ("worker", "slots", slots)):
        if value is not None:
            overrides[group] = {field: value}
    settings = load_settings(**overrides)
    console = Console(click.echo, show)

    def announce(ready: "Ready") -> None:
        console.say(f"ready: pages and HTTP API {ready.api} (described at {ready.api}/docs)")
        pages = f", those without gRPC {ready.websocket}" if ready.websocket else ""
        console.say(f"simulators join {ready.gateway}{pages}")
        console.say(f"logs in {settings.home / 'logs'}; Ctrl-C stops")
        if ready_file is not None:
            unfinished = ready_file.with_name(f"{ready_file.name}.tmp")
            unfinished.write_text(f"{ready.to_json()}\n")
            unfinished.replace(ready_file)
        if ready_fd is not None:
            os.write(ready_fd, f"{ready.to_json()}\n".encode())
            os.close(ready_fd)
        if open_pages:
            click.launch(ready.api)

    with one_sentence_errors():
        Stack(settings, console, stop_seconds=stop_seconds).run(announce)


@click.command()
@click.option("--fd", type=int, hidden=True, help="A listening socket that was opened by the parent.")
def server(fd: int | None) -> None:
    """Serve only the HTTP API."""
    with _process("api") as settings:
        from server.app.serve import serve_api  # noqa: PLC0415

        serve_api(settings, fd)


@click.command()
def gateway() -> None:
    """Serve only the gateway, which simulators join over gRPC."""
    with _process("gateway", awaits_schema=True) as settings:
        from server.gateway.main import serve  # noqa: PLC0415

        serve(settings)


@click.command()
def controller() -> None:
    """Run only the controller: expired leases, waiting runs, retention, ratings, webhooks. Several may run at once."""
    with _process("controller", awaits_schema=True) as settings:
        from server.controller.controller import main as run_controller  # noqa: PLC0415

        run_controller(settings)


@click.command()
@click.option(
    "--wait",
    "wait_seconds",
    type=click.FloatRange(min=0),
    default=0.0,
    show_default=True,
    help="Seconds in which a database that is away may come back.",
)
def migrate(wait_seconds: float) -> None:
    """Bring the database to this version's schema."""
    with _process("migrate") as settings:
        from server.kit.db.migrate import upgrade  # noqa: PLC0415

        upgrade(settings.database, wait_seconds=wait_seconds)


@click.group()
def admin() -> None:
    """Commands for the server's own host. They need no token, because they write to the database directly."""


@admin.command("create-token")
@click.argument("name")
@click.option(
    "--scope", "scopes", multiple=True, default=("admin",), show_default=True, help="read, run, admin, simulate."
)
@click.option("--for-project", default="*", show_default=True, help="Project of the token; * is all projects.")
@click.option("--home", type=click.Path(file_okay=False, path_type=Path), help="Folder of `ludus up`. [.ludus]")
@click.option("--database", help="Database address, instead of the one in the settings.")
def create_token(
    *, name: str, scopes: tuple[str, ...], for_project: str, home: Path | None, database: str | None
) -> None:
    """Make a token with the name NAME and print it: the first token of a server, or the replacement of a lost one.

    Needs the settings of the server (LUDUS_DATABASE__URL, LUDUS_HOME), or --home or --database in their place.
    """
    from server.access.bootstrap import create_first_token  # noqa: PLC0415

    overrides: JsonObject = {} if home is None else {"home": home}
    if database is not None:
        overrides["database"] = {"url": database}
    with one_sentence_errors():
        token_id, text = create_first_token(load_settings(**overrides), name, scopes, for_project)
    click.echo(f"{token_id}: {', '.join(scopes)} in {for_project}. Keep it now, it is not shown again:", err=True)
    click.echo(text)


VERIFY_CODES = """\b
Exit codes:
  0  every file that the database names is there; orphaned folders are listed, and break nothing
  1  the database or the artifact store does not answer, or refuses
  2  the command line or a setting is wrong
  3  files are missing or damaged"""
DAMAGED = 3


@admin.command("verify", epilog=VERIFY_CODES)
@click.option("--quick", is_flag=True, help="Compare sizes alone, without reading the files.")
@click.option("--home", type=click.Path(file_okay=False, path_type=Path), help="Folder of `ludus up`. [.ludus]")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of lines.")
@click.pass_context
def verify_artifacts(ctx: click.Context, *, quick: bool, home: Path | None, as_json: bool) -> None:
    """Compare all artifacts with the database, for instance after a restore: missing, damaged and orphaned files.

    Files of checkpoints, uploads, demonstrations and archived metrics are read and compared by their SHA-256, logs by
    their size. A folder without a row is an orphan; the controller deletes it when it is LUDUS_STORAGE__ORPHAN_SECONDS
    old. Nothing is changed. Needs the settings of the server.
    """
    from dataclasses import asdict  # noqa: PLC0415

    from ludus.cli.render import print_json, printable  # noqa: PLC0415
    from server.kit.artifacts.opening import open_store  # noqa: PLC0415
    from server.kit.db.migrate import existing  # noqa: PLC0415
    from server.lifecycle.verification import Fault, verify  # noqa: PLC0415

    settings = load_settings(**({} if home is None else {"home": home}))
    differences = []
    with one_sentence_errors(), existing(settings.database) as database:
        for one in verify(database, open_store(settings.storage), quick=quick):
            differences.append(asdict(one))
            if not as_json:
                owner = "" if one.owner is None else f" ({one.owner})"
                click.echo(printable(f"{one.fault:<8}  {one.path}{owner}: {one.detail}"))
    if as_json:
        print_json(differences)
    if not differences:
        click.echo("every file is there, and none is too much", err=True)
    if any(one["fault"] != Fault.ORPHANED for one in differences):
        ctx.exit(DAMAGED)


COMMANDS: dict[str, click.Command] = {
    "admin": admin,
    "gateway": gateway,
    "migrate": migrate,
    "server": server,
    "controller": controller,
    "up": up,
}
"""The commands that `server` adds to `ludus`."""
