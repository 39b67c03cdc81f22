"""What a checkpoint says of its models is what onnxruntime says of the files."""

from pathlib import Path

import onnx
import onnxruntime
import pytest

from ludus.schemas import OnnxTensor
from tests.worker.learning.networks import mlagents
from tests.worker.learning.networks.kinds import KINDS, make_actor
from tests.worker.onnx.test_graph import feed_of, remember, see
from worker.onnx.export import export_onnx

DTYPES = {"tensor(float)": "float32", "tensor(int64)": "int64"}


def loaded(entries: list[onnxruntime.NodeArg]) -> tuple[OnnxTensor, ...]:
    """Return inputs or outputs as onnxruntime has them."""
    return tuple(OnnxTensor(name=one.name, dtype=DTYPES[one.type], shape=tuple(one.shape)) for one in entries)


@pytest.mark.parametrize("name", KINDS)
def test_a_description_has_the_inputs_and_outputs_of_the_file(tmp_path: Path, name: str) -> None:
    path = tmp_path / "model.onnx"

    described = export_onnx(make_actor(KINDS[name]), KINDS[name].spec, path)

    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    assert described.inputs == loaded(session.get_inputs())
    assert described.outputs == loaded(session.get_outputs())
    assert [("", described.opset)] == [(one.domain, one.version) for one in onnx.load(path).opset_import]


@pytest.mark.parametrize("name", KINDS)
def test_a_description_has_the_actions_and_the_memory_that_the_model_states(tmp_path: Path, name: str) -> None:
    kind, path = KINDS[name], tmp_path / "model.onnx"
    actor = make_actor(kind)

    described = export_onnx(actor, kind.spec, path)

    answers = mlagents.run(path, feed_of(*see(kind.spec, 1), remember(actor, 1)))
    columns, branches = "continuous_action_output_shape", "discrete_action_output_shape"
    assert described.behavior == kind.spec.behavior
    assert described.memory_size == answers["memory_size"].item()
    assert described.continuous_actions == (answers[columns].item() if columns in answers else 0)
    assert list(described.discrete_branches) == (answers[branches][0].tolist() if branches in answers else [])
    assert described.action_masks == bool(described.discrete_branches)
