"""The games of `ludus simulate` and `ludus play`, and the players that need no server."""

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Final

import click

from ludus.adapters import Adapter
from ludus.cli.options import Command, assignment, parsed
from ludus.cli.render import LINES, echo
from ludus.json_values import JsonObject
from ludus.play.episodes import team_of
from ludus.play.model import ModelPlayer
from ludus.play.players import Player, RandomPlayer
from ludus.play.scripted import ScriptedSimulation
from ludus.plugins import Kind, PluginError, broken, load_all, load_object
from ludus.protocol.spec import BehaviorSpec
from ludus.sdk.crashes import GameNotMade
from ludus.sdk.simulation import Simulation

ADAPTERS: Final[Mapping[str, Adapter]] = load_all(Kind.ADAPTERS, Adapter)
"""By the word before the colon in the name of a game."""
GAME_METAVAR: Final = "GAME"
GAME_FORMS: Final = ", ".join(f"{name}:{adapter.form}" for name, adapter in ADAPTERS.items()) + " or MODULE:CLASS"
RANDOM: Final = "random"


@dataclass(frozen=True)
class Source:
    """Games, as the command line names them. Travels to other processes as JSON."""

    library: str
    """The name of its adapter."""
    name: str
    """The library's name of the game."""
    arguments: Mapping[str, object] = field(default_factory=dict)
    """Arguments of the game itself."""
    behavior: str | None = None
    separate: bool = False
    teams: Sequence[int] = ()
    """These three say which players share a behavior. Games for one player have a behavior only."""
    autoreset: str | None = None
    """How vector environments begin episodes, as in `ludus.adapters.vector.MODES`."""
    seed_parameter: str | None = None

    def make(self, count: int = 1, seed: int | None = None) -> Simulation:
        """Make `count` games. Raises PluginError without the library, and the errors of the library and the game."""
        if os.getcwd() not in sys.path:  # noqa: PTH109  as text
            sys.path.insert(0, os.getcwd())  # noqa: PTH109  one's own games lie in the working directory
        adapter = ADAPTERS[self.library]
        options: JsonObject = {"behavior": self.behavior, "seed": seed, "seed_parameter": self.seed_parameter}
        factory = adapter.factory
        if self.autoreset is not None:
            factory, options["autoreset"] = adapter.vector_factory, self.autoreset
        elif adapter.has_teams:
            options |= {"separate": self.separate, "teams": tuple(self.teams)}
        simulation: Simulation = load_object(factory)(self.name, count, arguments=self.arguments, **options)
        return simulation


@parsed("game")
def game_type(text: str) -> Source:
    """Read `LIBRARY:GAME`, or a Python game of one's own: `python:FILE.py[:CLASS]`, `MODULE:CLASS`."""
    library, _, name = text.partition(":")
    if library not in ADAPTERS:
        for known, adapter in ADAPTERS.items():
            if adapter.accepts and load_object(adapter.accepts)(text):
                return Source(known, text)
    if library not in ADAPTERS or not name:
        problems = "".join(f"; {problem}" for problem in broken(library))
        examples = ", ".join(f"{known}:{adapter.example}" for known, adapter in ADAPTERS.items())
        raise ValueError(f"{text!r} names no game; write {GAME_FORMS}, as in {examples}{problems}")
    return Source(library, name)


@parsed("numbers")
def teams_type(text: str) -> tuple[int, ...]:
    """Read `0,1,1`."""
    numbers = text.split(",")
    if not all(number.strip().isdecimal() for number in numbers):
        raise ValueError(f"{text!r} names no teams; write their numbers, as in 0,1")
    return tuple(int(number) for number in numbers)


@parsed("player")
def player_type(text: str) -> str:
    """Check `random`, or the file of an exported model."""
    if text != RANDOM and not Path(text).is_file():
        raise ValueError(f"{text!r} is neither {RANDOM!r} nor a file")
    return text


