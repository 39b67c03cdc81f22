"""ML-Agents' update, timed. Runs in an environment of its own (see ../README.md), and imports nothing of Ludus.

    python mlagents_update.py ppo|sac CONFIG.yaml DEVICE

Fills the trainer's buffer with random experience of 3DBall's form (8 observations, 2 continuous actions, 12 agents),
prints `ready`, and then, for each line on stdin, the seconds of a policy update and its number of samples.
"""

import copy
import logging
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml
from mlagents.plugins.trainer_type import register_trainer_plugins
from mlagents.torch_utils import set_torch_config
from mlagents.trainers.behavior_id_utils import BehaviorIdentifiers
from mlagents.trainers.environment_parameter_manager import EnvironmentParameterManager
from mlagents.trainers.settings import TorchSettings, TrainerSettings
from mlagents.trainers.torch_entities.action_log_probs import LogProbsTuple
from mlagents.trainers.trainer.trainer_factory import TrainerFactory
from mlagents.trainers.trajectory import AgentExperience, Trajectory
from mlagents_envs.base_env import (
    ActionSpec,
    ActionTuple,
    BehaviorSpec,
    DimensionProperty,
    ObservationSpec,
    ObservationType,
)

AGENTS, STEPS, OBSERVATION, ACTIONS, SAC_UPDATES = 12, 1000, 8, 2, 100


def make_trainer(settings: TrainerSettings) -> Any:
    """Return a trainer with a policy, as the factory makes it for a run."""
    dimensions = (DimensionProperty.NONE,)
    spec = BehaviorSpec(
        [ObservationSpec((OBSERVATION,), dimensions, ObservationType.DEFAULT, "state")],
        ActionSpec.create_continuous(ACTIONS),
    )
    factory = TrainerFactory({"3DBall": settings}, "/tmp/none", True, False, 1, EnvironmentParameterManager(), None)  # noqa: S108  (never written)
    trainer = factory.generate("3DBall")
    identifiers = BehaviorIdentifiers.from_name_behavior_id("3DBall?team=0")
    policy = trainer.create_policy(identifiers, spec)
    trainer.add_policy(identifiers, policy)
    return trainer


def trajectory(agent: int, length: int, rng: np.random.Generator) -> Trajectory:
    """Return random experience of one agent."""

    def experience() -> AgentExperience:
        log_probs = LogProbsTuple(rng.normal(-1, 0.1, ACTIONS).astype(np.float32), np.zeros(0, np.float32))
        action = ActionTuple(np.tanh(rng.normal(size=ACTIONS)).astype(np.float32), np.zeros(0, np.int32))
        return AgentExperience(
            obs=[rng.normal(size=OBSERVATION).astype(np.float32)],
            reward=0.1,
            done=False,
            action=action,
            action_probs=log_probs,
            action_mask=None,
            prev_action=np.zeros(0, np.float32),
            interrupted=False,
            memory=None,
            group_status=[],
            group_reward=0.0,
        )

    return Trajectory(
        [experience() for _ in range(length)],
        [rng.normal(size=OBSERVATION).astype(np.float32)],
        [],
        f"agent-{agent}",
        "3DBall?team=0",
    )


def main() -> None:
    """Serve updates."""
    kind, config, device = sys.argv[1:]
    logging.disable(logging.CRITICAL)
    torch.set_num_threads(1)
    set_torch_config(TorchSettings(device=device))  # else it takes a GPU wherever there is one
    register_trainer_plugins()
    document = yaml.safe_load(Path(config).read_text())
    settings = TrainerSettings.structure(document["behaviors"]["3DBall"], TrainerSettings)
    trainer = make_trainer(settings)
    rng = np.random.default_rng(1)
    for agent in range(AGENTS):
        trainer._process_trajectory(trajectory(agent, STEPS, rng))
    full = copy.deepcopy(trainer.update_buffer)
    print("ready", flush=True)
    for _ in sys.stdin:
        if kind == "ppo":
            trainer.update_buffer = copy.deepcopy(full)
            samples = AGENTS * STEPS * trainer.hyperparameters.num_epoch
        else:  # as many updates as the rate limiter then finds due
            samples = SAC_UPDATES * trainer.hyperparameters.batch_size
            per_update = trainer.steps_per_update
            trainer._step = (
                trainer.hyperparameters.buffer_init_steps + (trainer.update_steps + SAC_UPDATES - 0.5) * per_update
            )
            trainer.reward_signal_update_steps = 10**12
        begin = time.perf_counter()
        trainer._update_policy()
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        print(time.perf_counter() - begin, samples, flush=True)


main()
