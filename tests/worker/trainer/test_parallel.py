"""Two processes that share updates are one: the same weights in both, and those of one process with all rows."""

import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist

from ludus.demonstrations import write
from server.training.config import BehavioralCloningConfig, POCAConfig, PPOConfig
from tests.ludus.demonstrations.shown import make_demonstration
from tests.worker.rollouts import make_spec, random_rollout
from worker.algorithms.algorithm import Algorithm
from worker.algorithms.guards import Diverged
from worker.build import Demonstrations, build_algorithm
from worker.experience.rollout import Rollout
from worker.shares import share, together
from worker.trainer.parallel import Build, Group, _pickled

CPU = torch.device("cpu")
SPEC = make_spec(observations=(4,), continuous=1, branches=(3,))
TOLERANCE = 1e-5
"""Of weights after two updates: float32 sums are taken in another order."""
LENGTHS = [6, 10, 3, 13, 8, 9, 15]
STEPS = sum(LENGTHS)


def config(trainer: type[PPOConfig] | type[POCAConfig], **network: Any) -> PPOConfig | POCAConfig:
    return trainer.model_validate(
        {
            "hyperparameters": {"batch_size": 16, "buffer_size": 64, "learning_rate": 1e-3, "num_epoch": 2},
            "network_settings": {"hidden_units": 16, "num_layers": 1, "normalize": True, **network},
            "reward_signals": {"extrinsic": {}, "rnd": {"network_settings": {"hidden_units": 8, "num_layers": 1}}},
        }
    )


def rollout(seed: int, **overrides: Any) -> Rollout:
    rng = np.random.default_rng(seed)
    log_probs = np.full((STEPS, 2), -1.0)
    return random_rollout(SPEC, LENGTHS, rng, log_probs=log_probs, group_size=2, masked=True, **overrides)


@pytest.fixture(scope="module")
def group(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Group]:
    """Two processes: this one and another."""
    group = Group(2, CPU, tmp_path_factory.mktemp("group"))
    yield group
    group.close()
    assert not dist.is_initialized()


def build(section: PPOConfig | POCAConfig) -> Algorithm:
    return build_algorithm(section, SPEC, CPU, 1, Demonstrations({}))


def alone(section: PPOConfig | POCAConfig, rollouts: list[Rollout]) -> np.ndarray:
    """The weights of one process with all rows, though a group exists."""
    algorithm = build(section)
    for step, one in enumerate(rollouts):
        algorithm.update(one, step)
    return algorithm.flat_weights()


@pytest.mark.parametrize("trainer", [PPOConfig, POCAConfig])
def test_the_result_is_that_of_one_process_with_the_doubled_batch(
    group: Group, trainer: type[PPOConfig] | type[POCAConfig]
) -> None:
    section, rollouts = config(trainer), [rollout(1), rollout(2)]
    algorithm = build(section)
    before = algorithm.flat_weights()
    shared = group.share(algorithm, Build(section, SPEC, 1, {}))

    # Each update also compares the weights of both processes, bit for bit, and raises if they differ.
    measured = [shared.update(one, step) for step, one in enumerate(rollouts)]

    assert all(measured)
    assert np.abs(shared.flat_weights() - before).max() > 1e-3
    np.testing.assert_allclose(shared.flat_weights(), alone(section, rollouts), atol=TOLERANCE)


def test_recurrent_networks_stay_the_same_in_both_processes(group: Group) -> None:
    section = config(PPOConfig, memory={"sequence_length": 4, "memory_size": 8})
    memories = {"memories": np.zeros((STEPS, 8))}
    shared = group.share(build(section), Build(section, SPEC, 1, {}))

    for step in range(2):
        assert shared.update(rollout(step, **memories), step) is not None


def test_an_update_that_one_process_takes_back_is_taken_back_in_all(
    group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    section = config(PPOConfig)
    algorithm = build(section)
    shared = group.share(algorithm, Build(section, SPEC, 1, {}))
    shared.update(rollout(1), 0)
    before = shared.state_dict()

    def fail(rollout: Rollout, step: int) -> None:
        """Learn like the other process, and then find something that only this one's share has."""
        type(algorithm).update(algorithm, rollout, step)
        algorithm.load_state_dict(before)
        raise Diverged("policy loss", 3)

    monkeypatch.setattr(algorithm, "update", fail)
    with pytest.raises(Diverged, match="policy loss"):
        shared.update(rollout(2), 1)
    monkeypatch.undo()

    shared.update(rollout(3), 1)  # compares weights
    assert shared.version == before["version"] + 1


def test_a_loaded_state_is_loaded_in_all_processes(group: Group) -> None:
    section = config(PPOConfig)
    other = build_algorithm(section, SPEC, CPU, 7, Demonstrations({}))
    shared = group.share(build(section), Build(section, SPEC, 1, {}))

    shared.load_state_dict(other.state_dict())

    np.testing.assert_array_equal(shared.flat_weights(), other.flat_weights())
    assert shared.update(rollout(1), 0) is not None  # compares weights


def test_what_travels_of_a_view_is_what_it_shows() -> None:
    column = torch.arange(100_000)

    data = _pickled({"some": column[:3], "none": torch.empty(0, 4), "one": torch.tensor(2.5)})

    assert len(data) < 2000
    found = pickle.loads(bytes(data))
    assert found["some"].tolist() == [0, 1, 2]
    assert found["none"].shape == (0, 4)
    assert float(found["one"]) == 2.5


def test_shares_are_disjoint_and_cover_every_minibatch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dist, "get_world_size", lambda: 2)
    order = torch.arange(22)
    parts = []
    for rank in range(2):
        monkeypatch.setattr(dist, "get_rank", lambda rank=rank: rank)
        with together():
            parts.append(share(order, 8))

    assert share(order, 8) == (order, 8), "what is not done together is not shared"
    assert [size for _, size in parts] == [4, 4]
    assert parts[0][0].tolist() == [0, 1, 2, 3, 8, 9, 10, 11]
    assert parts[1][0].tolist() == [4, 5, 6, 7, 12, 13, 14, 15]


def test_imitation_beside_the_trainer_stays_the_same_in_both_processes(group: Group, tmp_path: Path) -> None:
    write(make_demonstration(SPEC, lengths=[20, 30]), tmp_path / "shown.npz")
    section = config(PPOConfig)
    cloning = BehavioralCloningConfig(demo_path=str(tmp_path / "shown.npz"))
    section = section.model_copy(update={"behavioral_cloning": cloning})
    shared = group.share(build(section), Build(section, SPEC, 1, {}))

    # Each update compares the weights.
    measured = [shared.update(rollout(step), step) for step in range(2)]

    assert all(one is not None and "Losses/Pretraining Loss" in one for one in measured)
