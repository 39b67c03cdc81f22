"""Two processes that share updates are one: the same weights in both, and those of one process with all rows."""

import pickle
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist

from ludus.config.behavior import POCAConfig, PPOConfig, SACConfig
from ludus.config.imitation import BehavioralCloningConfig
from ludus.demonstrations import write
from ludus.protocol.spec import BehaviorSpec
from tests.ludus.demonstrations.shown import make_demonstration
from tests.worker.learning.algorithms.off_policy_world import make_sac_config, random_round
from tests.worker.rollouts import make_spec, random_rollout
from worker.experience.rollout import Rollout
from worker.learning.algorithms.algorithm import Algorithm
from worker.learning.algorithms.numeric_check import Diverged
from worker.learning.build import Demonstrations, build_algorithm
from worker.trainer.parallel import Build, Group, pickled

pytestmark = pytest.mark.xdist_group("two learners")  # one second process for all
CPU = torch.device("cpu")
SPEC = make_spec(observations=(4,), continuous=1, branches=(3,))
TOLERANCE = 1e-5
"""Of weights after two updates: float32 sums are taken in another order."""
LENGTHS = [6, 10, 3, 13, 8, 9, 15]
STEPS = sum(LENGTHS)


def config(
    trainer: type[PPOConfig] | type[POCAConfig], signals: dict[str, Any] | None = None, **network: Any
) -> PPOConfig | POCAConfig:
    rnd = {"extrinsic": {}, "rnd": {"network_settings": {"hidden_units": 8, "num_layers": 1}}}
    return trainer.model_validate(
        {
            "hyperparameters": {"batch_size": 16, "buffer_size": 64, "learning_rate": 1e-3, "num_epoch": 2},
            "network_settings": {"hidden_units": 16, "num_layers": 1, "normalize": True, **network},
            "reward_signals": signals or rnd,
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


def build(section: PPOConfig | POCAConfig | SACConfig, spec: BehaviorSpec = SPEC) -> Algorithm:
    return build_algorithm(section, spec, CPU, 1, Demonstrations({}))


def alone(section: PPOConfig | POCAConfig, rollouts: list[Rollout]) -> np.ndarray:
    """The weights of one process with all rows, though a group exists."""
    algorithm = build(section)
    for step, one in enumerate(rollouts):
        algorithm.update(one, step)
    return algorithm.flat_weights()


def sac_rounds(spec: BehaviorSpec, count: int = 3, memory_size: int = 0) -> list[Rollout]:
    """Rounds of 16 steps, after each of which four gradient steps are due."""
    rng = np.random.default_rng(5)
    return [
        random_round(spec, rng, masked=True, memory_size=memory_size, episodes=[number] * 3) for number in range(count)
    ]


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


SMALL = {"hidden_units": 8, "num_layers": 1}
MEMORY = {"memory": {"sequence_length": 4, "memory_size": 8}}
NORMALIZED = SMALL | {"normalize": True}


def judges(demo_path: str) -> dict[str, Any]:
    """A section of `reward_signals` with all kinds of them, whose networks normalise what they see."""
    own = {"network_settings": NORMALIZED, "learning_rate": 1e-3}
    gail = {"use_actions": True, "use_vail": True, "demo_path": demo_path, **own}
    return {"extrinsic": {"gamma": 0.9}, "rnd": own, "curiosity": own, "gail": gail}


@pytest.mark.parametrize(
    ("spec", "options"),
    [
        (make_spec(observations=(3, 2), continuous=2), {"network": {"normalize": True}}),
        pytest.param(make_spec(observations=(3,), branches=(3, 2)), {"network": MEMORY}, marks=pytest.mark.long),
        pytest.param(
            make_spec(observations=(3,), continuous=1, branches=(3,)), {"judged": True}, marks=pytest.mark.long
        ),
        (make_spec(observations=(3,), continuous=2), {"network": MEMORY, "judged": True}),
        pytest.param(
            make_spec(observations=(3,), continuous=2), {"network": MEMORY, "imitates": True}, marks=pytest.mark.long
        ),
    ],
    ids=["columns", "branches-and-memory", "signals", "signals-and-memory", "imitation-and-memory"],
)
def test_the_result_of_sac_is_that_of_one_process_with_the_doubled_batch(
    group: Group, tmp_path: Path, spec: BehaviorSpec, options: dict[str, Any]
) -> None:
    shown = {"demo_path": str(tmp_path / "shown.npz")}
    write(make_demonstration(spec, lengths=[20, 30]), tmp_path / "shown.npz")
    section = make_sac_config(
        network=options.get("network"),
        signals=judges(shown["demo_path"]) if "judged" in options else None,
        cloning=shown if "imitates" in options else None,
        learning_rate=1e-3,
    )
    rounds = sac_rounds(spec, memory_size=8 if options.get("network") == MEMORY else 0)
    algorithm, one = build(section, spec), build(section, spec)
    before = algorithm.flat_weights()
    shared = group.share(algorithm, Build(section, spec, 1, {}))

    # Each update also compares the weights of both processes, bit for bit, and raises if they differ.
    measured = [shared.update(each, 16 * (step + 1)) for step, each in enumerate(rounds)]
    expected = [one.update(each, 16 * (step + 1)) for step, each in enumerate(rounds)]

    assert np.abs(shared.flat_weights() - before).max() > 1e-3
    np.testing.assert_allclose(shared.flat_weights(), one.flat_weights(), atol=TOLERANCE)
    mine, its = shared.state_dict(), one.state_dict()
    for part in ("critics", "log_coefficients", "signals", "generator"):
        torch.testing.assert_close(mine[part], its[part], rtol=0.0, atol=TOLERANCE)
    assert mine["values_before"] == pytest.approx(its["values_before"], abs=1e-4), "by all rows, not by a share"
    for name in ("Losses/Q1 Loss", "Losses/Policy Gradient Norm", "Policy/Entropy"):
        assert measured[-1] is not None
        assert expected[-1] is not None
        assert measured[-1][name] == pytest.approx(expected[-1][name], rel=1e-3), name


@pytest.mark.parametrize(
    "network", [pytest.param({}, id="steps", marks=pytest.mark.long), pytest.param(MEMORY, id="sequences")]
)
@pytest.mark.parametrize("trainer", [PPOConfig, pytest.param(POCAConfig, marks=pytest.mark.long)])
def test_reward_signals_learn_from_shares_what_one_process_learns_from_all_rows(
    group: Group, tmp_path: Path, trainer: type[PPOConfig] | type[POCAConfig], network: dict[str, Any]
) -> None:
    write(make_demonstration(SPEC, lengths=[20, 30]), tmp_path / "shown.npz")
    section = config(trainer, signals=judges(str(tmp_path / "shown.npz")), **network)
    memories = {"memories": np.zeros((STEPS, 8))} if network else {}
    shared, one = group.share(build(section), Build(section, SPEC, 1, {})), build(section)
    before = shared.state_dict()["signals"]

    for step in range(2):
        shared.update(rollout(step, **memories), step)
        one.update(rollout(step, **memories), step)

    mine, its = shared.state_dict()["signals"], one.state_dict()["signals"]
    torch.testing.assert_close(mine, its, rtol=1e-9, atol=TOLERANCE)
    for name, counted in {"rnd": "target", "curiosity": "features", "gail": "body"}.items():
        count = f"{counted}.normalizer.count"
        assert float(mine[name]["model"][count]) == float(its[name]["model"][count]) > 100.0
        assert any((mine[name]["model"][key] - part).abs().max() > 1e-3 for key, part in before[name]["model"].items())


def test_what_overflows_in_one_share_takes_the_update_of_sac_back_in_all_processes(group: Group) -> None:
    spec = make_spec(observations=(3,), continuous=2)
    section = make_sac_config()
    shared = group.share(build(section, spec), Build(section, spec, 1, {}))
    first, second, third = sac_rounds(spec)
    shared.update(first, 16)
    before = shared.flat_weights()

    # The square of what one step pays is past float32. Drawn once, it is in one process's share.
    rewards = second.rewards.clone()
    rewards[0] = 1e25
    with pytest.raises(Diverged, match="Losses"):
        shared.update(replace(second, rewards=rewards), 32)

    np.testing.assert_array_equal(shared.flat_weights(), before)
    with pytest.raises(Diverged, match="Losses"):  # it is still in the buffer, in that of both
        shared.update(third, 48)


def test_a_loaded_replay_buffer_is_loaded_in_all_processes(group: Group) -> None:
    spec = make_spec(observations=(3,), continuous=2)
    section = make_sac_config(save_replay_buffer=True, learning_rate=1e-3)
    one, rounds = build(section, spec), sac_rounds(spec)
    for step in range(2):
        one.update(rounds[step], 16 * (step + 1))
    shared = group.share(build(section, spec), Build(section, spec, 1, {}))

    shared.load_state_dict(one.state_dict())

    assert shared.update(rounds[2], 48) is not None  # compares weights
    one.update(rounds[2], 48)
    np.testing.assert_allclose(shared.flat_weights(), one.flat_weights(), atol=TOLERANCE)


def test_what_travels_of_a_view_is_what_it_shows() -> None:
    column = torch.arange(100_000)

    data = pickled({"some": column[:3], "none": torch.empty(0, 4), "one": torch.tensor(2.5)})

    assert len(data) < 2000
    found = pickle.loads(bytes(data))
    assert found["some"].tolist() == [0, 1, 2]
    assert found["none"].shape == (0, 4)
    assert float(found["one"]) == 2.5


@pytest.mark.parametrize("section", [config(PPOConfig), make_sac_config()], ids=["ppo", "sac"])
def test_an_update_that_one_process_takes_back_is_taken_back_in_all(
    group: Group, monkeypatch: pytest.MonkeyPatch, section: PPOConfig | SACConfig
) -> None:
    algorithm = build(section)
    shared = group.share(algorithm, Build(section, SPEC, 1, {}))
    shared.update(rollout(1), STEPS)
    before = shared.state_dict()

    def fail(rollout: Rollout, step: int) -> None:
        """Learn like the other process, and then find something that only this one's share has."""
        type(algorithm).update(algorithm, rollout, step)
        algorithm.load_state_dict(before)
        raise Diverged("policy loss", 3)

    monkeypatch.setattr(algorithm, "update", fail)
    with pytest.raises(Diverged, match="policy loss"):
        shared.update(rollout(2), 2 * STEPS)
    monkeypatch.undo()

    shared.update(rollout(3), 3 * STEPS)  # compares weights
    assert shared.version == before["version"] + 1


def test_what_only_another_process_met_is_told_once_with_its_number(group: Group) -> None:
    section = config(PPOConfig)
    numbers = section.hyperparameters.model_copy(update={"batch_size": 64, "num_epoch": 1})  # one minibatch
    past_float32 = numbers.model_copy(update={"learning_rate": 1e39})
    sensible = section.model_copy(update={"hyperparameters": numbers})
    leaping = section.model_copy(update={"hyperparameters": past_float32})
    shared = group.share(build(sensible), Build(leaping, SPEC, 1, {}))
    before = shared.flat_weights()

    with pytest.raises(Diverged) as caught:
        shared.update(rollout(1), 0)

    assert str(caught.value) == "weights of actor.log_sigma is not finite (in process 1); the update was taken back"
    np.testing.assert_array_equal(shared.flat_weights(), before)


def test_a_changed_configuration_holds_in_all_processes(group: Group) -> None:
    """Different numbers would give different weights, which `ProcessesDisagree` would tell."""
    before = config(PPOConfig)
    changed = before.model_copy(
        update={"hyperparameters": before.hyperparameters.model_copy(update={"learning_rate": 1e-2, "num_epoch": 1})}
    )
    algorithm = build_algorithm(before, SPEC, CPU, 7, Demonstrations({}))  # type: ignore[arg-type]  # not a clone
    both = group.share(algorithm, Build(before, SPEC, 7, {}))  # type: ignore[arg-type]  # not a clone

    both.reconfigure(changed)  # type: ignore[arg-type]  # not a clone
    measured = both.update(rollout(1), 64)

    assert measured is not None
    assert measured["Policy/Learning Rate"] == pytest.approx(1e-2, rel=1e-3)


def test_the_result_of_imitation_beside_the_trainer_is_that_of_one_process(group: Group, tmp_path: Path) -> None:
    write(make_demonstration(SPEC, lengths=[20, 30]), tmp_path / "shown.npz")
    section = config(PPOConfig)
    cloning = BehavioralCloningConfig(demo_path=str(tmp_path / "shown.npz"))
    section = section.model_copy(update={"behavioral_cloning": cloning})
    shared = group.share(build(section), Build(section, SPEC, 1, {}))

    # Each update compares the weights.
    rollouts = [rollout(step) for step in range(2)]
    measured = [shared.update(one, step) for step, one in enumerate(rollouts)]

    assert all(one is not None and "Losses/Pretraining Loss" in one for one in measured)
    np.testing.assert_allclose(shared.flat_weights(), alone(section, rollouts), atol=TOLERANCE)
