"""`ludus experiment`: many runs of one configuration, in which some keys vary, for one answer."""

import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import click
import yaml

from ludus.cli.client import Failure, answering, connected, sending
from ludus.cli.exits import INTERRUPTED, Exit, sigterm_interrupts
from ludus.cli.experiment_games import RUN, ExperimentGames, simulate_command
from ludus.cli.files import Text, TextFile, Unreadable, read_text
from ludus.cli.options import (
    FILE,
    Parsed,
    filter_option,
    games_gateway_option,
    json_option,
    limit_option,
    option,
    timeout_option,
)
from ludus.cli.render import echo, fields, number, print_answer, print_document, print_facts, table
from ludus.client import Client
from ludus.client.backoff import ServerBackoff
from ludus.client.transport import without_none
from ludus.json_values import JsonObject
from ludus.metric_keys import full_key
from ludus.schemas import Experiment, Importance, PlannedExperiment, Trial
from ludus.schemas.experiments import LEAST_TRIALS, ExperimentState

POLL_SECONDS: Final = 2.0
ENDS: Final = {ExperimentState.FINISHED: Exit.OK, ExperimentState.FAILED: Exit.RUN_FAILED}
"""State in which an experiment goes no further by itself -> exit code."""

experiment_argument = click.argument("name", metavar="EXPERIMENT")


@click.group()
def experiment() -> None:
    """Try settings of one configuration, and compare them beyond the seed. EXPERIMENT is an id or a name.

    Each trial is one run for each seed; `ludus run list --tag experiment:NAME` has all of them.
    """


def read_experiment(file: Text) -> JsonObject:
    """Read an experiment; the file that its `config` names lies beside it. Raises Failure."""
    try:
        document = yaml.safe_load(file.content)
    except yaml.YAMLError as error:
        raise Failure(f"{file.name} is not YAML: {' '.join(str(error).split())}", Exit.REFUSED) from error
    if not isinstance(document, dict):
        raise Failure(f"{file.name} is no mapping of keys: it needs name, config, parameters and budget", Exit.REFUSED)
    config = document.get("config")
    if isinstance(config, str) and "\n" not in config:
        try:
            document["config"] = read_text(Path(file.name).parent / config)
        except Unreadable as error:
            raise Failure(f"{file.name}: config: {error}", Exit.REFUSED) from error
    return document


@experiment.command()
@click.argument("file", type=TextFile())
@click.option("--name", help="Replaces the file's.")
@click.option("--validate-only", is_flag=True, help="Only check; print it with every default filled in.")
@json_option
@connected
def create(client: Client, *, file: Text, name: str | None, validate_only: bool, as_json: bool) -> None:
    """Create the experiment in FILE (`-` is standard input), and print its id. `config` may name a file beside it."""
    document = read_experiment(file) | ({} if name is None else {"name": name})
    with sending(file.name):
        if validate_only:
            print_answer(client.experiments.plan(document), print_plan, as_json=as_json)
        else:
            print_answer(client.experiments.create(document), lambda created: str(created.id), as_json=as_json)


def print_plan(planned: PlannedExperiment) -> None:
    """Print what an experiment varies, by what, and for how long."""
    spec = planned.spec
    limits = [f"{value:g} {limit.replace('_', ' ')}" for limit, value in spec["budget"].items() if value is not None]
    rule = spec["early_stopping"]
    objective = spec["objective"]
    sources = ("evaluate", "match", "rating")
    what = next((source for source in sources if objective.get(source) is not None), objective["metric"])
    print_facts(
        [
            ("varies", f"{len(spec['parameters'])} keys, chosen by {spec['sampler']}"),
            ("objective", f"{objective['mode']} of {what}"),
            ("seeds", number(spec["seeds"])),
            ("at once", f"{spec['parallelism']} runs"),
            ("ends after", " or ".join(limits) or "every setting"),
            ("early stopping", "" if rule is None else f"{rule['type']}, from step {number(rule['min_steps'])}"),
        ]
    )
    for path, parameter in spec["parameters"].items():
        echo(f"  {path}: {_values(parameter)}")


def _values(parameter: JsonObject) -> str:
    if parameter["values"] is not None:
        return ", ".join("null" if value is None else str(value) for value in parameter["values"])
    step = "" if parameter["step"] is None else f" in steps of {parameter['step']:g}"
    return f"{parameter['min']:g} to {parameter['max']:g}{step}" + (" (log)" if parameter["scale"] == "log" else "")


@experiment.command("list")
@filter_option("'state = RUNNING'")
@limit_option("experiments")
@answering(
    table(
        "id, name, state, trials, best, created_at",
        trials=lambda each: sum(each.trials.values()),
        best=lambda each: _value(each.best),
    )
)
def list_(client: Client, *, filter_: str, limit: int) -> Iterator[Experiment]:
    """List experiments, newest first."""
    return client.experiments.list(filter_, limit=limit)


def _value(trial: Trial | None) -> str:
    return "" if trial is None or trial.value is None else f"{trial.value:.6g}"


