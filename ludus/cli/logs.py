"""`ludus run logs | profile`: the logs of a run's attempts, and flame graphs of its processes."""

import time
from functools import partial
from pathlib import Path

import click

from ludus.cli.client import Failure, connected
from ludus.cli.exits import Exit
from ludus.cli.options import json_option, option
from ludus.cli.render import LINES, echo, end_without_reader, print_answer, print_json
from ludus.client import TERMINAL_STATES, Client
from ludus.client.backoff import ServerBackoff

REFRESH_SECONDS = 1.0
PROFILE_SECONDS = 120.0
"""How long a profile may take beyond the time that it samples: a little longer than the worker gives py-spy."""


@click.command()
@click.argument("run")
@click.option("--attempt", type=click.IntRange(min=1), help="Number of the attempt. [the newest with a log]")
@click.option("--name", help="Name of the log. [trainer.log if there is one]")
@click.option("--tail", type=click.IntRange(min=0), metavar="BYTES", help="Only the last N bytes.")
@click.option("--follow", "-f", is_flag=True, help="Follow the log until the run has ended.")
@click.option("--list", "list_", is_flag=True, help="Only list the logs.")
@json_option
@connected
def logs(
    client: Client,
    *,
    run: str,
    attempt: int | None,
    name: str | None,
    tail: int | None,
    follow: bool,
    list_: bool,
    as_json: bool,
) -> None:
    """Print a log of a run: by default the trainer's, of the newest attempt."""
    record = client.runs.get(run)
    there = client.logs.list(record.id)
    if as_json:
        print_json(there)
        return
    if list_:
        for each in there:
            echo(f"{each.attempt}  {each.name}  {each.size}")
        return
    fitting = [log for log in there if attempt in {None, log.attempt} and name in {None, log.name}]
    if not fitting:
        known = ", ".join(f"{log.name} of attempt {log.attempt}" for log in there) or "none yet"
        raise Failure(f"there is no such log; there is: {known}", Exit.REFUSED)
    newest = [log for log in fitting if log.attempt == fitting[-1].attempt]
    log = next((log for log in newest if log.name == "trainer.log"), newest[0])
    part = client.logs.read(record.id, log.attempt, log.name, tail=tail)
    backoff = ServerBackoff()
    while True:
        echo(part.text, nl=False, kept=LINES)
        end_without_reader()
        if part.next_offset >= part.size:
            if not follow or backoff.persist(partial(client.runs.get, record.id)).state in TERMINAL_STATES:
                return
            time.sleep(REFRESH_SECONDS)
        rest = partial(client.logs.read, record.id, log.attempt, log.name, offset=part.next_offset)
        part = backoff.persist(rest)


@click.command()
@click.argument("run")
@option("--seconds", type=click.IntRange(1, 300), default=10, help="How long stacks are sampled.")
@click.option("--output", type=click.Path(dir_okay=False, path_type=Path), help="File to write; RUN-profile-1.svg.")
@json_option
@connected
def profile(client: Client, *, run: str, seconds: int, output: Path | None, as_json: bool) -> None:
    """Sample the stacks of a run's trainer and collectors, and download the flame graph. The run goes on."""
    asked = client.runs.profile(run, seconds)
    backoff = ServerBackoff(asked.seconds + PROFILE_SECONDS)
    while not asked.answered:
        if backoff.over:  # a worker of an older release never answers
            raise Failure("the worker has not answered in time; it may be of an older release", Exit.TIMED_OUT)
        backoff.sleep(REFRESH_SECONDS)
        record = backoff.persist(partial(client.runs.get, asked.run_id))
        if record.attempt != asked.attempt or record.state != "RUNNING":
            raise Failure(f"the attempt ended before its profile was made; the run is {record.state}", Exit.REFUSED)
        asked = backoff.persist(partial(client.runs.get_profile, asked.run_id))
    if asked.log is None:
        raise Failure(f"there is no profile: {asked.problem}", Exit.REFUSED)
    target = output or Path(f"{asked.run_id}-{asked.log}")
    client.logs.download(asked.run_id, asked.attempt, asked.log, target)
    print_answer(asked, lambda _: echo(str(target)), as_json=as_json)
