"""Exported models, as onnxruntime and Unity see them."""

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from torch import Tensor

from ludus.spec import BehaviorSpec
from tests.worker.rollouts import acted_rollout, make_config, make_spec, random_masks
from worker.algorithms.ppo import PPO
from worker.export import ExportMismatch, export_onnx
from worker.functional.distributions import branch_bounds
from worker.networks.actor import Actor
from worker.networks.policy import ActingPolicy

ML_AGENTS_MODEL = Path(__file__).parent.parent / "data" / "mlagents" / "cont.onnx"
"""Written by ML-Agents 1.1.0: one vector of 4, two continuous actions, normalised."""
SPACES = [(0, (3,)), (0, (3, 2)), (2, ()), (2, (3, 2))]


def make_actor(spec: BehaviorSpec, *, normalize: bool = True, activation: str = "swish") -> Actor:
    """An actor that an update has moved away from its start."""
    config = make_config(network={"normalize": normalize, "activation": activation}, num_epoch=4)
    ppo = PPO(config, spec, torch.device("cpu"), seed=1)
    policy = ActingPolicy(spec, config.network_settings.model_dump())
    policy.load(ppo.flat_weights())
    ppo.update(acted_rollout(policy, np.random.default_rng(1)), step=0)
    return ppo.actor


def session_of(path: Path) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def inputs_for(spec: BehaviorSpec, rows: int, *, seed: int = 2) -> tuple[list[Tensor], np.ndarray]:
    rng = np.random.default_rng(seed)
    observations = [
        torch.tensor(rng.normal(1, 3, (rows, item.size)), dtype=torch.float32) for item in spec.observations
    ]
    return observations, random_masks(rng, rows, spec.actions.discrete_branches)


def feed_of(observations: list[Tensor], masks: np.ndarray) -> dict[str, np.ndarray]:
    feed = {f"obs_{index}": part.numpy() for index, part in enumerate(observations)}
    return {**feed, "action_masks": masks.astype(np.float32)} if masks.shape[1] else feed


@pytest.mark.parametrize("activation", ["swish", "tanh", "relu"])
@pytest.mark.parametrize("rows", [1, 5])
@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize(("continuous", "branches"), SPACES)
def test_deterministic_actions_are_the_policys(
    tmp_path: Path, continuous: int, branches: tuple[int, ...], normalize: bool, rows: int, activation: str
) -> None:
    spec = make_spec(observations=(3, 2), continuous=continuous, branches=branches)
    actor = make_actor(spec, normalize=normalize, activation=activation)
    observations, masks = inputs_for(spec, rows)

    export_onnx(actor, spec, tmp_path / "model.onnx", observations, torch.from_numpy(masks))
    session = session_of(tmp_path / "model.onnx")
    outputs = [entry.name for entry in session.get_outputs()]
    answers = dict(zip(outputs, session.run(outputs, feed_of(observations, masks)), strict=True))

    means, choices = actor.deterministic(torch.cat(observations, 1), torch.from_numpy(masks))
    if continuous:
        np.testing.assert_allclose(answers["deterministic_continuous_actions"], means.numpy(), atol=1e-5)
        assert np.abs(answers["continuous_actions"]).max() <= 1.0
        assert answers["continuous_actions"].shape == (rows, continuous)
    if branches:
        np.testing.assert_array_equal(answers["deterministic_discrete_actions"], choices.numpy())
        assert answers["discrete_actions"].dtype == np.int64


def test_form_equals_a_model_of_ml_agents(tmp_path: Path) -> None:
    spec = make_spec(observations=(4,), continuous=2)
    export_onnx(make_actor(spec), spec, tmp_path / "model.onnx")

    ours, theirs = onnx.load(tmp_path / "model.onnx"), onnx.load(ML_AGENTS_MODEL)

    def form(model: onnx.ModelProto) -> dict[str, object]:
        constants = {entry.name: onnx.numpy_helper.to_array(entry) for entry in model.graph.initializer}
        outputs = {node.output[0]: node for node in model.graph.node}
        return {
            "ir_version": model.ir_version,
            "opset": [(entry.domain, entry.version) for entry in model.opset_import],
            "inputs": [
                (
                    entry.name,
                    entry.type.tensor_type.elem_type,
                    [d.dim_param or d.dim_value for d in entry.type.tensor_type.shape.dim],
                )
                for entry in model.graph.input
            ],
            "outputs": [(entry.name, entry.type.tensor_type.elem_type) for entry in model.graph.output],
            "constants": {
                name: (constants[outputs[name].input[0]].tolist(), str(constants[outputs[name].input[0]].dtype))
                for name in ("version_number", "memory_size", "continuous_action_output_shape")
            },
            "operations": {node.op_type for node in model.graph.node} - {"Constant", "Concat"},
        }

    assert form(ours) == form(theirs)


