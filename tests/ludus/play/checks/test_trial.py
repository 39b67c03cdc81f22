"""Each planted fault of a game is found, where it was planted and nowhere else; sound games have no finding."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ludus.adapters.gymnasium import EnvironmentSimulation
from ludus.adapters.gymnasium import make_simulation as make_gymnasium
from ludus.adapters.pettingzoo import make_simulation as make_pettingzoo
from ludus.play.checks.facts import Fact
from ludus.play.checks.trial import Trial, try_game, without_influence
from ludus.play.checks.watch import GameWatch
from ludus.protocol.batches import ActionBatch, BehaviorBatch, DecisionBatch, TerminalBatch
from ludus.protocol.spec import ActionSpec, BehaviorSpec, ObservationSpec
from ludus.sdk import Actions, ResetInfo, Simulation, StepBuilder
from tests.toys.ailing import FAULTS, Cue, Heavy, Pictures, Walk

STEPS, SECONDS = 2400, 120.0


def found(make: Callable[[], Simulation]) -> tuple[Trial, list[Fact]]:
    """Play a game; return what the checks find in it."""
    trial = try_game(make(), STEPS, SECONDS)
    return trial, [fact for _, fact in trial.watch.facts(lambda part: without_influence(make, part) is True)]


@pytest.mark.long
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_found_where_it_is_and_nowhere_else(fault: str) -> None:
    trial, facts = found(lambda: EnvironmentSimulation([Walk(fault)], "Walk"))

    expected = FAULTS[fault]
    broken = expected in {"bad_game", "game_crashed"}
    assert {fact.code for fact in facts} == (set() if broken or expected is None else {expected})
    assert (trial.problem is not None) is broken
    if trial.problem is not None:
        assert trial.problem[0] == expected
    if fault == "ignores one of its actions":
        assert facts[0].figures["ignored"] == ["branch 1"]


SOUND: dict[str, Callable[[], Simulation]] = {
    "CartPole": lambda: make_gymnasium("CartPole-v1"),
    "eight CartPoles": lambda: make_gymnasium("CartPole-v1", 8),
    "a lander": lambda: EnvironmentSimulation([Heavy()], "Heavy"),
    "pictures": lambda: EnvironmentSimulation([Pictures()], "Pictures"),
    "a cue to remember": lambda: EnvironmentSimulation([Cue()], "Cue"),
    "several players": lambda: make_pettingzoo("classic.tictactoe_v3", 2),
}


@pytest.mark.long
@pytest.mark.parametrize("name", SOUND)
def test_a_sound_game_has_no_finding(name: str) -> None:
    trial, facts = found(SOUND[name])

    assert trial.problem is None
    assert [fact.message for fact in facts] == []
    assert trial.watch.steps >= STEPS
    assert trial.episodes > 0
    assert trial.game_seconds > 0


def test_a_trial_ends_in_time_and_without_judging() -> None:
    trial = try_game(EnvironmentSimulation([Walk("never ends")], "Walk"), 10**9, 0.2)

    assert 0 < trial.decisions < 10**6
    assert trial.problem is None


def test_a_game_in_which_no_agent_asks_is_said_so() -> None:
    class Idle(Simulation):
        behaviors = (BehaviorSpec("Idle", (ObservationSpec((1,)),), ActionSpec(0, (2,))),)

        def reset(self, builder: StepBuilder, start: ResetInfo) -> None:
            return None

        def step(self, builder: StepBuilder, actions: Actions) -> None:
            return None

    trial = try_game(Idle(), 10, SECONDS)

    assert trial.problem is not None
    assert trial.problem[0] == "no_agent"


@pytest.mark.parametrize(
    ("game", "part", "ignored"),
    [
        (lambda: EnvironmentSimulation([Walk()], "Walk"), "branch 0", False),
        (lambda: EnvironmentSimulation([Walk("ignores its action")], "Walk"), "branch 0", True),
        (lambda: EnvironmentSimulation([Walk("ignores one of its actions")], "Walk"), "branch 0", False),
        (lambda: EnvironmentSimulation([Walk("ignores one of its actions")], "Walk"), "branch 1", True),
        (lambda: make_gymnasium("FrozenLake-v1"), "branch 0", False),
        (lambda: EnvironmentSimulation([Heavy()], "Heavy"), "continuous column 1", False),
    ],
)
def test_games_of_one_seed_tell_whether_a_part_of_the_action_counts(
    game: Callable[[], Simulation], part: str, ignored: bool
) -> None:
    assert without_influence(game, part) is ignored


@pytest.mark.long
@settings(max_examples=6, deadline=None)
@given(
    agents=st.integers(1, 5),
    elements=st.integers(1, 6),
    columns=st.integers(0, 2),
    branches=st.lists(st.integers(2, 4), max_size=2),
    masked=st.booleans(),
    seed=st.integers(0, 2**16),
)
def test_well_behaved_random_games_have_no_finding(
    agents: int, elements: int, columns: int, branches: list[int], masked: bool, seed: int
) -> None:
    """Observations follow from actions, rewards from observations, and agents come and go."""
    if not columns and not branches:
        branches = [2]
    spec = BehaviorSpec("Random", (ObservationSpec((elements,)),), ActionSpec(columns, tuple(branches)))
    rng = np.random.default_rng(seed)
    width = columns + len(branches)
    weights = rng.normal(0, 1, (width, elements)) + np.sign(rng.normal(0, 1, (width, elements)))
    watch = GameWatch()
    state = rng.normal(0, 1, (agents, elements))
    lives = np.zeros(agents, bool)
    while watch.steps < 1600:
        rewards = state.mean(1).astype(np.float32)
        done = lives & (rng.random(agents) < 0.05)
        terminals = None
        if done.any():
            cut = rng.random(done.sum()) < 0.5
            terminals = TerminalBatch(
                np.flatnonzero(done).astype(np.int32), rewards[done], (state[done].astype(np.float32),), cut
            )
            state[done] = rng.normal(0, 1, (done.sum(), elements))
        lives[:] = True
        masks = None
        if masked and branches:
            masks = (rng.random((agents, sum(branches))) < 0.8).astype(np.uint8)
            masks[:, np.cumsum([0, *branches[:-1]])] = 1
        ids = np.arange(agents, dtype=np.int32)
        decisions = DecisionBatch(ids, rewards, (state.astype(np.float32),), masks)
        watch.look([BehaviorBatch("Random", decisions, terminals)], {"Random": spec})
        continuous, discrete = _drawn(rng, agents, spec.actions, masks)
        watch.act([ActionBatch("Random", ids, continuous, discrete)], {"Random": spec})
        push = np.column_stack([continuous, *(discrete[:, index : index + 1] for index in range(len(branches)))])
        state = 0.5 * state + (push - push.mean()) @ weights + rng.normal(0, 0.1, state.shape)

    assert [fact.message for _, fact in watch.facts(lambda _: True)] == []


def _drawn(rng: np.random.Generator, agents: int, actions: ActionSpec, masks: Any) -> Any:
    continuous = rng.uniform(-1, 1, (agents, actions.continuous_size)).astype(np.float32)
    discrete = np.zeros((agents, len(actions.discrete_branches)), np.int32)
    start = 0
    for branch, size in enumerate(actions.discrete_branches):
        lots = rng.random((agents, size))
        if masks is not None:
            lots[masks[:, start : start + size] == 0] = -1
        discrete[:, branch] = lots.argmax(1)
        start += size
    return continuous, discrete
