"""A run that was cut and one that was not end alike, bit by bit (docs/resume.md).

Real trainers with real collectors and a real game over gRPC, in lockstep on the CPU. An attempt is released after a
checkpoint; its last checkpoint is of wherever it is then, in the middle of a round. The game has played on meanwhile
where the next attempt goes on from an older checkpoint, as after a `kill -9`.
"""

import json
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ludus.demonstrations import write
from tests.ludus.demonstrations.shown import make_demonstration
from tests.toys.wanderers import SPEC, Wanderers
from tests.waiting import eventually
from tests.worker.trainer.attempts import Listener, Run, final_state, playing, start_process
from tests.worker.trainer.differences import differences
from worker.trainer import checkpoint

NETWORK = {"hidden_units": 16, "num_layers": 1, "normalize": True}
MEMORY = {**NETWORK, "memory": {"sequence_length": 8, "memory_size": 8}}
PPO = {"batch_size": 16, "buffer_size": 64, "num_epoch": 2}
SAC = {"batch_size": 16, "buffer_size": 400, "buffer_init_steps": 32, "steps_per_update": 4, "save_replay_buffer": True}
EXTRINSIC = {"extrinsic": {"strength": 1.0, "gamma": 0.95}}
SIGNAL = {"strength": 0.1, "gamma": 0.9, "network_settings": {"hidden_units": 8, "num_layers": 1}}
WIND = {"wind": {"sampler_type": "uniform", "sampler_parameters": {"min_value": 0.0, "max_value": 1.0}}}


def show(path: Path, steps: int = 64) -> str:
    """Write a demonstration of somebody who wanders."""
    write(make_demonstration(SPEC, (steps,)), path)
    return str(path)


def trainers(shown: str) -> dict[str, dict[str, Any]]:
    """Return the sections of all trainers that are proved, by name."""
    ppo = {"trainer_type": "ppo", "hyperparameters": PPO, "network_settings": NETWORK}
    sac = {"trainer_type": "sac", "hyperparameters": SAC, "network_settings": NETWORK}
    gail = {"gail": {**SIGNAL, "demo_path": shown, "use_vail": True}}
    return {
        "ppo": ppo,
        "ppo-kl": {**ppo, "hyperparameters": {**PPO, "desired_kl": 10.0, "normalize_values": True}},
        "ppo-limit": {**ppo, "hyperparameters": {**PPO, "max_policy_lag": 0}},
        "ppo-wait": {**ppo, "hyperparameters": {**PPO, "max_policy_lag": 1, "late_steps": "wait"}},
        "ppo-lstm": {**ppo, "network_settings": MEMORY},
        "ppo-gail": {**ppo, "reward_signals": {**EXTRINSIC, **gail}, "behavioral_cloning": {"demo_path": shown}},
        "ppo-curiosity-rnd": {**ppo, "reward_signals": {**EXTRINSIC, "curiosity": SIGNAL, "rnd": SIGNAL}},
        "sac": {**sac, "reward_signals": {**EXTRINSIC, "curiosity": SIGNAL}},
        "sac-filling": {**sac, "hyperparameters": {**SAC, "buffer_init_steps": 1500}},
        "sac-signals": {
            **sac,
            "hyperparameters": {**SAC, "steps_per_update": 48, "reward_signal_steps_per_update": 4},
            "reward_signals": {**EXTRINSIC, "curiosity": SIGNAL},
        },
        "sac-pink-lstm": {**sac, "hyperparameters": {**SAC, "exploration_noise": "pink"}, "network_settings": MEMORY},
        "poca": {"trainer_type": "poca", "hyperparameters": PPO, "network_settings": NETWORK},
    }


def document(section: dict[str, Any], **settings: Any) -> dict[str, Any]:
    """Return a run's configuration: three rounds of PPO between two checkpoints, so that rounds end in messages."""
    own = {"max_steps": 512, "checkpoint_interval": 128, "summary_freq": 96, "time_horizon": 24, "threaded": False}
    return {
        "seed": 5,
        "torch_settings": {"device": "cpu"},
        "behaviors": {"Wanderer": {**own, **section}},
        "environment_parameters": WIND,
        **settings,
    }


def uncut(config: dict[str, Any], folder: Path, game: Wanderers) -> Listener:
    """Train without an interruption."""
    run = Run(config, folder)
    with playing(game, run):
        return run.attempt()


SLOW = ("ppo-lstm", "ppo-gail", "ppo-curiosity-rnd", "sac-pink-lstm", "sac-signals", "poca")
"""Cases that wait for the nightly run."""


@pytest.mark.long
@pytest.mark.timeout(240)
@pytest.mark.parametrize(
    "name", ["ppo", "ppo-limit", "ppo-wait", "sac", *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW)]
)
def test_a_cut_run_ends_as_one_that_was_not_cut(name: str, tmp_path: Path) -> None:
    config = document(trainers(show(tmp_path / "shown.npz"))[name])
    grouped = name == "poca"
    whole = uncut(config, tmp_path / "whole", Wanderers(grouped))

    # Checkpoints are written while training goes on: so slowly that it is not over by then.
    run, game = Run(config, tmp_path / "cut"), Wanderers(grouped, pace=0.02)
    with playing(game, run):
        first = run.attempt(release_after=1)  # ends with a checkpoint of wherever it is
        second = run.attempt(first.folders[-1], release_after=1)
        third = run.attempt(second.folders[0])  # the game has played on since

    assert game.starts == 1, "its episodes went on"
    assert len(game.positions) == 2
    assert differences(final_state(whole), final_state(third)) == []
    cut = first.measured() | second.measured() | third.measured()
    assert cut == whole.measured()
    if name == "ppo-limit":
        stale = [value for (key, _), value in cut.items() if key == "Policy/Stale Share"]
        assert 0.0 < max(stale) < 1.0, "steps that were answered before their round began"