@parsed("team=player")
def scripted_type(text: str) -> tuple[int, object]:
    """Read `TEAM=PLAYER`."""
    team, equals, player = text.partition("=")
    if not equals or not team.isdecimal():
        raise ValueError(f"{text!r} names no team; write for instance 1={RANDOM} or 1=champion.onnx")
    return int(team), player_type.read(player)


def game_options(command: Command) -> Command:
    """Add the options of the game itself."""
    arguments = click.option(
        "--env-arg",
        "arguments",
        metavar="KEY=VALUE",
        type=assignment,
        multiple=True,
        help="Argument of the game itself, as in max_cycles=100. Can be given several times.",
    )
    teams = click.option(
        "--teams",
        type=teams_type,
        default=(),
        metavar="TEAM,...",
        help="PettingZoo: team of each player in the game's order, or one for all. [each its own, or by kind]",
    )
    autoreset = click.option(
        "--autoreset",
        type=click.Choice(["next-step", "same-step", "disabled"]),
        help="Vector environments: how their episodes begin. [as they say]",
    )
    separate = click.option(
        "--separate", is_flag=True, help="PettingZoo: a behavior of its own for each player, with its name."
    )
    return autoreset(separate(teams(arguments(command))))


def make_player(player: str, spec: BehaviorSpec, *, sample: bool, seed: int | None = None) -> Player:
    """Make a player for an announced behavior: `random`, or a model. Raises UnusableModel."""
    if player == RANDOM:
        return RandomPlayer(spec.actions, seed or 0)
    return ModelPlayer(Path(player), spec, sample=sample, seed=seed)


def with_scripted(simulation: Simulation, scripted: Mapping[int, str]) -> Simulation:
    """Assign built-in players to the named teams. Raises ValueError for a team that the game does not have.

    Models draw their actions, as they did when they were trained.
    """
    if not scripted:
        return simulation
    players: dict[str, Player] = {}
    for team, player in scripted.items():
        specs = [spec for spec in simulation.behaviors if team_of(spec) == team]
        if not specs:
            teams = sorted({str(team_of(spec)) for spec in simulation.behaviors} - {"None"})
            advice = f"only {', '.join(teams)}" if teams else "nor any other"
            raise ValueError(f"--scripted {team}={player}: the game has no team {team}, {advice}")
        players.update((spec.name, make_player(player, spec, sample=True)) for spec in specs)
    return ScriptedSimulation(simulation, players)


def check(source: Source, scripted: Mapping[int, str], environments: int = 1) -> None:
    """Raise click.UsageError, with the reason, unless this machine can make the games and play the scripted teams."""
    simulation = try_to_make(source, environments)
    try:
        with_scripted(simulation, scripted)
    except ModuleNotFoundError as error:
        raise click.UsageError(f"{error.name} is not installed here; pip install onnxruntime") from None
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    finally:
        simulation.close()


def try_to_make(source: Source, environments: int = 1) -> Simulation:
    """Make one game, or a vector of so many environments. Raises click.UsageError with the reason."""
    adapter = ADAPTERS[source.library]
    if (not adapter.has_teams or source.autoreset) and (source.separate or source.teams):
        raise click.UsageError("--teams and --separate are for games with several players, as pettingzoo:GAME")
    if not adapter.vector_factory and source.autoreset is not None:
        raise click.UsageError("--autoreset is for vector environments, as gymnasium-vec:ID")
    for module in adapter.modules:
        try:
            import_module(module)
        except ModuleNotFoundError as error:
            if error.name not in adapter.modules:
                raise
            raise click.UsageError(f"{error.name} is not installed here; pip install {adapter.packages}") from None
    try:
        # Arguments of a vector may depend on its size, as EnvPool's batch_size; of other games one tells all.
        return source.make(environments if adapter.vector_factory == adapter.factory else 1)
    except GameNotMade as error:
        if error.trace is not None:
            echo(error.trace, err=True, kept=LINES)
        raise click.UsageError(str(error)) from None
    except (ValueError, PluginError) as error:
        raise click.UsageError(f"{source.name} cannot be simulated: {error}") from None
