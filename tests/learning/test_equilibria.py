"""Self-play on games whose equilibria are known, measured exactly, with whole trainers and real collectors.

Exploitability is what a best answer wins (`examples/games`), computed from the probabilities of a policy. In
rock-paper-scissors a policy that learns to beat the newest one circles around the equilibrium.
"""

import runpy
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from ludus.config.network import NetworkSettings
from ludus.protocol.spec import BehaviorSpec
from tests.worker.selfplay.match_day import Recorder
from worker.learning.networks.actor import Actor
from worker.trainer.initialization import load_policy
from worker.trainer.loop import Trainer
from worker.trainer.messages import Job

pytestmark = [pytest.mark.learning, pytest.mark.hours, pytest.mark.slow, pytest.mark.timeout(1800)]

GAMES = Path(__file__).resolve().parent.parent.parent / "examples/games"
scissors = SimpleNamespace(**runpy.run_path(str(GAMES / "scissors.py")))

NETWORK = {"num_layers": 1, "hidden_units": 16}
SIMULATORS, TABLES = 4, 128
ROUND = SIMULATORS * TABLES


def section(steps: int, self_play: dict[str, Any], **hyperparameters: Any) -> dict[str, Any]:
    """Return the configuration of a behavior whose team 0 learns, with 60 checkpoints."""
    return {
        "hyperparameters": {
            "batch_size": ROUND // 4,
            "buffer_size": ROUND,
            "learning_rate_schedule": "constant",
            "beta_schedule": "constant",
            "epsilon_schedule": "constant",
            **hyperparameters,
        },
        "network_settings": NETWORK,
        "max_steps": steps,
        "checkpoint_interval": steps // 60,
        "summary_freq": steps,
        "time_horizon": 8,
        "self_play": {"save_steps": ROUND - 1, "team_change": 10**9, "swap_steps": ROUND // 2, **self_play},
    }


def run(recorder: Recorder, behavior: str, document: dict[str, Any], folder: Path, seed: int) -> None:
    """Train to the end."""
    config: Any = {"behaviors": {behavior: document}}
    job = Job(run_id="alone", attempt=1, config=config, seed=seed, scratch=str(folder), collectors=1)
    finished = Trainer(job, recorder, []).run()
    recorder.join()
    assert (finished.outcome, finished.reason) == ("succeeded", "completed"), finished.detail


def probabilities(folders: Sequence[Path], spec: BehaviorSpec, observations: np.ndarray) -> np.ndarray:
    """Return what the policies of checkpoints do with some observations: (checkpoints, observations, actions)."""
    actor = Actor(spec, NetworkSettings.model_validate(NETWORK), torch.Generator())
    rows = []
    for folder in folders:
        load_policy(actor, spec.behavior, folder)
        with torch.no_grad():
            head, _ = actor(actor.encode([torch.from_numpy(observations)]))
            rows.append(torch.softmax(actor.parts(head).logits.double(), 1).numpy())
    return np.array(rows)


def play_scissors(folder: Path, seed: int) -> np.ndarray:
    """Train rock-paper-scissors against the newest policy; return the policy of each checkpoint, (checkpoints, 3)."""
    document = section(120 * ROUND, {"play_against_latest_model_ratio": 1.0}, learning_rate=1e-3, beta=0.05)
    recorder = Recorder(*(scissors.Scissors(TABLES) for _ in range(SIMULATORS)))
    run(recorder, "Scissors", document, folder, seed)
    return probabilities(recorder.folders, scissors.Scissors.behaviors[0], np.ones((1, 1), np.float32))[:, 0]


def test_rock_paper_scissors_against_the_newest_policy_alone_goes_round(tmp_path: Path) -> None:
    policies = play_scissors(tmp_path, 1)

    later = [scissors.exploitability(policy) for policy in policies[len(policies) // 2 :]]
    assert fmean(later) > 0.4, np.round(policies, 2)
    mean = scissors.exploitability(policies.mean(0))
    assert mean < fmean(later) / 2, "what converges, if anything does, is the mean of the policies"
