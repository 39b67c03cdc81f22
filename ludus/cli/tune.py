"""`ludus tune`: from a configuration and a budget to a better configuration."""

import re
import sys
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click
import yaml

from ludus.cli.client import Failure, explain, sending
from ludus.cli.exits import INTERRUPTED, Exit, sigterm_interrupts
from ludus.cli.experiment import POLL_SECONDS, chosen_command, print_plan, short
from ludus.cli.experiment_games import ExperimentGames
from ludus.cli.files import Text, TextFile
from ludus.cli.learn import STACK_HOME, embedded_stack
from ludus.cli.learn_options import LearnError
from ludus.cli.options import FILE, FOLDER, duration, games_gateway_option, option
from ludus.cli.render import echo
from ludus.client import ApiError, Client
from ludus.client.backoff import ServerBackoff
from ludus.json_values import JsonObject
from ludus.schemas import Experiment, Trial
from ludus.schemas.experiments import ExperimentState, TrialState


@click.command(context_settings={"ignore_unknown_options": True})
@click.argument("file", type=TextFile())
@click.option("--budget", type=duration, help="Time, as 4h or 90m.")
@click.option("--runs", type=click.IntRange(min=1), help="Runs, in place of a time or beside it.")
@click.option("--name", help="Name of the experiment. [FILE's, and the time]")
@option("--seeds", type=click.IntRange(1, 100), default=1, help="Runs of each setting.")
@option("--parallelism", type=click.IntRange(1, 1000), default=1, help="Runs at once.")
@option("--metric", default="reward", help="What is to be high.")
@click.option("--game", help="A game of `ludus simulate` that plays in all runs.")
@option("--envs", type=click.IntRange(1, 10_000), default=8, help="With --game: games of each run.")
@games_gateway_option
@click.option("-o", "--output", type=FILE, help="File of the best configuration. [NAME.yaml]")
@option("--server", envvar="LUDUS_SERVER", help="Address [LUDUS_SERVER]; if there is none, one is started.")
@click.option("--home", type=FOLDER, help="Folder for the data of a server that is started. [results/NAME/.ludus]")
@click.option("--resume", is_flag=True, help="Go on with the experiment --name, whose command was killed.")
@click.option("--token", help="Bearer token; better given as LUDUS_TOKEN.")
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
def tune(
    *,
    file: Text,
    budget: float | None,
    runs: int | None,
    name: str | None,
    output: Path | None,
    server: str | None,
    home: Path | None,
    token: str | None,
    **options: Any,
) -> None:
    """Find a better configuration than FILE within a budget, and write it.

    Varies the keys that decide most often for FILE's trainer. The first trial has FILE's values where they lie in the
    ranges. Hopeless trials end early. Games come from --game, from a command behind `--` with {run} in it, or dial in
    by themselves. A server that is started here keeps runs and models: `ludus up --home FOLDER` shows them.

    \b
    ludus tune cartpole.yaml --budget 1h --game gymnasium:CartPole-v1
    ludus tune walker.yaml --runs 40 -- ludus unity {run} --env walker.x86_64
    """
    if options["resume"] and name is None:
        raise click.UsageError("--resume needs the --name of the experiment that goes on.")
    if name is not None and Path(name).name != name:
        raise click.UsageError(f"--name {name!r} is no name of a folder.")
    if budget is None and runs is None and not options["resume"]:
        raise click.UsageError("Give --budget (4h, 90m) or --runs: tuning has no end of its own.")
    if budget is not None and budget <= 0:
        raise click.UsageError("--budget must be longer than 0.")
    stem = re.sub(r"[^A-Za-z0-9._-]+", "-", Path(file.name).stem).strip("-.")[:60] or "config"
    name = name or f"{stem}-tune-{datetime.now(UTC):%m%d-%H%M%S}"
    limits = {"hours": None if budget is None else budget / 3600, "runs": runs}
    document: JsonObject = {
        "name": name,
        "config": file.content,
        "budget": {key: value for key, value in limits.items() if value is not None},
        "seeds": options["seeds"],
        "parallelism": options["parallelism"],
        "objective": {"metric": options["metric"]},
        "early_stopping": {"type": "asha"},
    }
    try:
        with ExitStack() as stack:
            if server is None:
                home = home or Path("results", name, STACK_HOME)
                if options["resume"] and not home.exists():
                    raise click.UsageError(f"There is nothing to resume in {home}: --home names another folder.")
                addresses = stack.enter_context(embedded_stack(home))
                server, options["gateway"] = addresses.api, addresses.gateway
                echo(f"Runs and models are kept in {home}; afterwards, `ludus up --home {home}` shows them.")
            client = stack.enter_context(Client(server, token))
            sys.exit(_tune(client, document, output or Path(f"{name}.yaml"), file, options))
    except LearnError as error:
        raise click.ClickException(str(error)) from error
    except ApiError as error:
        raise Failure(explain(error), Exit.REFUSED) from error


