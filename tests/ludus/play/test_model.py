"""Exported models act here as the policy does that they were exported from."""

from pathlib import Path

import numpy as np
import onnx
import pytest
import torch

from ludus.play.model import ModelPlayer, UnusableModel
from ludus.protocol.batches import DecisionBatch
from ludus.protocol.spec import BehaviorSpec
from tests.worker.learning.networks.kinds import KINDS, Kind, make_actor, privileged, see
from tests.worker.rollouts import make_spec
from worker.onnx.export import export_onnx

MEMORY = KINDS["memory"]


@pytest.fixture
def exported(tmp_path: Path) -> Path:
    return tmp_path / "model.onnx"


def decisions(observations: list[torch.Tensor], masks: torch.Tensor | None = None, first: int = 0) -> DecisionBatch:
    count = len(observations[0])
    return DecisionBatch(
        np.arange(first, first + count, dtype=np.int32),
        np.zeros(count, np.float32),
        tuple(part.numpy() for part in observations),
        None if masks is None else masks.numpy().astype(np.uint8),
    )


@pytest.mark.parametrize(
    "name", ["continuous", "hybrid", "squashed hybrid", "picture simple", "everything", "everything, some privileged"]
)
def test_a_player_does_what_the_policy_finds_likeliest(exported: Path, name: str) -> None:
    kind = KINDS[name]
    actor, (observations, masks) = make_actor(kind), see(kind.spec, 5)
    export_onnx(actor, kind.spec, exported)

    continuous, discrete = ModelPlayer(exported, kind.spec).act(decisions(observations, masks))

    memory = torch.zeros(5, actor.memory_size) if actor.memory_size else None
    means, choices, _ = actor.deterministic(observations, masks, memory)
    assert continuous.shape == (5, kind.spec.actions.continuous_size)
    np.testing.assert_allclose(continuous, means.detach().numpy().reshape(continuous.shape), atol=1e-4)
    if kind.spec.actions.discrete_branches:
        np.testing.assert_array_equal(discrete, choices.numpy())
    assert discrete.dtype == np.int32


def test_every_agent_remembers_its_own_episode_and_no_other(exported: Path) -> None:
    actor, spec = make_actor(MEMORY), MEMORY.spec
    export_onnx(actor, spec, exported)
    player = ModelPlayer(exported, spec)
    everything = torch.ones(2, spec.actions.mask_size, dtype=torch.bool)
    first, second = (see(spec, 2, seed)[0] for seed in (1, 2))
    nothing = torch.zeros(2, actor.memory_size)

    player.act(decisions(first))
    after_two = player.act(decisions(second))[0]
    player.forget([0])
    after_the_end_of_one = player.act(decisions(second))[0]
    player.begin(None)
    anew = player.act(decisions(second))[0]

    _, _, memory = actor.deterministic(first, everything, nothing)
    expected = actor.deterministic(second, everything, memory)[0].detach().numpy()
    fresh = actor.deterministic(second, everything, nothing)[0].detach().numpy()
    np.testing.assert_allclose(after_two, expected, atol=1e-4)
    np.testing.assert_allclose(after_the_end_of_one[0], fresh[0], atol=1e-4)
    assert np.abs(after_the_end_of_one[1] - fresh[1]).max() > 1e-3, "the other one goes on"
    np.testing.assert_allclose(anew, fresh, atol=1e-4)


def test_drawn_actions_keep_to_the_mask_and_repeat_themselves_with_the_seed(exported: Path) -> None:
    kind = KINDS["discrete"]
    export_onnx(make_actor(kind), kind.spec, exported)
    observations, masks = see(kind.spec, 300)

    def draw(seed: int) -> np.ndarray:
        player = ModelPlayer(exported, kind.spec, sample=True, seed=seed)
        return player.act(decisions(observations, masks))[1]

    drawn = draw(1)

    starts = np.array([0, 3])
    assert masks.numpy()[np.arange(300)[:, None], starts + drawn].all()
    np.testing.assert_array_equal(drawn, draw(1))
    assert (drawn != draw(2)).any()


@pytest.mark.parametrize(
    ("spec", "problem"),
    [
        (make_spec(observations=(3, 3), branches=(3, 2)), r"sees observations of shapes \[\[3\], \[2\]\]"),
        (make_spec(observations=(3,), branches=(3, 2)), "Walker shows"),
        (make_spec(observations=(3, 2), branches=(3, 3)), "takes branches of 3, 3 choices"),
        (
            make_spec(observations=(3, 2), continuous=2),
            "has branches of 3, 2 choices, Walker takes 2 continuous actions",
        ),
    ],
)
def test_a_model_of_another_game_is_refused(exported: Path, spec: BehaviorSpec, problem: str) -> None:
    kind = KINDS["discrete"]
    export_onnx(make_actor(kind), kind.spec, exported)

    with pytest.raises(UnusableModel, match=problem):
        ModelPlayer(exported, spec)


def test_a_game_may_lack_what_only_the_critic_saw_if_that_came_last(exported: Path) -> None:
    kind = Kind(make_spec(observations=(3, 2), continuous=2), privileged("vector 1"))
    export_onnx(make_actor(kind), kind.spec, exported)
    without = make_spec(observations=(3,), continuous=2)
    (first, second), _ = see(kind.spec, 4)

    trained = ModelPlayer(exported, kind.spec).act(decisions([first, second]))
    deployed = ModelPlayer(exported, without).act(decisions([first]))

    np.testing.assert_array_equal(trained[0], deployed[0])
    with pytest.raises(UnusableModel, match=r"sees observations of shapes \[\[3\]\], Walker shows \[\[3\], \[2\]\]"):
        ModelPlayer(exported, make_spec(observations=(3, 4, 2), continuous=2))


def test_what_is_no_model_is_refused(exported: Path) -> None:
    exported.write_text("my thesis")

    with pytest.raises(UnusableModel, match="cannot be loaded"):
        ModelPlayer(exported, MEMORY.spec)
    with pytest.raises(UnusableModel, match="cannot be loaded"):
        ModelPlayer(exported.with_name("missing.onnx"), MEMORY.spec)


def test_a_model_that_is_not_of_ml_agents_version_is_refused(exported: Path) -> None:
    kind = KINDS["discrete"]
    export_onnx(make_actor(kind), kind.spec, exported)
    model = onnx.load(exported)
    others = [output for output in model.graph.output if output.name != "version_number"]
    del model.graph.output[:]
    model.graph.output.extend(others)
    onnx.save(model, exported)

    with pytest.raises(UnusableModel, match="no model of ML-Agents' version 3"):
        ModelPlayer(exported, kind.spec)
