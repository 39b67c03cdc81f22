"""Exported models, as onnxruntime and Unity see them."""

from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from torch import Tensor

from tests.worker.learning.networks import mlagents
from tests.worker.learning.networks.kinds import EVERYTHING, KINDS, MEMORY, Kind, make_actor, remember, see
from tests.worker.onnx.test_graph import feed_of
from tests.worker.rollouts import make_spec
from worker.learning.functional.distributions import branch_bounds
from worker.learning.networks.actor import Actor
from worker.onnx.export import ExportMismatch, export_onnx


def test_a_model_with_everything_lists_its_inputs_and_outputs_in_order(tmp_path: Path) -> None:
    export_onnx(make_actor(KINDS["everything"]), EVERYTHING, tmp_path / "model.onnx")

    model = onnx.load(tmp_path / "model.onnx")

    assert [(name, shape) for name, _, shape in mlagents.forms(model, "inputs")] == [
        ("obs_0", ["batch", 4]),
        ("obs_1", ["batch", 3, 40, 37]),
        ("obs_2", ["batch", 5, 3]),
        ("obs_3", ["batch", 2]),
        ("obs_4", ["batch", 4, 6]),
        ("action_masks", ["batch", 5]),
        ("recurrent_in", ["batch", 1, 12]),
    ]
    assert [name for name, _, _ in mlagents.forms(model, "outputs")] == [
        "version_number",
        "memory_size",
        "continuous_actions",
        "continuous_action_output_shape",
        "deterministic_continuous_actions",
        "discrete_actions",
        "discrete_action_output_shape",
        "deterministic_discrete_actions",
        "recurrent_out",
    ]


def test_privileged_observations_are_no_inputs_and_the_others_keep_their_numbers(tmp_path: Path) -> None:
    kind = KINDS["everything, some privileged"]
    export_onnx(make_actor(kind), kind.spec, tmp_path / "model.onnx")

    model = onnx.load(tmp_path / "model.onnx")

    names = [name for name, _, _ in mlagents.forms(model, "inputs")]
    assert names == ["obs_3", "obs_4", "action_masks", "recurrent_in"]
    assert {entry.key: entry.value for entry in model.metadata_props} == {"unseen_observations": "[0, 1, 2]"}


def test_constants_are_floats_with_the_sizes_of_memory_and_branches(tmp_path: Path) -> None:
    kind = KINDS["memory"]
    actor = make_actor(kind)
    export_onnx(actor, kind.spec, tmp_path / "model.onnx")

    answers = mlagents.run(tmp_path / "model.onnx", feed_of(*see(kind.spec, 1), remember(actor, 1)))

    names = ("version_number", "memory_size", "continuous_action_output_shape", "discrete_action_output_shape")
    assert [answers[name].dtype for name in names] == [np.float32] * 4
    assert [answers[name].tolist() for name in names] == [[3.0], [12.0], [2.0], [[3.0, 2.0]]]


def test_forbidden_choices_are_never_sampled(tmp_path: Path) -> None:
    kind = Kind(make_spec(branches=(4, 3)), {})
    export_onnx(make_actor(kind), kind.spec, tmp_path / "model.onnx")
    observations, masks = see(kind.spec, 2000)

    answers = mlagents.run(tmp_path / "model.onnx", feed_of(observations, masks))

    sampled, likeliest = answers["discrete_actions"], answers["deterministic_discrete_actions"]
    for branch, (start, stop) in enumerate(branch_bounds((4, 3))):
        for chosen in (sampled, likeliest):
            assert masks.numpy()[:, start:stop][np.arange(2000), chosen[:, branch]].all()
    assert (sampled != likeliest).any(), "sampled actions differ from the likeliest ones somewhere"


def test_a_model_takes_the_best_choice_always_where_chance_serves_exploration_alone(tmp_path: Path) -> None:
    kind = KINDS["epsilon greedy"]
    actor = make_actor(kind)
    actor.head_parameters()["epsilon"].fill_(1.0)
    export_onnx(actor, kind.spec, tmp_path / "model.onnx")

    answers = mlagents.run(tmp_path / "model.onnx", feed_of(*see(kind.spec, 200)))

    np.testing.assert_array_equal(answers["discrete_actions"], answers["deterministic_discrete_actions"])


