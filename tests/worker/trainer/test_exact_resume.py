"""A run that was cut and one that was not end alike, bit by bit (docs/resume.md).

Real trainers with real collectors and a real game over gRPC, in lockstep on the CPU. An attempt is released after a
checkpoint; its last checkpoint is of wherever it is then, in the middle of a round. The game has played on meanwhile
where the next attempt goes on from an older checkpoint, as after a `kill -9`.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ludus.demonstrations import Demonstration, write
from tests.toys.wanderers import SPEC, Wanderers
from tests.worker.trainer.attempts import Keeper, Run, differences, final_state, playing

NETWORK = {"hidden_units": 16, "num_layers": 1, "normalize": True}
MEMORY = {**NETWORK, "memory": {"sequence_length": 8, "memory_size": 8}}
PPO = {"batch_size": 16, "buffer_size": 64, "num_epoch": 2}
SAC = {"batch_size": 16, "buffer_size": 400, "buffer_init_steps": 32, "steps_per_update": 4, "save_replay_buffer": True}
EXTRINSIC = {"extrinsic": {"strength": 1.0, "gamma": 0.95}}
SIGNAL = {"strength": 0.1, "gamma": 0.9, "network_settings": {"hidden_units": 8, "num_layers": 1}}
WIND = {"wind": {"sampler_type": "uniform", "sampler_parameters": {"min_value": 0.0, "max_value": 1.0}}}


def show(path: Path, steps: int = 64) -> str:
    """Write a demonstration of somebody who wanders."""
    rng = np.random.default_rng(9)
    write(
        Demonstration(
            spec=SPEC,
            observations=(rng.standard_normal((steps, 4), np.float32),),
            continuous=rng.uniform(-1, 1, (steps, 2)).astype(np.float32),
            discrete=rng.integers(3, size=(steps, 1)).astype(np.int32),
            rewards=np.ones(steps, np.float32),
            terminated=np.arange(steps) == steps - 1,
            truncated=np.zeros(steps, np.bool_),
            starts=np.zeros(1, np.int64),
            final_observations=(np.zeros((1, 4), np.float32),),
            from_start=np.ones(1, np.bool_),
        ),
        path,
    )
    return str(path)


def trainers(shown: str) -> dict[str, dict[str, Any]]:
    """Return the sections of all trainers that are proved, by name."""
    ppo = {"trainer_type": "ppo", "hyperparameters": PPO, "network_settings": NETWORK}
    sac = {"trainer_type": "sac", "hyperparameters": SAC, "network_settings": NETWORK}
    gail = {"gail": {**SIGNAL, "demo_path": shown, "use_vail": True}}
    return {
        "ppo": ppo,
        "ppo-lstm": {**ppo, "network_settings": MEMORY},
        "ppo-gail": {**ppo, "reward_signals": {**EXTRINSIC, **gail}, "behavioral_cloning": {"demo_path": shown}},
        "ppo-curiosity-rnd": {**ppo, "reward_signals": {**EXTRINSIC, "curiosity": SIGNAL, "rnd": SIGNAL}},
        "sac": sac,
        "sac-pink-lstm": {
            **sac,
            "hyperparameters": {**SAC, "exploration_noise": "pink"},
            "network_settings": MEMORY,
        },
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


def uncut(config: dict[str, Any], folder: Path, game: Wanderers) -> Keeper:
    """Train without an interruption."""
    run = Run(config, folder)
    with playing(game, run):
        return run.attempt()


@pytest.mark.parametrize("name", ["ppo", "ppo-lstm", "ppo-gail", "ppo-curiosity-rnd", "sac", "sac-pink-lstm", "poca"])
def test_a_cut_run_ends_as_one_that_was_not_cut(name: str, tmp_path: Path) -> None:
    config = document(trainers(show(tmp_path / "shown.npz"))[name])
    grouped = name == "poca"
    whole = uncut(config, tmp_path / "whole", Wanderers(grouped))

    run, game = Run(config, tmp_path / "cut"), Wanderers(grouped)
    with playing(game, run):
        first = run.attempt(release_after=1)  # ends with a checkpoint of wherever it is
        second = run.attempt(first.folders[-1], release_after=1)
        third = run.attempt(second.folders[0])  # the game has played on since

    assert game.starts == 1, "its episodes went on"
    assert len(game.positions) == 2
    assert differences(final_state(whole), final_state(third)) == []
    cut = first.points() | second.points() | third.points()
    assert cut == whole.points()