def test_constants_are_floats_with_the_sizes_of_the_branches(tmp_path: Path) -> None:
    spec = make_spec(branches=(3, 2))
    export_onnx(make_actor(spec), spec, tmp_path / "model.onnx")

    session = session_of(tmp_path / "model.onnx")
    observations, masks = inputs_for(spec, 1)
    version, memory, sizes = session.run(
        ["version_number", "memory_size", "discrete_action_output_shape"], feed_of(observations, masks)
    )

    assert (version.dtype, memory.dtype, sizes.dtype) == (np.float32,) * 3
    assert (version.tolist(), memory.tolist(), sizes.tolist()) == ([3.0], [0.0], [[3.0, 2.0]])


def test_forbidden_choices_are_never_sampled(tmp_path: Path) -> None:
    spec = make_spec(branches=(4, 3))
    export_onnx(make_actor(spec), spec, tmp_path / "model.onnx")
    session = session_of(tmp_path / "model.onnx")
    observations, masks = inputs_for(spec, 2000)

    sampled, likeliest = session.run(
        ["discrete_actions", "deterministic_discrete_actions"], feed_of(observations, masks)
    )

    for branch, (start, stop) in enumerate(branch_bounds((4, 3))):
        for chosen in (sampled, likeliest):
            assert masks[:, start:stop][np.arange(2000), chosen[:, branch]].all()
    assert (sampled != likeliest).any(), "sampled actions differ from the likeliest ones somewhere"


def test_sampled_actions_have_the_policys_spread(tmp_path: Path) -> None:
    spec = make_spec(continuous=1)
    actor = make_actor(spec)
    with torch.no_grad():
        actor.head.weight.zero_()
        actor.log_sigma.fill_(float(np.log(0.5)))
    export_onnx(actor, spec, tmp_path / "model.onnx")

    (sampled,) = session_of(tmp_path / "model.onnx").run(
        ["continuous_actions"], {"obs_0": np.zeros((5000, 4), np.float32)}
    )

    assert float(sampled.std()) == pytest.approx(0.5 / 3, rel=0.05)


class Liar(Actor):
    """Says that it acts otherwise than its weights do."""

    def deterministic(self, observations: Tensor, masks: Tensor | None) -> tuple[Tensor, Tensor]:
        means, choices = super().deterministic(observations, masks)
        return means + 0.01, choices


def test_a_model_that_acts_otherwise_is_not_written(tmp_path: Path) -> None:
    spec = make_spec(continuous=1)
    liar = Liar(make_actor(spec).layout, torch.Generator().manual_seed(1))

    with pytest.raises(ExportMismatch, match="deterministic_continuous_actions"):
        export_onnx(liar, spec, tmp_path / "model.onnx")

    assert not (tmp_path / "model.onnx").exists()


def test_weights_that_are_not_finite_are_not_written(tmp_path: Path) -> None:
    spec = make_spec(continuous=1)
    actor = make_actor(spec)
    with torch.no_grad():
        actor.head.bias.fill_(torch.nan)

    with pytest.raises(ExportMismatch):
        export_onnx(actor, spec, tmp_path / "model.onnx")


def test_export_does_not_change_the_policy(tmp_path: Path) -> None:
    spec = make_spec(continuous=1, branches=(2,))
    actor = make_actor(spec)
    before = actor.flatten()

    export_onnx(actor, spec, tmp_path / "model.onnx")

    np.testing.assert_array_equal(actor.flatten(), before)
