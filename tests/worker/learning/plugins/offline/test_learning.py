"""What offline learners share: the buffer that begins with demonstrations, exact resume, fine-tuning, exports."""

from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch

from ludus.demonstrations import DemonstrationError
from tests.ludus.demonstrations.shown import make_demonstration, make_spec, vector
from tests.worker.learning.plugins.offline.learners import SPEC, acted, learner
from tests.worker.rollouts import equal_states, random_rollout
from worker.learning.algorithms.numeric_check import Diverged
from worker.onnx.export import export_onnx
from worker.trainer import checkpoint
from worker.trainer.initialization import InitializationError, initialize

ALGORITHMS = pytest.mark.parametrize("algorithm", ["iql", "rebrac"])
SHOWN = make_demonstration(SPEC, (5, 3, 4, 6), "etce")


def test_the_buffer_begins_with_the_demonstrations_and_their_endings(tmp_path: Path) -> None:
    replay = learner(tmp_path, SHOWN).experience.replay

    drawn = replay.sample(500, torch.Generator().manual_seed(1))

    assert len(replay) == SHOWN.steps
    assert set(drawn.rows.tolist()) == set(range(SHOWN.steps))
    assert torch.equal(drawn.continuous, torch.from_numpy(SHOWN.continuous)[drawn.rows])
    assert torch.equal(drawn.rewards, torch.from_numpy(SHOWN.rewards)[drawn.rows])
    assert torch.equal(drawn.terminated, torch.from_numpy(SHOWN.terminated)[drawn.rows])
    assert torch.equal(drawn.ended, torch.from_numpy(SHOWN.terminated | SHOWN.truncated)[drawn.rows])
    (following,) = SHOWN.next_observations(drawn.rows.numpy())
    assert torch.equal(drawn.observations[0][drawn.next_index], torch.from_numpy(following))


def test_observations_are_normalised_by_the_demonstrations(tmp_path: Path) -> None:
    actor = learner(tmp_path, SHOWN, network={"normalize": True}).actor

    assert actor.normalizer is not None
    assert actor.normalizer.mean.tolist() == pytest.approx(SHOWN.observations[0].mean(0).tolist(), rel=0.2)


@ALGORITHMS
def test_learning_goes_on_bit_for_bit_from_a_checkpoint(tmp_path: Path, algorithm: str) -> None:
    first = learner(tmp_path, SHOWN, algorithm=algorithm)
    first.iterate(5)
    folder = tmp_path / "saved"
    folder.mkdir()
    checkpoint.save(folder, first.state_dict())

    other = learner(tmp_path, SHOWN, algorithm=algorithm, seed=2)
    other.load_state_dict(checkpoint.load(folder))

    assert other.version == 5
    assert other.iterate(4) == first.iterate(4)
    assert equal_states(first.state_dict(), other.state_dict())


@ALGORITHMS
def test_a_step_that_is_not_finite_is_taken_back(tmp_path: Path, algorithm: str) -> None:
    made = learner(tmp_path, SHOWN, algorithm=algorithm)
    made.iterate(2)
    before, version = made.flat_weights(), made.version
    made.experience.replay._rewards[:] = np.nan

    with pytest.raises(Diverged):
        made.iterate(2)

    assert (made.flat_weights() == before).all()
    assert made.version == version


@ALGORITHMS
def test_the_exported_model_acts_as_the_policy(tmp_path: Path, algorithm: str) -> None:
    made = learner(tmp_path, SHOWN, algorithm=algorithm, network={"normalize": True})
    made.iterate(20)
    observations = torch.from_numpy(SHOWN.observations[0])

    export_onnx(made.actor, SHOWN.spec, tmp_path / "model.onnx", [observations], None)

    session = onnxruntime.InferenceSession(tmp_path / "model.onnx")
    feed = {session.get_inputs()[0].name: observations.numpy()}
    outputs = dict(zip([item.name for item in session.get_outputs()], session.run(None, feed), strict=True))
    actions, _, _ = made.actor.deterministic([observations], None)
    assert outputs["deterministic_continuous_actions"] == pytest.approx(actions.numpy(), abs=1e-6)


@ALGORITHMS
def test_fine_tuning_begins_with_an_offline_checkpoint_and_learns_on_from_what_is_played(
    tmp_path: Path, algorithm: str
) -> None:
    offline = learner(tmp_path, SHOWN, algorithm=algorithm, network={"normalize": True})
    offline.iterate(10)
    folder = tmp_path / "saved"
    folder.mkdir()
    checkpoint.save(folder, {"Walker": {"progress": {"step": 10}, "algorithm": offline.state_dict()}})
    finetune = learner(
        tmp_path,
        SHOWN,
        trainer="finetune",
        algorithm=algorithm,
        seed=9,
        network={"normalize": True},
        buffer_size=100,
        steps_per_update=1,
    )

    began = initialize(finetune, finetune.config, SPEC, "ckpt", folder)

    assert began.step == 10
    observations = [torch.from_numpy(SHOWN.observations[0])]
    for mine, theirs in zip(
        finetune.actor.deterministic(observations, None)[:2],
        offline.actor.deterministic(observations, None)[:2],
        strict=True,
    ):
        assert torch.equal(mine, theirs)
    rng = np.random.default_rng(1)
    played = random_rollout(SPEC, (6, 6), rng, continuous=rng.uniform(-1, 1, (12, 1)).astype(np.float32))
    measured = finetune.update(played, 12)
    assert measured is not None
    assert np.isfinite(list(measured.values())).all()
    assert len(finetune.experience.replay) == SHOWN.steps + 12, "demonstrations and played steps lie together"
    assert finetune.experience.updates == 12


def test_another_algorithms_checkpoint_is_refused_with_what_does_not_fit(tmp_path: Path) -> None:
    iql = learner(tmp_path, SHOWN, algorithm="iql")
    folder = tmp_path / "saved"
    folder.mkdir()
    checkpoint.save(folder, {"Walker": {"progress": {"step": 0}, "algorithm": iql.state_dict()}})
    rebrac = learner(tmp_path, SHOWN, trainer="finetune", algorithm="rebrac", buffer_size=100)

    with pytest.raises(InitializationError, match=r"missing model\.critics"):
        initialize(rebrac, rebrac.config, SPEC, "ckpt", folder)


@pytest.mark.parametrize(
    ("shown", "section", "sentence"),
    [
        (
            acted(reward=0.0, endings="tt"),
            {},
            "demonstrations: the rewards of all 8 steps are 0, so that no action is better than another",
        ),
        (
            SHOWN,
            {"trainer": "finetune", "buffer_size": 10},
            r"hyperparameters.buffer_size: is 10, and the demonstrations have 18 steps; raise it",
        ),
    ],
    ids=["no rewards", "small buffer"],
)
def test_what_cannot_be_learned_from_is_refused_with_a_sentence(
    tmp_path: Path, shown: Any, section: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(DemonstrationError, match=sentence):
        learner(tmp_path, shown, **{"batch_size": 4, **section})


def test_all_kinds_of_actions_are_learned_by_iql(tmp_path: Path) -> None:
    for number, actions in enumerate(({"continuous": 2}, {"branches": (3, 2)}, {"continuous": 1, "branches": (3,)})):
        spec = make_spec(vector(2), name="Walker", **actions)  # type: ignore[arg-type]  # one of each kind
        shown = make_demonstration(spec, (20, 20))
        made = learner(tmp_path, shown, seed=number)
        before = made.flat_weights()

        measured = made.iterate(3)

        assert np.isfinite(list(measured.values())).all()
        assert (made.flat_weights() != before).any()
