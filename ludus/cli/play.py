"""`ludus play`: measures an exported model, without a server."""

import itertools
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import click

from ludus.cli.exits import Exit
from ludus.cli.options import REQUIREMENT, SEED, Requirement, option, record_option
from ludus.cli.render import number, print_json, print_table
from ludus.cli.simulate import finish_recording, name_recordings
from ludus.cli.sources import (
    GAME_METAVAR,
    RANDOM,
    Source,
    game_options,
    game_type,
    make_player,
    player_type,
    try_to_make,
)
from ludus.demonstrations import DemonstrationError
from ludus.demonstrations.recorded import EpisodeLog
from ludus.metric_keys import SHORT_KEYS
from ludus.play.episodes import SEED_PARAMETER, EndlessGame, Episode, Summary, play_episodes, summarize, team_of
from ludus.play.model import UnusableModel
from ludus.play.players import Player
from ludus.protocol.spec import BehaviorSpec
from ludus.sdk.simulation import Simulation


@dataclass(frozen=True)
class GameSeries:
    """The episodes to play."""

    model: str
    against: str | None
    source: Source
    episodes: int
    first_seed: int
    sample: bool
    teams: tuple[int | None, ...]
    """The model plays these in turn."""


@click.command()
@click.argument("model", type=player_type)
@click.argument("source", metavar=GAME_METAVAR, type=game_type)
@option("--episodes", type=click.IntRange(1, 1_000_000), default=20, help="How many.")
@click.option("--against", type=player_type, help=f"Player of the other teams: {RANDOM!r} or a model (FILE.onnx).")
@click.option(
    "--team",
    "only_team",
    type=click.IntRange(min=0),
    help="The model plays this team only. [all in turn, each seed once with every team]",
)
@option("--seed", type=SEED, default=0, help="Seed of the first game.")
@click.option("--sample", is_flag=True, help="Let models draw their actions. [they take the likeliest]")
@game_options
@click.option(
    "--require",
    "requirements",
    type=REQUIREMENT,
    multiple=True,
    help="Required result, as in 'reward>=475' or 'win>=0.95'. Can be given several times.",
)
@record_option("the model's episodes")
@click.option("--json", "as_json", is_flag=True, help="Print JSON, with every episode.")
def play(
    *,
    model: str,
    source: Source,
    episodes: int,
    against: str | None,
    only_team: int | None,
    seed: int,
    sample: bool,
    arguments: tuple[tuple[str, object], ...],
    requirements: tuple[Requirement, ...],
    record: Path | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Play episodes with an exported MODEL (an .onnx file, or `random`) and say how good it was.

    For instance `ludus play CartPole.onnx gymnasium:CartPole-v1`, or `ludus play new.onnx
    pettingzoo:classic.connect_four_v3 --against old.onnx --sample --episodes 200`. GAME is named as for `ludus
    simulate`. Needs no server. Each episode has the next seed; in games of several teams each seed is played
    once on every side. `ludus play expert.onnx GAME --record expert.npz --episodes 50` makes a demonstration.

    \b
    Exit codes:
      0  every requirement is met
      2  the command line is wrong, or the model does not fit this game
      6  a requirement is not met
    """
    source = replace(source, arguments=dict(arguments), seed_parameter=SEED_PARAMETER, **options)
    (recording,) = name_recordings(record, 1)
    simulation = try_to_make(source)
    log = None if recording is None else EpisodeLog(recording)
    try:
        sides = _sides(simulation, against, only_team)
        series = GameSeries(model, against, source, episodes, seed, sample, sides)
        played = _played(simulation, series, log)
    finally:
        simulation.close()
        if log is not None:
            log.close()
    if as_json:
        print_json(
            {
                "model": model,
                "game": f"{source.library}:{source.name}",
                "against": against,
                "sample": sample,
                "summary": {side: asdict(summary) for side, summary in _sections(series, played)},
                "episodes": [{**asdict(episode), "outcome": episode.outcome.name.lower()} for episode in played],
            }
        )
    else:
        _print(series, played)
    if recording is not None:
        finish_recording(recording)
    ways = {(episode.team, episode.cumulative_reward, episode.length) for episode in played}
    if against is not None and RANDOM not in {model, against} and len(ways) == len(sides) < len(played):
        click.echo("all games of a side went the same way: both models always act alike; try --sample", err=True)
    if not _meets(requirements, summarize(played)):
        sys.exit(Exit.UNMET)


def _sides(simulation: Simulation, against: str | None, only: int | None) -> tuple[int | None, ...]:
    """Return the teams that the model plays. Raises click.UsageError."""
    teams = sorted({team for spec in simulation.behaviors if (team := team_of(spec)) is not None})
    if len(teams) > 1 and against is None:
        raise click.UsageError(
            f"the game has {len(teams)} teams: say who plays the others, with --against {RANDOM} or --against "
            "FILE.onnx; if all players belong together, say --teams 0"
        )
    if len(teams) <= 1 and against is not None:
        raise click.UsageError("the game has one team only: --against needs at least two")
    if only is None:
        return tuple(teams) or (None,)
    if only not in teams:
        raise click.UsageError(f"the game has no team {only}: {', '.join(map(str, teams)) or 'it has no teams at all'}")
    return (only,)


def _played(simulation: Simulation, series: GameSeries, log: EpisodeLog | None) -> list[Episode]:
    """Play the episodes. Raises click.UsageError for a model or a game that cannot be played here."""

    def candidate(spec: BehaviorSpec) -> Player:
        return make_player(series.model, spec, sample=series.sample, seed=series.first_seed)

    def others(spec: BehaviorSpec) -> Player:
        assert series.against is not None, "all players belong to the model's team"
        return make_player(series.against, spec, sample=series.sample, seed=series.first_seed + 1)

    seeds = itertools.count(series.first_seed)
    try:
        episodes = play_episodes(simulation, candidate, others, seeds, series.teams, log)
        return list(itertools.islice(episodes, series.episodes))
    except (UnusableModel, EndlessGame) as error:
        raise click.UsageError(str(error)) from None
    except DemonstrationError as error:
        raise click.UsageError(f"--record: {error}") from None


def _sections(series: GameSeries, played: Sequence[Episode]) -> list[tuple[str, Summary]]:
    """Return a summary of each side's episodes, and one of all."""
    sections = [
        (f"team {team}", summarize(episodes))
        for team in series.teams
        if (episodes := [episode for episode in played if episode.team == team]) and len(series.teams) > 1
    ]
    return [*sections, ("all", summarize(played))]


def _print(series: GameSeries, played: Sequence[Episode]) -> None:
    """Print a table for people."""
    opponent = f" against {_name(series.against)}" if series.against else ""
    last = max(episode.seed for episode in played)
    click.echo(f"{_name(series.model)} in {series.source.name}{opponent}, seeds {series.first_seed} to {last}")
    sections = _sections(series, played)
    decided = any(summary.decided for _, summary in sections)
    outcomes = ("wins", "draws", "losses") if decided else ()
    print_table(
        ("side", "episodes", "reward", "95 % interval", "lowest", "highest", "length", *outcomes),
        (
            (
                side,
                summary.episodes,
                number(summary.mean),
                "-" if summary.low is None else f"{number(summary.low)} to {number(summary.high)}",
                number(summary.lowest),
                number(summary.highest),
                number(summary.mean_length),
                *((summary.wins, summary.draws, summary.losses) if decided else ()),
            )
            for side, summary in sections
        ),
    )


def _meets(requirements: Sequence[Requirement], summary: Summary) -> bool:
    """Print on standard error whether each requirement is met; return whether all of them are."""
    values = {"reward": summary.mean, "length": summary.mean_length}
    if summary.decided:
        shares = (("win", summary.wins), ("draw", summary.draws), ("loss", summary.losses))
        values.update((name, count / summary.decided) for name, count in shares)
    by_key = {SHORT_KEYS[name]: value for name, value in values.items()}
    met = True
    for requirement in requirements:
        value = by_key.get(requirement.key)
        holds = value is not None and requirement.holds(value)
        reason = f"there is only {', '.join(values)}" if value is None else f"it is {value:g}"
        click.echo(f"{requirement.text}: {'met' if holds else 'not met'}, {reason}", err=True)
        met = met and holds
    return met


def _name(player: str | None) -> str:
    return Path(player).name if player else ""
