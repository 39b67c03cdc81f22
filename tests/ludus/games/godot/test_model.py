"""Models for Godot act as the policies that they come from: torch against onnxruntime, as the plug-in reads it."""

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from onnx import helper

from ludus.games.godot.model import NotForGodot, actions_of, compare, rewrite, write_for_godot
from ludus.games.godot.spaces import ActionKey, ObservationKey, Spaces
from tests.worker.learning.networks.kinds import MEMORY, Kind, make_actor, privileged, see
from tests.worker.rollouts import make_spec
from worker.learning.functional.distributions import branch_bounds
from worker.learning.networks.actor import Actor
from worker.onnx.export import export_onnx

OBS = ObservationKey("obs", (5,))
MOVE, STEER = ActionKey("move", 2, is_discrete=False), ActionKey("steer", 1, is_discrete=False)
JUMP, FIRE = ActionKey("jump", 3, is_discrete=True), ActionKey("fire", 2, is_discrete=True)
NORMALIZED = {"normalize": True, "hidden_units": 16, "num_layers": 2}
CASES = {
    "continuous": Spaces((OBS,), (MOVE, STEER)),
    "discrete": Spaces((OBS,), (JUMP, FIRE)),
    "one choice": Spaces((OBS,), (JUMP,)),
    "mixed, in any order": Spaces((OBS,), (STEER, JUMP, MOVE, FIRE)),
    "several keys": Spaces((ObservationKey("z", (3,)), OBS, ObservationKey("a", (1,))), (JUMP, MOVE)),
    "names of the graph": Spaces((ObservationKey("obs_1", (3,)), ObservationKey("head/linear", (2,))), (MOVE, JUMP)),
}
PLUGIN_OPSET, PLUGIN_IR = 19, 9
"""The newest that ONNX Runtime 1.15 loads."""


def export(spaces: Spaces, path: Path, head: str = "gaussian") -> tuple[Actor, Kind]:
    kind = Kind(spaces.behavior("seeker"), NORMALIZED, head)
    actor = make_actor(kind)
    export_onnx(actor, kind.spec, path)
    return actor, kind


@pytest.mark.parametrize("head", ["gaussian", "squashed"])
@pytest.mark.parametrize("name", CASES)
def test_a_model_for_godot_acts_as_the_policy_in_torch(name: str, head: str, tmp_path: Path) -> None:
    spaces = CASES[name]
    actor, kind = export(spaces, tmp_path / "model.onnx", head)

    write_for_godot(tmp_path / "model.onnx", tmp_path / "godot" / "model.onnx")

    observations, _ = see(kind.spec, 7)
    session = onnxruntime.InferenceSession(tmp_path / "godot" / "model.onnx", providers=["CPUExecutionProvider"])
    feed = {key.name: part.numpy() for key, part in zip(spaces.observations, observations, strict=True)}
    output, state = session.run(["output", "state_outs"], {**feed, "state_ins": np.ones(7, np.float32)})
    allowed = torch.ones(7, kind.spec.actions.mask_size, dtype=torch.bool)
    means, choices, _ = actor.deterministic(observations, allowed, None)
    columns = actor(actor.encode(observations), None)[0].detach()
    mixed = len({key.is_discrete for key in spaces.actions}) > 1
    bounds = iter(branch_bounds(kind.spec.actions.discrete_branches))
    start = column = 0
    for key in spaces.actions:  # as the plug-in reads them: two columns for each continuous one of a mixed space
        if key.is_discrete:
            first, stop = next(bounds)
            logits = columns[:, actor.layout.logits_start + first : actor.layout.logits_start + stop].numpy()
            np.testing.assert_allclose(output[:, start : start + key.size], logits, atol=1e-4)
            start += key.size
        else:
            expected = means[:, column : column + key.size].detach().numpy()
            np.testing.assert_allclose(output[:, start : start + key.size], expected, atol=1e-4)
            start += key.size * (2 if mixed else 1)
            column += key.size
    assert output.shape == (7, start)
    assert state.tolist() == [1.0] * 7
    if choices is not None and kind.spec.actions.discrete_branches:
        np.testing.assert_array_equal(actions_of(output, kind_layout(spaces))[1], choices.numpy())


def kind_layout(spaces: Spaces) -> dict[str, object]:
    return {"actions": [(key.name, key.size, key.is_discrete) for key in spaces.actions]}


