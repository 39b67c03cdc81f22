"""From a recording to a policy: uploaded, named by id in a configuration, fetched by the worker, learned from."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest

from ludus.client import Client, ProblemAnswer
from ludus.demonstrations import write
from tests.e2e.stack import LudusUp, Player, cartpole
from tests.ludus.demonstrations.shown import make_demonstration, make_spec, vector

pytestmark = [pytest.mark.e2e, pytest.mark.xdist_group("stack")]

IMITATION_METRICS = (
    "Losses/GAIL Loss",
    "Losses/Pretraining Loss",
    "Policy/GAIL Expert Estimate",
    "Policy/GAIL Grad Mag Loss",
    "Policy/GAIL Policy Estimate",
    "Policy/Gail Reward",
    "Policy/Gail Value Estimate",
)
"""Their names are ML-Agents', its two ways to write GAIL included."""


def clone(demonstration: str) -> dict[str, Any]:
    behavior = {
        "trainer_type": "clone",
        "demonstrations": [demonstration],
        "hyperparameters": {"batch_size": 16},
        "network_settings": {"hidden_units": 8},
        "max_steps": 200,
        "summary_freq": 50,
        "checkpoint_interval": 100,
        "evaluation_episodes": 0,
    }
    return {"behaviors": {"Walker": behavior}, "seed": 1}


def imitating(demonstration: str) -> dict[str, Any]:
    """PPO on CartPole that is also paid for passing as a demonstration, and clones it beside."""
    return cartpole(
        max_steps=2048,
        reward_signals={"extrinsic": {}, "gail": {"demonstrations": [demonstration], "learning_rate": 1e-2}},
        behavioral_cloning={"demonstrations": [demonstration], "strength": 10, "steps": 4096},
    )


@pytest.fixture
def demonstration(client: Client, tmp_path: Path) -> str:
    """The id of an uploaded demonstration."""
    write(make_demonstration(make_spec(vector(2), branches=(3,)), lengths=(20, 20)), tmp_path / "shown.npz")
    return client.demonstrations.upload(tmp_path / "shown.npz", name="shown").id


@pytest.fixture
def balancing(client: Client, tmp_path: Path) -> str:
    """The id of an uploaded demonstration of CartPole: push to where the pole leans and falls."""
    shown = make_demonstration(make_spec(vector(4), branches=(2,), name="CartPole"), lengths=(100, 100))
    right = shown.observations[0][:, 2:].sum(1, keepdims=True) > 0
    write(replace(shown, discrete=right.astype(np.int32)), tmp_path / "balancing.npz")
    return client.demonstrations.upload(tmp_path / "balancing.npz", name="balancing").id


def test_a_clone_run_learns_from_an_uploaded_demonstration(client: Client, demonstration: str) -> None:
    run = client.runs.create(clone(demonstration), name="clone")

    ended = client.runs.wait(run.id, timeout=60)

    assert (ended.state, ended.stop_reason) == ("SUCCEEDED", "completed"), ended.stop_detail
    assert ended.step == 200
    assert ended.kind == "clone"
    assert "run_started" in [event.type for event in client.events.list(run.id)], "it learns without a simulator"
    assert any(metric.key.startswith("Losses/") for metric in client.metrics.list(run.id))
    assert "Walker.onnx" in [file.name for file in client.checkpoints.get(run.id).files]
    client.demonstrations.delete(demonstration)
    with pytest.raises(ProblemAnswer, match="there is no demonstration") as caught:
        client.runs.create(clone(demonstration))
    assert caught.value.errors[0].path == "behaviors.Walker.demonstrations[0]"


@pytest.mark.long
def test_a_run_whose_demonstration_is_damaged_fails_with_the_reason(
    stack: LudusUp, client: Client, demonstration: str
) -> None:
    (file,) = (stack.home / "artifacts" / "demonstrations" / demonstration).iterdir()
    file.write_bytes(b"bits have fallen over")

    ended = client.runs.wait(client.runs.create(clone(demonstration)).id, timeout=60)

    assert (ended.state, ended.stop_reason) == ("FAILED", "trainer_error")
    assert ended.stop_detail is not None
    assert f"demonstration shown ({demonstration}) has the SHA-256" in ended.stop_detail


@pytest.mark.long
def test_a_run_with_gail_and_cloning_learns_from_both_and_its_model_does_what_was_shown(
    client: Client, play: Callable[..., Player], balancing: str, tmp_path: Path
) -> None:
    run = client.runs.create(imitating(balancing), name="gail-and-cloning")
    play(run.id)

    ended = client.runs.wait(run.id, timeout=60)

    assert (ended.state, ended.stop_reason) == ("SUCCEEDED", "completed"), ended.stop_detail
    assert ended.step == 2048
    found = {}
    for key in IMITATION_METRICS:
        (series,) = client.metrics.series(run.id, key)
        assert (series.behavior, series.steps) == ("CartPole", (1000, 1500, 2000)), key
        found[key] = np.array(series.values, float)
        assert np.isfinite(found[key]).all(), key
    losses = found["Losses/Pretraining Loss"]
    assert losses[-1] < losses[0]
    assert found["Policy/GAIL Policy Estimate"][-1] < 0.5 < found["Policy/GAIL Expert Estimate"][-1], "it can tell"

    model = client.checkpoints.download(run.id, "latest", "CartPole.onnx", tmp_path / "CartPole.onnx")
    leaning = np.array([[0, 0, -1, -1], [0, 0, 1, 1]], np.float32)
    (actions,) = onnxruntime.InferenceSession(model).run(
        ["deterministic_discrete_actions"], {"obs_0": leaning, "action_masks": np.ones((2, 2), np.float32)}
    )
    assert actions.tolist() == [[0], [1]]


@pytest.mark.long
def test_a_demonstration_that_does_not_fit_the_game_ends_its_run_and_is_named(
    client: Client, play: Callable[..., Player], tmp_path: Path
) -> None:
    write(make_demonstration(make_spec(vector(2), branches=(2,))), tmp_path / "narrow.npz")
    narrow = client.demonstrations.upload(tmp_path / "narrow.npz", name="narrow").id
    run = client.runs.create(imitating(narrow))
    player = play(run.id)

    ended = client.runs.wait(run.id, timeout=60)

    assert (ended.state, ended.stop_reason, ended.step) == ("FAILED", "invalid_config", 0)
    (refusal,) = [event for event in client.events.list(run.id) if event.type == "behavior_refused"]
    assert refusal.message.startswith("behaviors.CartPole.behavioral_cloning.demonstrations[0]: ")
    assert f"of demonstration narrow ({narrow}) has shape (2,)" in refusal.message
    assert "of behavior 'CartPole' has shape (4,)" in refusal.message
    assert ended.stop_detail == refusal.message
    assert [attempt.outcome for attempt in client.runs.attempts(run.id)] == ["invalid_config"], "it is not tried again"
    assert (client.metrics.list(run.id), client.checkpoints.list(run.id)) == ([], [])
    (simulator,) = client.simulators.list(run.id)
    assert (simulator.leave_code, simulator.leave_reason) == ("bad_spec", refusal.message)
    assert player.process.wait(30) != 0
