"""Plays a game by itself, with random actions, and looks at all that comes of it, as a server would."""

import hashlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from ludus.play.checks.influence import action_names
from ludus.play.checks.watch import GameWatch
from ludus.play.players import RandomPlayer, answer
from ludus.protocol.batches import ActionBatch, BehaviorBatch
from ludus.protocol.codec import decode_step, encode_actions
from ludus.protocol.codes import ProtocolError
from ludus.protocol.spec import BehaviorSpec
from ludus.protocol.specs import BehaviorLayout
from ludus.sdk.crashes import last_words, line_of, own_traceback
from ludus.sdk.errors import GameMistake
from ludus.sdk.session import Session
from ludus.sdk.simulation import ResetInfo, Simulation
from ludus.sdk.steps import Actions, StepBuilder

OTHER_SEED: Final = 101
"""Of the actions with which others are compared."""
MOST_IDLE: Final = 10_000
"""Steps in a row in which no agent asks for an action."""


@dataclass(frozen=True)
class Trial:
    """A game that was played."""

    specs: Mapping[str, BehaviorSpec]
    """The announced behaviors, by name."""
    watch: GameWatch
    decisions: int
    episodes: int
    game_seconds: float
    """Seconds in the game's own `reset` and `step`."""
    problem: tuple[str, str, str] | None = None
    """Code, sentence and remedy of what ended the game before its time."""
    trace: str | None = None
    """The traceback of the game's own code, or the last lines of a build."""
    notes: Sequence[tuple[str, str]] = ()
    """Codes and sentences of what is probably a mistake."""


class RandomGame:
    """A simulation, and the server's end of its stream, in this process: messages are encoded and checked."""

    def __init__(self, simulation: Simulation, varied: str | None = None) -> None:
        """`varied`: the part of the action, as `action_names` has it, that is drawn from another generator."""
        self.digest = hashlib.sha256()
        """Of all that the game has said."""
        self._varied = varied
        self._others: dict[str, RandomPlayer] = {}
        self.watch = GameWatch()
        self.seconds = 0.0
        self.decisions = 0
        self.episodes = 0
        self.idle = 0
        """Steps in a row without a decision."""
        self._simulation = simulation
        self._session = Session(simulation.behaviors)
        self._players: dict[str, RandomPlayer] = {}
        self._actions = Actions()

    @property
    def specs(self) -> dict[str, BehaviorSpec]:
        """The announced behaviors, by name."""
        return {spec.name: spec for spec in self._session.behaviors}

    def begin(self) -> None:
        """Reset the game, and draw the first actions. Raises what the game raises, GameMistake and ProtocolError."""
        start = ResetInfo(seed=1, parameters={}, number=0, run_id="doctor", first=True)
        builder = self._session.new_step()
        began = time.perf_counter()
        self._simulation.reset(builder, start)
        self.seconds += time.perf_counter() - began
        self._take(builder)

    def play_on(self) -> None:
        """Step the game, and draw the next actions. Raises as `begin`."""
        builder = self._session.new_step()
        began = time.perf_counter()
        self._simulation.step(builder, self._actions)
        self.seconds += time.perf_counter() - began
        self._take(builder)

    def _take(self, builder: StepBuilder) -> None:
        self._actions = Actions()
        requests = self._session.requests(builder)
        specs = self.specs
        layouts = {name: BehaviorLayout(spec) for name, spec in specs.items()}
        asked = 0
        for request in requests:
            if not request.HasField("step"):
                continue
            batches = decode_step(request.step, layouts)
            self.watch.look(batches, specs)
            asked += _count(batches)
            self.episodes += sum(len(batch.terminals.agent_ids) for batch in batches if batch.terminals is not None)
            for name in {batch.behavior for batch in batches} - self._players.keys():
                self._players[name] = RandomPlayer(specs[name].actions, len(self._players))
                self._others[name] = RandomPlayer(specs[name].actions, OTHER_SEED)
            for batch in batches:
                _add_to(self.digest, batch)
            answers = answer(self._players, batches)
            if self._varied is not None:
                answers = [
                    _varied(given, other, self._varied, specs[given.behavior])
                    for given, other in zip(answers, answer(self._others, batches), strict=True)
                ]
            self.watch.act(answers, specs)
            self._actions = self._session.actions(encode_actions(request.step.step_id, answers))
        self.decisions += asked
        self.idle = 0 if asked else self.idle + 1


def try_game(simulation: Simulation, steps: int, seconds: float) -> Trial:
    """Play until each behavior has had so many decisions, or so many seconds have passed; never raise for the game.

    Steps that only some agents answer do not occur here: all that ask are answered at once.
    """
    game = RandomGame(simulation)
    deadline = time.monotonic() + seconds
    problem, trace = None, None
    try:
        game.begin()
        while time.monotonic() < deadline and game.watch.steps < steps:
            game.play_on()
            if game.idle >= MOST_IDLE:
                problem = (
                    "no_agent",
                    f"No agent has asked for an action in {MOST_IDLE:,} steps of the game.",
                    "Let `step` ask for actions, or end the episode.",
                )
                break
    except GameMistake as mistake:
        problem = (mistake.code, f"{mistake}{line_of(mistake)}.", "A run would end this simulator at that point.")
    except ProtocolError as error:
        problem = (error.code.value, f"{error.message}.", "A server would refuse this message.")
    except (Exception, SystemExit) as error:  # noqa: BLE001  the game's own error, which is what is looked for
        sentence = f"The game crashed after {game.decisions:,} decisions: {last_words(error)}."
        problem, trace = ("game_crashed", sentence, "The lines of the game's own code are above."), own_traceback(error)
    return Trial(game.specs, game.watch, game.decisions, game.episodes, game.seconds, problem, trace)


def without_influence(make: Callable[[], Simulation], part: str, steps: int = 300) -> bool | None:
    """Return whether a game of one seed is the same whatever a part of the action is; None if that cannot be told.

    `part` is a column or branch, named as by `action_names`. It cannot be told of games that are not the same twice
    with the same actions. The game is made three times, and played for so many messages each.
    """
    same, again, other = (_digest(make, varied, steps) for varied in (None, None, part))
    if other == same:
        return True
    return False if same == again else None


def _digest(make: Callable[[], Simulation], varied: str | None, steps: int) -> bytes:
    simulation = make()
    try:
        game = RandomGame(simulation, varied)
        game.begin()
        for _ in range(steps):
            game.play_on()
        return game.digest.digest()
    finally:
        simulation.close()


def _varied(given: ActionBatch, other: ActionBatch, part: str, spec: BehaviorSpec) -> ActionBatch:
    """Return actions with one column or branch of others."""
    index = action_names(spec.actions).index(part)
    continuous, discrete = given.continuous.copy(), given.discrete.copy()
    if index < spec.actions.continuous_size:
        continuous[:, index] = other.continuous[:, index]
    else:
        branch = index - spec.actions.continuous_size
        discrete[:, branch] = other.discrete[:, branch]
    return given._replace(continuous=continuous, discrete=discrete)


def _add_to(digest: "hashlib._Hash", batch: BehaviorBatch) -> None:
    for part in (batch.decisions, batch.terminals):
        if part is not None:
            for column in (part.agent_ids, part.rewards, *part.observations):
                digest.update(column.tobytes())


def _count(batches: list[BehaviorBatch]) -> int:
    return sum(len(batch.decisions.agent_ids) for batch in batches if batch.decisions is not None)
