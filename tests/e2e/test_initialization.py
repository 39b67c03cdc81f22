"""From a checkpoint of ML-Agents to a run that begins with it: uploaded, named by id, fetched by the worker."""

from pathlib import Path
from typing import Any

import onnxruntime
import pytest

from ludus.client import Client
from ludus.demonstrations import write
from tests.e2e.stack import LudusUp
from tests.ludus.demonstrations.shown import make_demonstration, make_spec, vector

pytestmark = [pytest.mark.e2e, pytest.mark.xdist_group("stack")]

RESULT = Path(__file__).parents[1] / "data" / "mlagents-results" / "selfplay-gail-vail-bc"


@pytest.fixture
def demonstration(client: Client, tmp_path: Path) -> str:
    """The id of a demonstration of the behavior that the checkpoint was trained for."""
    spec = make_spec(vector(4), branches=(3, 3, 2), name="A")
    write(make_demonstration(spec, lengths=(20, 20)), tmp_path / "shown.npz")
    return client.demonstrations.upload(tmp_path / "shown.npz").id


def clone(demonstration: str, **section: Any) -> dict[str, Any]:
    """A run that needs no simulator and takes steps too small to see."""
    behavior = {
        "trainer_type": "clone",
        "demonstrations": [demonstration],
        "hyperparameters": {"batch_size": 16, "learning_rate": 1e-9},
        "network_settings": {"hidden_units": 16},
        "max_steps": 60,
        "evaluation_episodes": 0,  # it would wait for a simulator
        **section,
    }
    return {"behaviors": {"A": behavior}, "seed": 1}


def likeliest(model: Path) -> list[list[int]]:
    """Return what a model does where the demonstration was."""
    seen = make_demonstration(make_spec(vector(4), branches=(3, 3, 2)), lengths=(20, 20)).observations[0]
    masks = [[1.0] * 8] * len(seen)
    (actions,) = onnxruntime.InferenceSession(model).run(
        ["deterministic_discrete_actions"], {"obs_0": seen, "action_masks": masks}
    )
    return [list(row) for row in actions]


@pytest.mark.long
def test_a_run_begins_with_an_uploaded_checkpoint_and_another_with_the_runs_own(
    client: Client, demonstration: str, tmp_path: Path
) -> None:
    uploaded = client.uploaded_checkpoints.upload(RESULT / "checkpoint.pt", behavior="A").id

    first = client.runs.wait(client.runs.create(clone(demonstration, initialize_from=uploaded)).id, timeout=60)
    own = client.checkpoints.get(first.id).id
    second = client.runs.wait(client.runs.create(clone(demonstration, initialize_from=own)).id, timeout=60)

    expected = likeliest(RESULT / "A.onnx")
    for run, origin, step in ((first, "mlagents", 910), (second, "ludus", 60)):
        assert (run.state, run.step) == ("SUCCEEDED", 60), run.stop_detail
        (began,) = [event for event in client.events.list(run.id) if event.type == "behavior_initialized"]
        assert (began.data["origin"], began.data["step"], began.data["behavior"]) == (origin, step, "A")
        model = client.checkpoints.download(run.id, "latest", "A.onnx", tmp_path / f"{origin}.onnx")
        assert likeliest(model) == expected, "what the model beside the checkpoint does"
    client.uploaded_checkpoints.delete(uploaded)


def test_a_checkpoint_of_other_networks_ends_the_run_with_their_names(client: Client, demonstration: str) -> None:
    uploaded = client.uploaded_checkpoints.upload(RESULT / "checkpoint.pt").id
    config = clone(demonstration, initialize_from=uploaded, network_settings={"hidden_units": 8})

    ended = client.runs.wait(client.runs.create(config).id, timeout=60)

    assert (ended.state, ended.stop_reason) == ("FAILED", "invalid_config")
    assert ended.stop_detail is not None
    assert f"the checkpoint {uploaded} does not fit behavior 'A'" in ended.stop_detail
    assert "Policy/network_body._body_endoder.seq_layers.0.weight is 16x4, needed is 8x4" in ended.stop_detail
    assert [attempt.outcome for attempt in client.runs.attempts(ended.id)] == ["invalid_config"], (
        "it is not tried again"
    )


@pytest.mark.long
def test_a_run_whose_checkpoint_is_damaged_fails_with_the_reason(
    stack: LudusUp, client: Client, demonstration: str
) -> None:
    uploaded = client.uploaded_checkpoints.upload(RESULT / "checkpoint.pt").id
    (file,) = (stack.home / "artifacts" / "checkpoints" / uploaded).iterdir()
    file.write_bytes(b"bits have fallen over")

    ended = client.runs.wait(client.runs.create(clone(demonstration, initialize_from=uploaded)).id, timeout=60)

    assert (ended.state, ended.stop_reason, ended.attempt) == ("FAILED", "checkpoint_damaged", 1)
    assert ended.stop_detail is not None
    assert (
        f"names checkpoint {uploaded}, which is damaged: checkpoint.pt (21 bytes) has the SHA-256" in ended.stop_detail
    )