def test_what_only_the_critic_saw_is_no_input(tmp_path: Path) -> None:
    spaces = Spaces((ObservationKey("hidden", (3,)), OBS), (MOVE,))
    kind = Kind(spaces.behavior("seeker"), {**NORMALIZED, **privileged("hidden")})
    actor = make_actor(kind)
    export_onnx(actor, kind.spec, tmp_path / "model.onnx")

    write_for_godot(tmp_path / "model.onnx", tmp_path / "godot.onnx")

    session = onnxruntime.InferenceSession(tmp_path / "godot.onnx", providers=["CPUExecutionProvider"])
    assert [entry.name for entry in session.get_inputs()] == ["obs", "state_ins"]
    observations, _ = see(kind.spec, 7)
    feed = {"obs": observations[1].numpy(), "state_ins": np.ones(7, np.float32)}
    expected, _, _ = actor.deterministic(observations, None, None)
    np.testing.assert_allclose(session.run(["output"], feed)[0], expected.detach().numpy(), atol=1e-4)


@pytest.mark.parametrize("name", CASES)
def test_the_plug_in_s_runtime_loads_it(name: str, tmp_path: Path) -> None:
    spaces = CASES[name]
    export(spaces, tmp_path / "model.onnx")

    model = onnx.load(write_for_godot(tmp_path / "model.onnx", tmp_path / "model.onnx"))

    assert model.ir_version <= PLUGIN_IR
    assert [(opset.domain, opset.version <= PLUGIN_OPSET) for opset in model.opset_import] == [("", True)]
    assert [entry.name for entry in model.graph.input] == [*(key.name for key in spaces.observations), "state_ins"]
    assert [entry.name for entry in model.graph.output] == ["output", "state_outs"]
    width = model.graph.output[0].type.tensor_type.shape.dim[1]
    assert width.dim_value > 0, "a width that is not a number is read as two columns for each continuous action"
    assert not {node.op_type for node in model.graph.node} & {"RandomNormalLike", "Multinomial"}


@pytest.mark.parametrize(
    ("spaces", "kind", "says"),
    [
        (Spaces((ObservationKey("eye_2d", (3, 40, 40)),), (MOVE,)), {}, "sees the picture 'eye_2d'"),
        (Spaces((ObservationKey("kind", (3,), choices=True),), (MOVE,)), {}, "'kind' as the number of a choice"),
        (Spaces((ObservationKey("output", (3,)),), (MOVE,)), {}, "sees 'output', a name that the plug-in has"),
        (Spaces((OBS,), (MOVE,)), MEMORY, "has a memory, and the plug-in keeps none"),
    ],
)
def test_what_the_plug_in_cannot_play_is_refused_with_the_reason(
    spaces: Spaces, kind: dict[str, object], says: str, tmp_path: Path
) -> None:
    made = Kind(spaces.behavior("seeker"), kind)
    export_onnx(make_actor(made), made.spec, tmp_path / "model.onnx")

    with pytest.raises(NotForGodot, match=says):
        write_for_godot(tmp_path / "model.onnx", tmp_path / "godot.onnx")
    assert not (tmp_path / "godot.onnx").exists()


def test_a_model_of_another_engine_is_refused(tmp_path: Path) -> None:
    kind = Kind(make_spec(continuous=2), {})
    export_onnx(make_actor(kind), kind.spec, tmp_path / "model.onnx")

    with pytest.raises(NotForGodot, match="was not trained by games of Godot"):
        write_for_godot(tmp_path / "model.onnx", tmp_path / "godot.onnx")


def test_a_model_is_not_rewritten_twice(tmp_path: Path) -> None:
    export(CASES["mixed, in any order"], tmp_path / "model.onnx")
    write_for_godot(tmp_path / "model.onnx", tmp_path / "model.onnx")

    with pytest.raises(NotForGodot, match="has the form for Godot already"):
        write_for_godot(tmp_path / "model.onnx", tmp_path / "model.onnx")


def test_the_comparison_finds_actions_that_were_mixed_up(tmp_path: Path) -> None:
    export(CASES["continuous"], tmp_path / "model.onnx")
    original = onnx.load(tmp_path / "model.onnx")
    wrong = rewrite(original, "model.onnx")
    join = next(node for node in wrong.graph.node if "output" in node.output)
    join.input[:] = reversed(join.input)

    with pytest.raises(NotForGodot, match="does not act as the exported one"):
        compare(original, wrong)


def test_a_layout_that_is_none_is_another_engine_s(tmp_path: Path) -> None:
    export(CASES["continuous"], tmp_path / "model.onnx")
    model = onnx.load(tmp_path / "model.onnx")
    helper.set_model_props(model, {"game_layout": "{"})

    with pytest.raises(NotForGodot, match="was not trained by games of Godot"):
        rewrite(model, "model.onnx")