def print_experiment(record: Experiment) -> None:
    """Print an experiment for people."""
    used, counts = record.used, ", ".join(f"{count} {state}" for state, count in record.trials.items())
    hours = used.hours + (0.0 if used.since is None else (datetime.now(UTC) - used.since).total_seconds() / 3600)
    spent = f"{number(used.runs)} runs, {number(used.steps)} steps, {max(0.0, hours):.2f} h"
    spent += f", {used.gpu_hours:.2f} GPU hours" if used.gpu_hours else ""
    best = record.best
    facts = [*fields(record, "id, name, state"), ("", record.detail), ("trials", counts), ("used", spent)]
    print_facts([*facts, ("best", "" if best is None else f"trial {best.number}: {_value(best)}")])
    if best is not None:
        for path, value in best.parameters.items():
            echo(f"  {path}: {value}")


@experiment.command()
@experiment_argument
@answering(print_experiment)
def show(client: Client, *, name: str) -> Experiment:
    """Show EXPERIMENT: its state, what it has used, and its best setting so far."""
    return client.experiments.get(name)


def short(parameters: JsonObject) -> str:
    """Return a setting in a line: values by the last part of their path."""
    return ", ".join(
        f"{path.rpartition('.')[2]}={value:.4g}" if isinstance(value, float) else f"{path.rpartition('.')[2]}={value}"
        for path, value in parameters.items()
    )


@experiment.command()
@experiment_argument
@click.option("--order-by", default="", help="number or value; then asc or desc. [number asc]")
@filter_option("'state = COMPLETE'")
@limit_option("trials", 100)
@answering(
    table(
        "trial=number, state, value, runs, setting",
        value=_value,
        runs=lambda each: len(each.runs),
        setting=lambda each: short(each.parameters),
    )
)
def trials(client: Client, *, name: str, order_by: str, filter_: str, limit: int) -> Iterator[Trial]:
    """List the trials of EXPERIMENT."""
    return client.experiments.trials(name, filter_, order_by, limit)


def _print_importance(record: Importance) -> None:
    for path, share in record.shares.items():
        echo(f"{share:6.1%}  {path}")
    if not record.shares:
        echo(f"{LEAST_TRIALS} complete trials tell which keys matter; there are {record.trials}")


@experiment.command()
@experiment_argument
@answering(_print_importance)
def importance(client: Client, *, name: str) -> Importance:
    """Show how much of the differences between the trials of EXPERIMENT each key explains (PED-ANOVA)."""
    return client.experiments.importance(name)


@experiment.command()
@experiment_argument
@click.option("--trial", type=click.IntRange(min=0), help="This one. [the best]")
@click.option("-o", "--output", type=FILE, help="Output file. [standard output]")
@connected
def config(client: Client, *, name: str, trial: int | None, output: Path | None) -> None:
    """Print the configuration of the best trial of EXPERIMENT as YAML: `ludus run create` and `ludus learn` take it."""
    if trial is None:
        best = client.experiments.get(name).best
        if best is None:
            raise Failure(f"{name} has no complete trial yet", Exit.NO_METRIC)
        trial = best.number
    document = client.experiments.config(name, trial)
    if output is None:
        print_document(document)
    else:
        output.write_text(yaml.safe_dump(document, sort_keys=False, allow_unicode=True), encoding="utf-8")


def _objective(text: str) -> JsonObject:
    try:
        objective = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ValueError(f"is not YAML: {' '.join(str(error).split())}") from error
    if not isinstance(objective, dict):
        raise ValueError(f"{text!r} is no mapping of keys, as '{{rating: ordinal}}'")  # noqa: TRY004  # of a text
    return objective


@experiment.command("set")
@experiment_argument
@click.option("--runs", type=click.IntRange(min=1), help="Budget: runs.")
@click.option("--steps", type=click.IntRange(min=1), help="Budget: agent steps of all runs together.")
@click.option("--gpu-hours", type=click.FloatRange(min=0, min_open=True), help="Budget: GPU hours.")
@click.option("--hours", type=click.FloatRange(min=0, min_open=True), help="Budget: hours.")
@option("--parallelism", type=click.IntRange(1, 1000), help="Runs at once.")
@click.option("--metric", help="Objective, while no trial has a value: this metric.")
@click.option("--behavior", help="Behavior of the objective, likewise.")
@click.option(
    "--objective",
    type=Parsed("mapping", _objective),
    help="The whole objective as YAML, likewise: '{evaluate: {episodes: 100}}'.",
)
@answering(print_experiment)
def set_(
    client: Client,
    *,
    name: str,
    runs: int | None,
    steps: int | None,
    gpu_hours: float | None,
    hours: float | None,
    parallelism: int | None,
    metric: str | None,
    behavior: str | None,
    objective: JsonObject | None,
) -> Experiment:
    """Change budget, parallelism or objective of EXPERIMENT. More budget lets a finished one go on."""
    present = client.experiments.get(name).spec
    budget = without_none(runs=runs, steps=steps, gpu_hours=gpu_hours, hours=hours)
    wanted = without_none(behavior=behavior)
    if metric is not None:
        wanted |= {"metric": full_key(metric), "evaluate": None, "match": None, "rating": None}
    if not budget and not wanted and parallelism is None and objective is None:
        raise click.UsageError("Give at least one option: what is to change?")
    if objective is not None and wanted:
        raise click.UsageError("Give the whole --objective, or --metric and --behavior.")
    return client.experiments.update(
        name,
        budget={**present["budget"], **budget} if budget else None,
        parallelism=parallelism,
        objective={**present["objective"], **wanted} if wanted else objective,
    )


