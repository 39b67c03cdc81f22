"""`ludus run pause | resume | checkpoint | set | changes | branch`: commands on live runs."""

import re
import sys
from collections.abc import Iterable, Sequence
from typing import Any, Final

import click

from ludus.cli.client import Failure, answering, connected
from ludus.cli.exits import OUTCOMES, Exit
from ludus.cli.follow import Waiting, await_end
from ludus.cli.options import (
    ASSIGNMENT,
    json_option,
    option,
    overrides_option,
    priority_option,
    require_option,
    timeout_option,
    wait_option,
)
from ludus.cli.render import ago, echo, id_of, print_answer, state_of
from ludus.cli.require import Requirement
from ludus.client import Client, NotSaved, WaitTimedOut
from ludus.schemas import Amendments, Run

_KEY = re.compile(r'"([^"]+)"|([^."]+)')


@click.command()
@click.argument("run")
@click.option("--wait", "wait_", is_flag=True, help="Wait until the run is PAUSED, and its worker free.")
@timeout_option
@json_option
@connected
def pause(client: Client, *, run: str, wait_: bool, timeout: float | None, as_json: bool) -> None:
    """Pause a run: save a checkpoint and free its worker. Its simulators wait until `ludus run resume`."""
    record = client.runs.pause(run)
    if wait_ and record.state != "PAUSED":
        try:
            record = client.runs.wait(record.id, ["PAUSED"], timeout)
        except WaitTimedOut as error:
            raise Failure(f"{error} (--timeout); it will still pause", Exit.TIMED_OUT) from error
    print_answer(record, state_of, as_json=as_json)
    if wait_ and record.state in OUTCOMES:  # it ended first
        sys.exit(OUTCOMES[record.state])


@click.command()
@click.argument("run")
@click.option(
    "--set",
    "changes",
    type=ASSIGNMENT,
    multiple=True,
    help="Change a behavior's key first, as in Walker.hyperparameters.learning_rate=1e-4. Can be given several times.",
)
@answering(state_of)
def resume(client: Client, *, run: str, changes: tuple[tuple[str, Any], ...]) -> Run:
    """Resume a paused run from its newest checkpoint."""
    return client.runs.resume(run, nested(changes) or None)


@click.command()
@click.argument("run")
@timeout_option
@answering(lambda answer: str(answer["checkpoint_id"]))
def checkpoint(client: Client, *, run: str, timeout: float | None) -> dict[str, str]:
    """Save a checkpoint of a running run now, wait until it is stored, and print its id. The run continues.

    Without --timeout the command waits up to a minute.
    """
    try:
        return {"checkpoint_id": client.checkpoints.save(run, 60.0 if timeout is None else timeout)}
    except NotSaved as error:
        raise Failure(f"{error} (--timeout allows more time)", Exit.REFUSED) from error


@click.command("set")
@click.argument("run")
@click.argument("changes", nargs=-1, type=ASSIGNMENT, required=True, metavar="NAME.KEY=VALUE...")
@json_option
@connected
def set_(client: Client, *, run: str, changes: tuple[tuple[str, Any], ...], as_json: bool) -> None:
    """Change hyperparameters or max_steps of behaviors in a RUN that has not ended.

    \b
    ludus run set RUN Walker.hyperparameters.learning_rate=1e-4 Walker.max_steps=800000

    A running run uses them from its next update. Put a behavior's name with a dot into double quotes.
    """

    def show(record: Run) -> None:
        _show(client.runs.amendments(record.id), slice(-1, None))

    print_answer(client.runs.change(run, nested(changes)), show, as_json=as_json)


def _show(found: Amendments, part: slice = slice(None)) -> None:
    if not found.amendments:
        echo("Nothing in the run's configuration was changed.")
    for amendment in found.amendments[part]:
        for change in amendment.changes:
            echo(f"{amendment.seq}  {change.path}: {change.old} -> {change.new}  ({ago(amendment.created_at)})")
        echo(f"   {'the trainer uses it' if amendment.applied else 'the trainer has not applied it yet'}")


@click.command()
@click.argument("run")
@answering(_show)
def changes(client: Client, *, run: str) -> Amendments:
    """Show the changes of a run's configuration since its creation."""
    return client.runs.amendments(run)


@click.command()
@click.argument("run")
@option("--checkpoint", default="latest", help="Id of the checkpoint to start from.")
@click.option(
    "--continue",
    "go_on",
    is_flag=True,
    help="Continue exactly where the checkpoint was taken, instead of at step 0 with its networks.",
)
@click.option("--name", help="Name of the new run.")
@click.option("--tag", "tags", multiple=True, help="Tag of the new run. Can be given several times.")
@overrides_option
@priority_option
@wait_option
@timeout_option
@require_option
@json_option
@connected
def branch(
    client: Client,
    *,
    run: str,
    overrides: tuple[tuple[str, Any], ...],
    wait_: bool,
    timeout: float | None,
    requirements: tuple[Requirement, ...],
    as_json: bool,
    **described: Any,
) -> None:
    """Queue a new run with the configuration of RUN, changed by --set, that starts from a checkpoint of RUN."""
    created = client.runs.branch(run, overrides=dict(overrides), **described)
    print_answer(created, id_of, as_json=as_json)
    if wait_:
        sys.exit(await_end(client, created.id, Waiting(timeout, requirements)))


COMMANDS: Sequence[click.Command] = (pause, resume, checkpoint, set_, changes, branch)


_GROUPS: Final = frozenset({"hyperparameters", "divergence"})
"""Keys of a behavior's section whose own keys change one by one."""


def nested(assignments: Iterable[tuple[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return changes by behavior. Raises UsageError where a path does not name a behavior and a key of it."""
    found: dict[str, dict[str, Any]] = {}
    for path, value in assignments:
        keys = [quoted or plain for quoted, plain in _KEY.findall(path)]
        keys = keys[1:] if keys[:1] == ["behaviors"] and len(keys) > 2 else keys
        if not 2 <= len(keys) <= 3 or (len(keys) == 3 and keys[1] not in _GROUPS):
            message = f"{path!r} names no key of a behavior; write NAME.max_steps or NAME.hyperparameters.learning_rate"
            raise click.UsageError(message)
        section = found.setdefault(keys[0], {})
        for key in keys[1:-1]:
            section = section.setdefault(key, {})
        section[keys[-1]] = value
    return found
