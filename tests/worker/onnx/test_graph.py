"""The graphs of exported models, as onnxruntime and Unity see them."""

from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import helper
from torch import Tensor

from tests.worker.learning.networks import mlagents
from tests.worker.learning.networks.kinds import KINDS, MEMORY, Kind, make_actor, remember, see
from tests.worker.rollouts import make_spec
from worker.onnx.export import export_onnx


def feed_of(observations: list[Tensor], masks: Tensor, memory: Tensor | None = None) -> dict[str, np.ndarray]:
    """What a game feeds: floats, pictures within [0, 1]."""
    feed = {
        f"obs_{index}": (part.float() / 255 if part.dtype == torch.uint8 else part).numpy()
        for index, part in enumerate(observations)
    }
    feed["action_masks"] = masks.float().numpy()
    return feed if memory is None else {**feed, "recurrent_in": memory.unsqueeze(1).numpy()}


KNOWN = {node.op_type for name in mlagents.MODELS for node in mlagents.load(name).graph.node}
"""Operations that Unity is known to import."""


@pytest.mark.parametrize(("name", "rows"), [*((name, 5) for name in KINDS), ("everything", 1)])
def test_a_model_acts_as_its_policy_by_operations_that_unity_is_known_to_import(
    tmp_path: Path, name: str, rows: int
) -> None:
    kind, path = KINDS[name], tmp_path / "model.onnx"
    actor, (observations, masks) = make_actor(kind), see(kind.spec, rows)
    memory = remember(actor, rows)

    export_onnx(actor, kind.spec, path, observations, masks)
    answers = mlagents.run(path, feed_of(observations, masks, memory))

    means, choices, after = actor.deterministic(observations, masks, memory)
    actions = kind.spec.actions
    if actions.continuous_size:
        np.testing.assert_allclose(answers["deterministic_continuous_actions"], means.numpy(), atol=1e-5)
        assert np.abs(answers["continuous_actions"]).max() <= 1.0
        assert answers["continuous_actions"].shape == (rows, actions.continuous_size)
    if actions.discrete_branches:
        np.testing.assert_array_equal(answers["deterministic_discrete_actions"], choices.numpy())
        assert answers["discrete_actions"].dtype == np.int64
        assert answers["discrete_actions"].shape == (rows, len(actions.discrete_branches))
    if after is not None:
        np.testing.assert_allclose(answers["recurrent_out"], after.unsqueeze(1).numpy(), atol=1e-5)

    graph = onnx.load(path).graph
    assert {node.op_type for node in graph.node} - KNOWN <= {"Abs"}
    constants = {entry.name for entry in graph.initializer}
    left = [node.name for node in graph.node if node.op_type == "Sub" and node.input[0] in constants]
    assert left == [], "a constant on the left of a subtraction"
    turned = {
        tuple(helper.get_attribute_value(node.attribute[0])) for node in graph.node if node.op_type == "Transpose"
    }
    assert turned <= {(1, 0, 2), (0, 2, 1, 3), (0, 1, 3, 2)}, "what ML-Agents' models turn, two dimensions at a time"


@pytest.mark.parametrize("name", mlagents.MODELS)
def test_form_equals_a_model_of_ml_agents(tmp_path: Path, name: str) -> None:
    export_onnx(mlagents.make_actor(name), mlagents.MODELS[name][0], tmp_path / "model.onnx")

    ours, theirs = onnx.load(tmp_path / "model.onnx"), mlagents.load(name)

    def constants(model: onnx.ModelProto) -> dict[str, tuple[object, str]]:
        values = {entry.name: onnx.numpy_helper.to_array(entry) for entry in model.graph.initializer}
        identities = [node for node in model.graph.node if node.op_type == "Identity" and node.input[0] in values]
        chosen = {node.output[0]: values[node.input[0]] for node in identities}
        outputs = {entry.name for entry in model.graph.output}
        return {key: (value.tolist(), str(value.dtype)) for key, value in chosen.items() if key in outputs}

    assert ours.ir_version == theirs.ir_version
    assert [(entry.domain, entry.version) for entry in ours.opset_import] == [("", 9)]
    assert mlagents.forms(ours, "inputs") == mlagents.forms(theirs, "inputs")
    assert mlagents.forms(ours, "outputs") == mlagents.forms(theirs, "outputs")
    assert constants(ours) == constants(theirs)


def test_a_model_remembers_from_step_to_step(tmp_path: Path) -> None:
    kind = Kind(make_spec(continuous=2), MEMORY)
    actor = make_actor(kind)
    export_onnx(actor, kind.spec, tmp_path / "model.onnx")
    observations, masks = see(kind.spec, 6)

    state, acted = torch.zeros(1, 12), []
    for step in range(6):
        answers = mlagents.run(tmp_path / "model.onnx", feed_of([observations[0][step : step + 1]], masks[:1], state))
        state = torch.from_numpy(answers["recurrent_out"][:, 0])
        acted.append(answers["deterministic_continuous_actions"])

    head, _ = actor(actor.encode(observations), length=6)
    expected = actor.parts(head).means.detach().clamp(-3, 3) / 3
    np.testing.assert_allclose(np.concatenate(acted), expected.numpy(), atol=1e-5)
