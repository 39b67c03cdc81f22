"""Every trainer of a configuration can be built."""

from typing import get_args

import pytest
import torch

from server.training.config import BehaviorConfig, PPOConfig
from tests.worker.rollouts import make_config, make_spec
from worker.algorithms.ppo import PPO
from worker.build import build_algorithm, choose_device
from worker.networks.layout import UnsupportedSpec


def test_every_trainer_is_built_from_its_defaults() -> None:
    trainers = get_args(BehaviorConfig) or (PPOConfig,)

    for trainer in trainers:
        if isinstance(trainer, type):
            assert isinstance(build_algorithm(trainer(), make_spec(branches=(2,)), torch.device("cpu"), seed=1), PPO)


def test_unsupported_behavior_is_refused() -> None:
    with pytest.raises(UnsupportedSpec, match="announce at least one continuous action"):
        build_algorithm(make_config(), make_spec(), torch.device("cpu"), seed=1)


def test_a_named_device_is_taken() -> None:
    assert choose_device("cpu") == torch.device("cpu")


def test_no_named_device_takes_a_gpu_where_there_is_one() -> None:
    assert choose_device(None).type == ("cuda" if torch.cuda.is_available() else "cpu")
