"""Exported models beside those of ML-Agents for the same behavior, settings and weights, input by input.

`tests/data/mlagents-networks` has the forms of models that ML-Agents exported for every kind of behavior, and what its
networks answered; `tests/data/mlagents-results` has models with the checkpoints that they were exported from.
"""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import numpy_helper

from tests.worker.learning.networks import mlagents
from tests.worker.mlagents.cases import NAMES, ROWS, Case, remembered
from tests.worker.mlagents.results import RESULTS, Result
from worker.learning.functional.distributions import branch_bounds
from worker.learning.networks.actor import Actor
from worker.mlagents.algorithms import translate
from worker.onnx.export import export_onnx


def translated_actor(case: Case, folder: Path) -> Actor:
    """Return our policy with the weights of a case."""
    actor = Actor(case.spec, case.config.network_settings, torch.Generator(), head=case.config.head)
    state = translate(case.file(folder), case.config, case.spec).state
    own = (
        state["actor"]
        if case.config.head == "squashed"
        else {name.removeprefix("actor."): value for name, value in state["model"].items() if name.startswith("actor.")}
    )
    actor.load_state_dict({**actor.state_dict(), **own})
    return actor


def axes(model: onnx.ModelProto) -> dict[str, str]:
    """Return the names of the first dimensions, where they have one."""
    entries = [*model.graph.input, *model.graph.output]
    return {entry.name: entry.type.tensor_type.shape.dim[0].dim_param for entry in entries}


@pytest.fixture(scope="module", params=NAMES)
def exported(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Case, Actor, Path]:
    """A behavior of every kind, exported with the weights that ML-Agents had."""
    case, folder = Case(request.param), tmp_path_factory.mktemp("exported")
    actor = translated_actor(case, folder)
    export_onnx(actor, case.spec, folder / "model.onnx", case.observations())
    return case, actor, folder / "model.onnx"


def test_inputs_and_outputs_are_those_of_ml_agents_one_by_one(exported: tuple[Case, Actor, Path]) -> None:
    case, _, path = exported

    ours = onnx.load(path)

    assert ours.ir_version == case.model["ir_version"]
    assert [[entry.domain, entry.version] for entry in ours.opset_import] == case.model["opset"] == [["", 9]]
    assert [list(form) for form in mlagents.forms(ours, "inputs")] == case.model["inputs"]
    assert [list(form) for form in mlagents.forms(ours, "outputs")] == case.model["outputs"]
    named = [*(entry.name for entry in ours.graph.input), "continuous_actions", "discrete_actions"]
    assert {axis for entry, axis in axes(ours).items() if entry in named} == {"batch"}


def test_operations_and_types_are_those_of_ml_agents_models(exported: tuple[Case, Actor, Path]) -> None:
    _, _, path = exported
    known = {operation for other in NAMES for operation in Case(other).model["operations"]}

    model = onnx.load(path)

    assert {node.op_type for node in model.graph.node} - known <= {"Abs"}, "which marks padding"
    assert {numpy_helper.to_array(entry).dtype.name for entry in model.graph.initializer} <= {"float32", "int64"}


def test_answers_are_those_of_ml_agents_networks(exported: tuple[Case, Actor, Path]) -> None:
    case, actor, path = exported
    layout, head = actor.layout, case.answers["policy"]
    feed: dict[str, Any] = {f"obs_{index}": seen.numpy() for index, seen in enumerate(case.observations())}
    feed["action_masks"] = np.ones((ROWS, sum(layout.discrete_branches)), np.float32)
    memory = remembered("memory", layout.memory_size)
    feed["recurrent_in"] = None if memory is None else memory.unsqueeze(1).numpy()

    answers = mlagents.run(path, feed)

    means, logits = head[:, : layout.continuous_size], head[:, layout.logits_start :]
    if layout.continuous_size:
        expected = np.tanh(means) if layout.squashed else np.clip(means, -3, 3) / 3
        np.testing.assert_allclose(answers["deterministic_continuous_actions"], expected, atol=1e-5)
    for branch, (start, stop) in enumerate(branch_bounds(layout.discrete_branches)):
        chosen = answers["deterministic_discrete_actions"][:, branch]
        np.testing.assert_array_equal(chosen, logits[:, start:stop].argmax(1))
    if layout.memory_size:
        np.testing.assert_allclose(answers["recurrent_out"][:, 0], case.answers["policy memory"], atol=1e-5)


@pytest.mark.parametrize("name", RESULTS)
def test_a_model_of_a_checkpoint_is_the_one_that_ml_agents_exported_beside_it(tmp_path: Path, name: str) -> None:
    result = Result(name)
    actor = result.initialized(tmp_path).actor
    observations, masks, memory = result.seen(64)
    export_onnx(actor, result.spec, tmp_path / "model.onnx", observations, masks)
    feed: dict[str, Any] = {"obs_0": observations[0].numpy(), "action_masks": masks.float().numpy()}
    feed["recurrent_in"] = None if memory is None else memory.unsqueeze(1).numpy()

    ours, theirs = onnx.load(tmp_path / "model.onnx"), onnx.load(result.model)
    answers, expected = mlagents.run(ours, feed), mlagents.run(theirs, feed)

    assert mlagents.forms(ours, "inputs") == mlagents.forms(theirs, "inputs")
    assert mlagents.forms(ours, "outputs") == mlagents.forms(theirs, "outputs")
    for output in ("version_number", "memory_size", "continuous_action_output_shape", "discrete_action_output_shape"):
        if output in expected:
            assert answers[output].dtype == expected[output].dtype == np.float32
            np.testing.assert_array_equal(answers[output], expected[output])
    np.testing.assert_array_equal(answers["deterministic_discrete_actions"], expected["deterministic_discrete_actions"])
    if "deterministic_continuous_actions" in expected:
        means = expected["deterministic_continuous_actions"]
        means = np.tanh(means) if actor.layout.squashed else means  # ML-Agents exports SAC's mean as it is
        np.testing.assert_allclose(answers["deterministic_continuous_actions"], means, atol=1e-5)
    if "recurrent_out" in expected:
        np.testing.assert_allclose(answers["recurrent_out"], expected["recurrent_out"], atol=1e-5)
