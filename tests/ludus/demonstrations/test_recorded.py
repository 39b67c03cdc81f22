"""What a game tells while it plays becomes a demonstration: each state with the action in it and what came of it."""

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest

from ludus.demonstrations import read
from ludus.demonstrations import recorded as module
from ludus.demonstrations.recorded import RecordedSimulation
from ludus.protocol.batches import ActionBatch
from ludus.protocol.spec import ActionSpec, BehaviorSpec, ObservationSpec
from ludus.sdk import Actions, ResetInfo, Simulation, StepBuilder
from ludus.sdk.session import Session

SPEC = BehaviorSpec("Walker", (ObservationSpec((1,)),), ActionSpec(1, (3,)))
START = ResetInfo(seed=1, parameters={}, number=0, run_id="run", first=True)
Move = Callable[[StepBuilder], None]


class Scripted(Simulation):
    """Plays a script: one entry for the reset, one for each step."""

    def __init__(self, *script: Move, behaviors: Sequence[BehaviorSpec] = (SPEC,)) -> None:
        self.behaviors = behaviors
        self._script = iter(script)
        self.closed = False

    def reset(self, builder: StepBuilder, start: ResetInfo) -> None:
        next(self._script)(builder)

    def step(self, builder: StepBuilder, actions: Actions) -> None:
        next(self._script)(builder)

    def close(self) -> None:
        self.closed = True


def decide(agent: int, value: float, reward: float = 0.0, **more: object) -> Move:
    return lambda builder: builder.request_decision(agent, [value], reward, **more)  # type: ignore[arg-type]


def end(agent: int, value: float, reward: float = 0.0, **more: object) -> Move:
    return lambda builder: builder.end_episode(agent, [value], reward, **more)  # type: ignore[arg-type]


def both(*moves: Move) -> Move:
    def move(builder: StepBuilder) -> None:
        for part in moves:
            part(builder)

    return move


class Player:
    """The server's side: opens turns, answers."""

    def __init__(self, simulation: Simulation) -> None:
        self.simulation = simulation
        self.session = Session(simulation.behaviors)

    def reset(self) -> None:
        builder = self.session.new_step()
        self.simulation.reset(builder, START)

    def step(self, *answers: tuple[int, float, int], behavior: str = "Walker") -> None:
        """Answer agents: (agent, continuous, discrete)."""
        agents, continuous, discrete = (np.array(column) for column in zip(*answers, strict=True))
        batch = ActionBatch(
            behavior,
            agents.astype(np.int32),
            continuous.astype(np.float32)[:, None],
            discrete.astype(np.int32)[:, None],
        )
        self.simulation.step(self.session.new_step(), Actions([batch]))


def record(path: Path, *script: Move) -> Player:
    return Player(RecordedSimulation(Scripted(*script), path))


def test_each_state_has_the_action_taken_in_it_and_the_reward_for_it(tmp_path: Path) -> None:
    player = record(tmp_path / "shown.npz", decide(0, 1), decide(0, 2, 0.5), end(0, 3, 1.5))

    player.reset()
    player.step((0, 0.1, 1))
    player.step((0, -0.2, 2))

    shown = read(tmp_path / "shown.npz")
    assert shown.observations[0][:, 0].tolist() == [1, 2]
    np.testing.assert_allclose(shown.continuous[:, 0], [0.1, -0.2])
    assert shown.discrete[:, 0].tolist() == [1, 2]
    assert shown.rewards.tolist() == [0.5, 1.5]
    assert shown.final_observations[0].tolist() == [[3]]
    assert shown.terminated.tolist() == [False, True]
    assert shown.complete.tolist() == [True]


def test_agents_are_kept_apart_and_truncation_is_no_termination(tmp_path: Path) -> None:
    player = record(
        tmp_path / "shown.npz",
        both(decide(0, 1), decide(1, 10)),
        both(end(1, 11, 5, truncated=True), decide(1, 20), decide(0, 2, 1)),
        both(end(0, 3, 1), end(1, 21, 7)),
    )

    player.reset()
    player.step((0, 0, 0), (1, 0, 1))
    player.step((0, 0, 2), (1, 0, 0))

    shown = read(tmp_path / "shown.npz")
    assert [shown.pick([piece]).observations[0][:, 0].tolist() for piece in range(3)] == [[10], [1, 2], [20]]
    assert shown.truncated.tolist() == [True, False, False, False]
    assert shown.terminated.tolist() == [False, False, True, True]
    assert shown.returns.tolist() == [5, 2, 7]