@pytest.mark.timeout(240)
@pytest.mark.slow
def test_a_run_that_is_threaded_now_goes_on_with_new_episodes(tmp_path: Path) -> None:
    config = document(trainers(show(tmp_path / "shown.npz"))["ppo"])
    run, game = Run(config, tmp_path), Wanderers(pace=0.02)
    with playing(game, run):
        first = run.attempt(release_after=1)
        run.config = document({**trainers(show(tmp_path / "shown.npz"))["ppo"], "threaded": True})
        last = run.attempt(first.folders[-1])

    assert game.starts == 2
    assert final_state(last)["Wanderer"]["progress"]["step"] == 512


@pytest.mark.slow
@pytest.mark.timeout(240)
@pytest.mark.faults
def test_what_came_after_the_last_checkpoint_is_done_again_after_a_kill(tmp_path: Path) -> None:
    config = document(trainers(show(tmp_path / "shown.npz"))["ppo"])
    whole = uncut(config, tmp_path / "whole", Wanderers())

    # At its pace the second checkpoint is begun and written long before the game stands still, which is before its end.
    run, game = Run(config, tmp_path / "cut"), Wanderers(pace=0.04, limit=150)
    with playing(game, run):
        process = start_process(run)
        second = tmp_path / "cut" / "attempt-1" / "checkpoint-2" / "state.json"
        eventually(second.exists, seconds=60)  # it is written beside the collection
        written = game.turns
        eventually(lambda: game.turns > written + 3)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        game.go.set()
        folders = sorted((tmp_path / "cut" / "attempt-1").glob("checkpoint-*"))
        last = run.attempt(folders[-1])

    assert game.starts == 1
    ((left, gone_back),) = game.positions
    assert 256 / 3 < gone_back < left, "after the checkpoint's step, which it had left behind when it was killed"
    assert differences(final_state(whole), final_state(last)) == []


ALTERED: dict[str, Callable[[dict[str, Any]], object]] = {
    "generator of actions": lambda state: lane(state)["rng"]["state"].update(state=1),
    "actor's memory": lambda state: agents(state)["memory"].fill(0.0),
    "returns so far": lambda state: agents(state)["returns"].fill(0.0),
    "lengths so far": lambda state: agents(state)["decisions"].fill(0),
    "unfinished segments": lambda state: agents(state)["steps_of_segments"][0].fill(0.0),
    "position of the game": lambda state: move(session(state)),
    "environment parameters": lambda state: session(state)["parameters"].update(wind=9.0),
    "delivered steps": lambda state: collected(state)["rewards"].fill_(9.0),
    "metrics of an unfinished summary": lambda state: state["Wanderer"]["collection"]["recorder"]["series"].clear(),
    "progress": lambda state: state["Wanderer"]["progress"].update(step=64),
}
"""What is handed over into a checkpoint, and how to lose it."""


def session(state: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = state["?collectors"][0]["sessions"][0]
    return found


def agents(state: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = session(state)["agents"]["Wanderer"]
    return found


def lane(state: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = state["?collectors"][0]["lanes"]["Wanderer"]
    return found


def collected(state: dict[str, Any]) -> dict[str, Any]:
    rounds = state["Wanderer"]["collection"]["rounds"]
    found: dict[str, Any] = rounds[min(rounds)]
    return found


def move(simulator: dict[str, Any]) -> None:
    position = json.loads(simulator["position"].tobytes())
    position["place"][0][0] += 1.0
    simulator["position"] = np.frombuffer(json.dumps(position).encode(), np.uint8)


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator["Stage"]:
    """A recurrent run that was released in the middle of a round, with a game that is still there."""
    folder = tmp_path_factory.mktemp("stage")
    section = trainers(show(folder / "shown.npz"))["ppo-lstm"]
    run, game = Run(document(section), folder), Wanderers(limit=55)

    def stands() -> bool:
        standing = game.stood.is_set()
        if standing:
            game.pace = 0.1  # the round has 9 more turns: they take longer than the release
            game.go.set()
        return standing

    with playing(game, run):
        first = run.attempt(release_when=stands)
        game.pace = 0.0
        yield Stage(run, first.folders[-1])
        run.attempt(first.folders[-1])


class Stage:
    """A checkpoint, and what comes of going on from it."""

    def __init__(self, run: Run, folder: Path) -> None:
        self.run = run
        self.folder = folder
        self.expected = self.outcome(folder)

    def outcome(self, folder: Path) -> tuple[dict[str, Any], dict[tuple[str, int], float]]:
        """Return what has been learned at the next checkpoint, and the points up to there."""
        listener = self.run.attempt(folder, release_after=1)
        state = checkpoint.load(listener.folders[0])["Wanderer"]
        step = state["progress"]["step"]
        points = {key: value for key, value in listener.measured().items() if key[1] <= step}
        return {name: state[name] for name in ("algorithm", "progress")}, points


@pytest.mark.timeout(240)
@pytest.mark.slow
@pytest.mark.parametrize("row", [None, *ALTERED])
def test_what_was_handed_over_and_is_lost_again_is_noticed(stage: Stage, row: str | None, tmp_path: Path) -> None:
    state = checkpoint.load(stage.folder)
    if row is not None:
        ALTERED[row](state)
    checkpoint.save(tmp_path, state)

    outcome, points = stage.outcome(tmp_path)

    found = differences(stage.expected, (outcome, points))
    assert found if row is not None else not found
