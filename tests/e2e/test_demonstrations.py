"""From a recording to a policy: uploaded, named by id in a configuration, fetched by the worker, learnt from."""

from pathlib import Path
from typing import Any

import pytest

from ludus.api import Client, ProblemAnswer
from ludus.demonstrations import write
from tests.e2e.stack import LudusUp
from tests.ludus.demonstrations.shown import make_demonstration, make_spec, vector

pytestmark = [pytest.mark.e2e, pytest.mark.xdist_group("stack")]


def clone(demonstration: str) -> dict[str, Any]:
    behavior = {
        "trainer_type": "clone",
        "demonstrations": [demonstration],
        "hyperparameters": {"batch_size": 16},
        "network_settings": {"hidden_units": 8},
        "max_steps": 200,
        "summary_freq": 50,
        "checkpoint_interval": 100,
    }
    return {"behaviors": {"Walker": behavior}, "seed": 1}


@pytest.fixture
def demonstration(client: Client, tmp_path: Path) -> str:
    """The id of an uploaded demonstration."""
    write(make_demonstration(make_spec(vector(2), branches=(3,)), lengths=(20, 20)), tmp_path / "shown.npz")
    return client.upload_demonstration(tmp_path / "shown.npz", name="shown").id


def test_a_clone_run_learns_from_an_uploaded_demonstration(client: Client, demonstration: str) -> None:
    run = client.create_run(clone(demonstration), name="clone")

    ended = client.wait(run.id, timeout=60)

    assert (ended.state, ended.stop_reason) == ("SUCCEEDED", "completed"), ended.stop_detail
    assert ended.step == 200
    assert ended.kind == "clone"
    assert "run_started" in [event.type for event in client.list_events(run.id)], "it learns without a simulator"
    assert any(metric.key.startswith("Losses/") for metric in client.metrics(run.id))
    assert "Walker.onnx" in [file.name for file in client.get_checkpoint(run.id).files]
    client.delete_demonstration(demonstration)
    with pytest.raises(ProblemAnswer, match="there is no demonstration") as caught:
        client.create_run(clone(demonstration))
    assert caught.value.errors[0].path == "behaviors.Walker.demonstrations[0]"


def test_a_run_whose_demonstration_is_damaged_fails_with_the_reason(
    stack: LudusUp, client: Client, demonstration: str
) -> None:
    (file,) = (stack.home / "artifacts" / "demonstrations" / demonstration).iterdir()
    file.write_bytes(b"bits have fallen over")

    ended = client.wait(client.create_run(clone(demonstration)).id, timeout=60)

    assert (ended.state, ended.stop_reason) == ("FAILED", "trainer_error")
    assert ended.stop_detail is not None
    assert f"demonstration {demonstration} has the SHA-256" in ended.stop_detail