def test_agents_need_not_be_answered_together(tmp_path: Path) -> None:
    player = record(tmp_path / "shown.npz", both(decide(0, 1), decide(1, 10)), end(1, 11, 5), end(0, 2, 3))

    player.reset()
    player.step((1, 0.5, 1))
    player.step((0, -0.5, 2))

    shown = read(tmp_path / "shown.npz")
    assert shown.observations[0][:, 0].tolist() == [10, 1]
    assert shown.continuous[:, 0].tolist() == [0.5, -0.5]


def test_masks_and_groups_are_kept(tmp_path: Path) -> None:
    player = record(
        tmp_path / "shown.npz",
        decide(0, 1, mask=[1, 0, 1], group=2),
        decide(0, 2, group=2, group_reward=4.0),
        end(0, 3, group=2, group_reward=6.0),
    )

    player.reset()
    player.step((0, 0, 0))
    player.step((0, 0, 1))

    shown = read(tmp_path / "shown.npz")
    assert shown.action_masks is not None
    assert shown.group_ids is not None
    assert shown.group_rewards is not None
    assert shown.action_masks.tolist() == [[1, 0, 1], [1, 1, 1]]
    assert shown.group_ids.tolist() == [2, 2]
    assert shown.group_rewards.tolist() == [4, 6]


def test_an_agent_that_ends_while_it_waits_earns_for_its_last_answered_action(tmp_path: Path) -> None:
    player = record(
        tmp_path / "shown.npz", both(decide(0, 1), decide(1, 10)), decide(0, 2, 1), both(end(0, 3, 5), end(1, 11))
    )

    player.reset()
    player.step((0, 0, 0))
    player.step((1, 0, 0))

    shown = read(tmp_path / "shown.npz")
    assert shown.observations[0][:, 0].tolist() == [1, 10]
    assert shown.rewards.tolist() == [6, 0]
    assert shown.final_observations[0].tolist() == [[3], [11]]


def test_a_reset_cuts_episodes_without_the_action_whose_outcome_nobody_saw(tmp_path: Path) -> None:
    player = record(tmp_path / "shown.npz", decide(0, 1), decide(0, 2, 1), decide(0, 3, 2), decide(0, 9), end(0, 10, 3))

    player.reset()
    player.step((0, 0.1, 0))
    player.step((0, 0.2, 0))
    player.reset()
    player.step((0, 0.4, 0))

    shown = read(tmp_path / "shown.npz")
    assert shown.observations[0][:, 0].tolist() == [1, 2, 9]
    assert shown.final_observations[0][:, 0].tolist() == [3, 10]
    assert shown.complete.tolist() == [False, True]
    assert not shown.terminated[1]


def test_closing_keeps_what_was_played_and_closes_the_game(tmp_path: Path) -> None:
    game = Scripted(decide(0, 1), decide(0, 2, 1))
    simulation = RecordedSimulation(game, tmp_path / "shown.npz")
    player = Player(simulation)
    player.reset()
    player.step((0, 0.1, 0))

    simulation.close()

    assert game.closed
    assert read(tmp_path / "shown.npz").steps == 1
    assert [file.name for file in tmp_path.iterdir()] == ["shown.npz"]


def test_teams_share_a_file_and_behaviors_do_not(tmp_path: Path) -> None:
    names = ("Striker?team=0", "Striker?team=1", "Goal keeper")
    specs = [BehaviorSpec(name, SPEC.observations, SPEC.actions) for name in names]
    game = Scripted(
        both(*(decide(0, place, behavior=name) for place, name in enumerate(names))),
        end(0, 5, behavior=names[0]),
        end(0, 6, behavior=names[1]),
        end(0, 7, behavior=names[2]),
        behaviors=specs,
    )
    player = Player(RecordedSimulation(game, tmp_path / "shown.npz"))

    player.reset()
    for name in names:
        player.step((0, 0, 0), behavior=name)

    assert sorted(file.name for file in tmp_path.iterdir()) == ["shown-Goal_keeper.npz", "shown-Striker.npz"]
    assert read(tmp_path / "shown-Striker.npz").observations[0][:, 0].tolist() == [0, 1]
    assert read(tmp_path / "shown-Goal_keeper.npz").spec.name == "Goal keeper"


def test_an_endless_episode_is_written_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_PIECE_BYTES", 4 * 3)
    player = record(tmp_path / "shown.npz", *(decide(0, value, 1) for value in range(10)))

    player.reset()
    for _ in range(9):
        player.step((0, 0, 0))

    shown = read(tmp_path / "shown.npz")
    assert shown.lengths.tolist() == [4, 4]
    assert shown.from_start.tolist() == [True, False]
    assert shown.observations[0][:, 0].tolist() == list(range(8))
    assert shown.final_observations[0][:, 0].tolist() == [4, 8]
