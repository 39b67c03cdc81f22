"""bfloat16 is for the encoders of pictures, and for updates only."""

import numpy as np
import torch

from ludus.config.behavior import PPOConfig
from tests.worker.rollouts import make_spec, random_rollout
from worker.learning.build import Demonstrations, build_algorithm
from worker.learning.networks.visual import VisualEncoder
from worker.trainer.precision import bf16_pictures

SPEC = make_spec(observations=(2, (1, 20, 20)), branches=(3,))
CONFIG = PPOConfig.model_validate(
    {
        "hyperparameters": {"batch_size": 8, "buffer_size": 16, "num_epoch": 1},
        "network_settings": {"hidden_units": 8, "num_layers": 1},
    }
)


def test_an_update_in_bf16_is_nearly_the_one_in_float32_and_leaves_float32_weights() -> None:
    rollout = random_rollout(SPEC, [8, 8], np.random.default_rng(1))
    exact, rough = (build_algorithm(CONFIG, SPEC, torch.device("cpu"), 1, Demonstrations({})) for _ in range(2))

    expected = exact.update(rollout, 0)
    with bf16_pictures(enabled=True):
        measured = rough.update(rollout, 0)

    assert expected is not None
    assert measured is not None
    assert not VisualEncoder.in_bfloat16
    difference = abs(measured["Losses/Value Loss"] - expected["Losses/Value Loss"]) / expected["Losses/Value Loss"]
    assert 0 < difference < 0.02
    assert {weight.dtype for weight in rough.actor.parameters()} == {torch.float32}
    assert 0 < np.abs(rough.flat_weights() - exact.flat_weights()).max() < 1e-3
