"""Hidden layers with layer norms: what they compute, how they start, and what every trainer makes of them."""

from pathlib import Path

import numpy as np
import pytest
import torch
from pydantic import TypeAdapter

from ludus.collector.layout import BodyLayout
from ludus.config.behavior import BehaviorConfig
from ludus.config.network import NetworkSettings
from ludus.config.trainer import ReinforcementConfig
from tests.server.config.checks import behavior, problem_of
from tests.worker.rollouts import equal_states, make_spec, random_rollout
from worker.experience.rollout import Rollout
from worker.learning.build import Demonstrations, build_algorithm
from worker.learning.networks.normed import LayerNormBody, SimbaBlock, SimbaBody, hidden_body
from worker.onnx.export import export_onnx
from worker.trainer import checkpoint
from worker.trainer.learner import sample_of

CONFIG: TypeAdapter[ReinforcementConfig] = TypeAdapter(BehaviorConfig)
TRAINERS = {
    "ppo": {"batch_size": 8, "buffer_size": 24, "num_epoch": 1},
    **{
        name: {"batch_size": 8, "buffer_size": 64, "steps_per_update": 12, "save_replay_buffer": True}
        for name in ("sac", "dqn", "td3", "tqc", "crossq")
    },
}


def generator(seed: int = 1) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_a_layer_is_normalised_before_its_activation() -> None:
    body = LayerNormBody(2, 2, 1, generator(), activation="relu")
    with torch.no_grad():
        body.layers[0].weight.copy_(torch.eye(2))
        body.norms[0].weight.copy_(torch.tensor([2.0, 3.0]))
        body.norms[0].bias.copy_(torch.tensor([0.5, 1.0]))

    # mean 4, deviation 3: (-1, 1) before scale and shift; relu(-2 + 0.5) = 0 and 3 + 1
    assert body(torch.tensor([[1.0, 7.0]])).tolist()[0] == pytest.approx([0.0, 4.0], abs=1e-4)


def test_a_block_adds_its_correction_of_the_normalised_input() -> None:
    block = SimbaBlock(2, generator(), activation="relu")
    with torch.no_grad():
        block.widening.weight.zero_()
        block.widening.weight[:2] = torch.eye(2)
        block.narrowing.weight.zero_()
        block.narrowing.weight[:, :2] = torch.tensor([[10.0, 0.0], [0.0, 10.0]])

    # normalised: (-1, 1); relu: (0, 1); times 10 and added
    assert block(torch.tensor([[1.0, 7.0]])).tolist()[0] == pytest.approx([1.0, 17.0], abs=1e-3)


def test_simba_starts_with_an_orthogonal_embedding_wide_blocks_and_ends_in_a_norm() -> None:
    body = SimbaBody(5, 16, 3, generator(), activation="relu")

    gram = body.embedding.weight.t() @ body.embedding.weight
    torch.testing.assert_close(gram, torch.eye(5), atol=1e-5, rtol=0.0)
    assert [tuple(block.widening.weight.shape) for block in body.blocks] == [(64, 16)] * 3
    features = body(torch.randn(10, 5, generator=generator()) * 100.0)
    torch.testing.assert_close(features.mean(1), torch.zeros(10), atol=1e-5, rtol=0.0)
    torch.testing.assert_close(features.square().mean(1), torch.ones(10), atol=1e-3, rtol=0.0)


@pytest.mark.parametrize("hidden_type", ["layer_norm", "simba"])
def test_initial_weights_come_from_the_generator_alone(hidden_type: str) -> None:
    settings = NetworkSettings.model_validate({"hidden_units": 8, "hidden_type": hidden_type})
    layout = BodyLayout.of(make_spec(observations=(3,), continuous=1).observations, settings)
    torch.manual_seed(1)
    one = hidden_body(3, layout, generator())
    torch.manual_seed(2)
    other = hidden_body(3, layout, generator())

    assert equal_states(one.state_dict(), other.state_dict())


@pytest.mark.parametrize("hidden_type", ["layer_norm", "simba"])
@pytest.mark.parametrize("trainer", TRAINERS)
def test_every_trainer_learns_survives_a_checkpoint_and_exports(trainer: str, hidden_type: str, tmp_path: Path) -> None:
    spec = make_spec(observations=(3,), **({"branches": (3,)} if trainer == "dqn" else {"continuous": 2}))
    config = CONFIG.validate_python(
        {
            "trainer_type": trainer,
            "hyperparameters": TRAINERS[trainer],
            "network_settings": {"hidden_units": 8, "num_layers": 1, "normalize": True, "hidden_type": hidden_type},
        }
    )
    algorithm, resumed = (
        build_algorithm(config, spec, torch.device("cpu"), seed, Demonstrations({})) for seed in (1, 2)
    )
    before = algorithm.flat_weights()

    def played(seed: int) -> Rollout:
        rng = np.random.default_rng(seed)
        actions = np.tanh(rng.normal(size=(24, spec.actions.continuous_size)))
        return random_rollout(spec, (5, 3, 8, 1, 6, 1), rng, continuous=actions, sequences=np.full(6, seed))

    measured = algorithm.update(played(0), 24)

    assert measured is not None
    assert np.isfinite(list(measured.values())).all()
    assert np.abs(algorithm.flat_weights() - before).max() > 0
    checkpoint.save(tmp_path, algorithm.state_dict())
    resumed.load_state_dict(checkpoint.load(tmp_path))
    rollout = played(1)
    assert resumed.update(rollout, 48) == algorithm.update(rollout, 48)
    assert equal_states(algorithm.state_dict(), resumed.state_dict())
    observations, masks = sample_of(rollout)
    export_onnx(algorithm.actor, spec, tmp_path / "model.onnx", observations, masks)  # checks itself against torch


def test_poca_refuses_them_with_the_way_out() -> None:
    problem = problem_of(behavior(trainer_type="poca", network_settings={"hidden_type": "simba"}))

    assert (problem.path, problem.code) == ("behaviors.A.network_settings.hidden_type", "contradiction")
    assert "take trainer_type ppo" in problem.message