@experiment.command()
@experiment_argument
@answering(print_experiment)
def pause(client: Client, *, name: str) -> Experiment:
    """Begin no more runs of EXPERIMENT, and pause those that train."""
    return client.experiments.pause(name)


@experiment.command()
@experiment_argument
@answering(print_experiment)
def resume(client: Client, *, name: str) -> Experiment:
    """Go on with EXPERIMENT, which was paused or stopped, or has failed."""
    return client.experiments.resume(name)


@experiment.command()
@experiment_argument
@click.option("--trial", type=click.IntRange(min=0), multiple=True, help="This one, also if it has failed; repeated.")
@answering(print_experiment)
def retry(client: Client, *, name: str, trial: tuple[int, ...]) -> Experiment:
    """Try the trials of EXPERIMENT again that were stopped; one that has ended goes on."""
    return client.experiments.retry(name, trial or None)


@experiment.command()
@experiment_argument
@answering(print_experiment)
def stop(client: Client, *, name: str) -> Experiment:
    """End EXPERIMENT and stop its runs, each with a checkpoint."""
    return client.experiments.stop(name)


@experiment.command()
@experiment_argument
@connected
def delete(client: Client, *, name: str) -> None:
    """Delete EXPERIMENT, which has ended. Its runs stay."""
    client.experiments.delete(name)


@experiment.command()
@experiment_argument
@timeout_option
@json_option
@connected
def wait(client: Client, *, name: str, timeout: float | None, as_json: bool) -> None:
    """Wait until EXPERIMENT goes no further by itself, and show it. Exit code 4: it has failed."""
    record = follow(client, name, timeout)
    print_answer(record, print_experiment, as_json=as_json)
    if record.state is ExperimentState.FAILED:
        raise Failure(record.detail, Exit.RUN_FAILED)


def follow(client: Client, name: str, timeout: float | None, games: ExperimentGames | None = None) -> Experiment:
    """Wait until an experiment goes no further by itself; meanwhile start games. Raises Failure after `timeout`."""
    backoff = ServerBackoff(timeout)
    while True:
        record = backoff.persist(lambda: client.experiments.get(name))
        if record.state in ENDS:
            return record
        if timeout is not None and backoff.over:
            raise Failure(f"{name} is {record.state} after {timeout:g} s (--timeout); it goes on", Exit.TIMED_OUT)
        if games is not None:
            backoff.persist(games.poll)
        backoff.sleep(POLL_SECONDS)


@experiment.command(context_settings={"ignore_unknown_options": True})
@experiment_argument
@click.option("--game", help="A game of `ludus simulate`, in place of a command.")
@click.option("--count", type=click.IntRange(1, 1000), default=1, help="With --game: processes for each run.")
@option("--envs", type=click.IntRange(1, 10_000), default=1, help="With --game: games per process.")
@games_gateway_option
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
@timeout_option
@connected
def play(
    client: Client,
    *,
    name: str,
    game: str | None,
    count: int,
    envs: int,
    gateway: str | None,
    command: tuple[str, ...],
    timeout: float | None,
) -> None:
    """Play in all runs of EXPERIMENT on this machine until it ends: a game, or a command for each run.

    \b
    ludus experiment play sweep --game gymnasium:CartPole-v1 --envs 8
    ludus experiment play sweep -- ludus unity {run} --env build.x86_64
    """
    chosen = chosen_command(gateway or client.gateway, game, count, envs, command)
    try:
        with sigterm_interrupts(), ExperimentGames(client, name, chosen) as games:
            record = follow(client, name, timeout, games)
    except KeyboardInterrupt:
        echo(f"Interrupted: {name} goes on without these games; `ludus experiment stop {name}` ends it.", err=True)
        sys.exit(INTERRUPTED)
    print_experiment(record)
    if record.state is ExperimentState.FAILED:
        raise Failure(record.detail, Exit.RUN_FAILED)


def chosen_command(gateway: str, game: str | None, count: int, envs: int, command: tuple[str, ...]) -> list[str]:
    """Return the command that plays in a run. Raises UsageError."""
    if (game is None) == (not command):
        raise click.UsageError("Give either --game GAME, or a command behind `--`.")
    if game is not None:
        return [*simulate_command(game, gateway, count, envs)]
    if not any(RUN in part for part in command):
        raise click.UsageError(f"The command needs {RUN} where the run's id belongs.")
    return [*command]