def _tune(client: Client, document: JsonObject, output: Path, file: Text, options: JsonObject) -> int:
    """Run the experiment to its end and write the best configuration; return the exit code."""
    name = document["name"]
    if options["resume"]:
        echo(f"{name} ({client.experiments.get(name).id}) goes on")
    else:
        with sending(file.name):
            print_plan(client.experiments.plan(document))
            created = client.experiments.create(document)
        echo(f"{name} ({created.id}) begins on {client.server}")
    game, command = options["game"], options["command"]
    code = int(Exit.OK)
    try:
        with sigterm_interrupts(), ExitStack() as stack:
            games = None
            if game is not None or command:
                chosen = chosen_command(options["gateway"] or client.gateway, game, 1, options["envs"], command)
                games = stack.enter_context(ExperimentGames(client, name, chosen))
            record = _follow(client, name, games)
    except KeyboardInterrupt:
        echo("Interrupted: the experiment is stopped.", err=True)
        record, code = client.experiments.stop(name), INTERRUPTED
    except BaseException:
        client.experiments.stop(name)
        raise
    echo(record.detail)
    if record.state is ExperimentState.FAILED:
        record, code = client.experiments.stop(name), int(Exit.RUN_FAILED)
    best = record.best
    if best is None:
        echo("No trial is complete: there is nothing to write. Give a larger budget.", err=True)
        return code or int(Exit.NO_METRIC)
    config = client.experiments.config(name, best.number)
    output.write_text(yaml.safe_dump(config, sort_keys=False, allow_unicode=True), encoding="utf-8")
    echo(f"Best: trial {best.number} with {best.value:.6g} ({short(best.parameters)}). {output} has its configuration.")
    first = next(client.experiments.trials(name, limit=1))
    if first.value is not None and best.number != first.number:
        echo(f"Trial {first.number}, with the values of {file.name} where they lie in the ranges: {first.value:.6g}.")
        words = f"ludus compare experiment:{name}/{first.number} experiment:{name}/{best.number}"
        echo(f"Is it better beyond the seed? {words}")
    return code


def _follow(client: Client, name: str, games: ExperimentGames | None) -> Experiment:
    """Wait for the end; print each trial that has ended."""
    told: set[int] = set()
    backoff = ServerBackoff(None)
    while True:
        record = backoff.persist(lambda: client.experiments.get(name))
        ended: list[Trial] = backoff.persist(lambda: list(client.experiments.trials(name, 'state != "RUNNING"')))
        for trial in ended:
            if trial.number not in told:
                told.add(trial.number)
                value = trial.detail if trial.state is not TrialState.COMPLETE else f"{trial.value:.6g}"
                echo(f"trial {trial.number:>3} {trial.state:<8} {value}  {short(trial.parameters)}")
        if record.state in {ExperimentState.FINISHED, ExperimentState.FAILED}:
            return record
        if games is not None:
            backoff.persist(games.poll)
        backoff.sleep(POLL_SECONDS)