def test_a_model_takes_the_mean_always_where_noise_serves_exploration_alone(tmp_path: Path) -> None:
    kind = KINDS["noisy"]
    actor = make_actor(kind)
    actor.head_parameters()["noise_log_sigma"].fill_(0.0)
    export_onnx(actor, kind.spec, tmp_path / "model.onnx")
    observations, masks = see(kind.spec, 200)

    answers = mlagents.run(tmp_path / "model.onnx", feed_of(observations, masks))

    means, _, _ = actor.deterministic(observations, masks)
    np.testing.assert_array_equal(answers["continuous_actions"], answers["deterministic_continuous_actions"])
    np.testing.assert_allclose(answers["continuous_actions"], means.numpy(), atol=1e-5)


@pytest.mark.parametrize(("head", "spread"), [("gaussian", 0.5 / 3), ("squashed", 0.42)])
def test_sampled_actions_have_the_policys_spread(tmp_path: Path, head: str, spread: float) -> None:
    kind = Kind(make_spec(continuous=1), {}, head)
    actor = make_actor(kind)
    with torch.no_grad():
        actor.head.weight.zero_()
        actor.head.bias.zero_()
        (actor.head.bias[1:2] if head == "squashed" else actor.log_sigma).fill_(float(np.log(0.5)))
    export_onnx(actor, kind.spec, tmp_path / "model.onnx")

    sampled = mlagents.run(tmp_path / "model.onnx", feed_of(*see(kind.spec, 5000)))["continuous_actions"]

    # the deviation of tanh(u) with u from N(0, 0.5^2) is 0.42 (numerically)
    assert float(sampled.std()) == pytest.approx(spread, rel=0.05)


class Liar(Actor):
    """Says that it acts otherwise than its weights do."""

    def deterministic(
        self, observations: list[Tensor], masks: Tensor | None, memory: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        means, choices, after = super().deterministic(observations, masks, memory)
        return means + 0.01, choices, after


class Amnesiac(Actor):
    """Remembers otherwise than its weights do."""

    def deterministic(
        self, observations: list[Tensor], masks: Tensor | None, memory: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        assert memory is not None
        means, choices, _ = super().deterministic(observations, masks, memory)
        return means, choices, memory


@pytest.mark.parametrize(
    ("impostor", "settings", "output"),
    [(Liar, {}, "deterministic_continuous_actions"), (Amnesiac, MEMORY, "recurrent_out")],
)
def test_a_model_that_acts_otherwise_is_not_written(
    tmp_path: Path, impostor: type[Actor], settings: dict[str, object], output: str
) -> None:
    kind = Kind(make_spec(continuous=1), settings)
    actor = impostor(kind.spec, kind.network, torch.Generator().manual_seed(1))

    with pytest.raises(ExportMismatch, match=output):
        export_onnx(actor, kind.spec, tmp_path / "model.onnx")

    assert not (tmp_path / "model.onnx").exists()


@pytest.mark.parametrize("name", ["continuous", "discrete", "squashed", "memory"])
def test_weights_that_are_not_finite_are_not_written(tmp_path: Path, name: str) -> None:
    actor = make_actor(KINDS[name])
    with torch.no_grad():
        actor.head.bias.fill_(torch.nan)

    with pytest.raises(ExportMismatch):
        export_onnx(actor, KINDS[name].spec, tmp_path / "model.onnx")


def test_large_logits_are_compared_by_their_size(tmp_path: Path) -> None:
    actor = make_actor(KINDS["discrete"])
    with torch.no_grad():
        actor.head.weight *= 1e6  # float32 keeps seven digits: differences of 1 are rounding

    export_onnx(actor, KINDS["discrete"].spec, tmp_path / "model.onnx", *see(KINDS["discrete"].spec, 200))

    assert (tmp_path / "model.onnx").exists()


def test_export_does_not_change_the_policy(tmp_path: Path) -> None:
    actor = make_actor(KINDS["everything"])
    before = actor.flatten()

    export_onnx(actor, EVERYTHING, tmp_path / "model.onnx")

    np.testing.assert_array_equal(actor.flatten(), before)
