"""Two ranks are one process with the experience of both and the doubled batch; what crosses between them is counted."""

import pickle
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from ludus.config.behavior import POCAConfig, PPOConfig
from ludus.protocol.spec import BehaviorSpec
from tests.worker.learning.algorithms.off_policy_world import make_dqn_config, make_sac_config, random_round
from tests.worker.rollouts import make_spec, random_rollout
from tests.worker.trainer.rank_world import CPU, Pair, build
from worker.experience.rollout import Rollout
from worker.learning.algorithms.numeric_check import Diverged
from worker.learning.algorithms.off_policy import Batch
from worker.trainer.ranks import EXCHANGED, Ranks, pickled, seed_of_rank, state_of_rank

pytestmark = pytest.mark.xdist_group("two learners")  # one second process for all
SPEC = make_spec(observations=(4, 3), continuous=1, branches=(3,))
TOLERANCE = 1e-5
"""Of weights after two updates: float32 sums are taken in another order."""
LENGTHS = [6, 10, 3, 13, 8, 9, 15]
STEPS = sum(LENGTHS)
SMALL = {"hidden_units": 8, "num_layers": 1, "normalize": True}


def config(trainer: type[PPOConfig] | type[POCAConfig], size: int = STEPS, **hyper: Any) -> Any:
    signals: dict[str, Any] = {"extrinsic": {"gamma": 0.9, "normalize_reward": hyper.pop("normalize_reward", False)}}
    for name in ("rnd", "curiosity"):
        signals[name] = {"network_settings": SMALL, "learning_rate": 1e-3}
    numbers = {"batch_size": size, "buffer_size": size, "learning_rate": 1e-3, "num_epoch": 3}
    network = {**SMALL, "privileged_observations": hyper.pop("privileged", [])}
    return trainer.model_validate(
        {"hyperparameters": {**numbers, **hyper}, "network_settings": network, "reward_signals": signals}
    )


def rollout(seed: int, **overrides: Any) -> Rollout:
    """A round of its own simulator, with one step more or fewer than others: parts are seldom quite equal."""
    rng = np.random.default_rng(seed)
    columns = SPEC.actions.continuous_size + len(SPEC.actions.discrete_branches)
    log_probs = np.full((STEPS, columns), -1.0)
    given = {"simulators": [seed] * len(LENGTHS), "log_probs": log_probs, "group_size": 2, "masked": True}
    return random_rollout(SPEC, LENGTHS, rng, **{**given, **overrides})


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ranks]:
    """This process and another."""
    ranks = Ranks(2, CPU, tmp_path_factory.mktemp("ranks"), 30.0)
    yield ranks
    ranks.close()
    assert not dist.is_initialized()


@pytest.mark.parametrize(
    ("trainer", "hyper"),
    [
        (PPOConfig, {"normalize_values": True, "desired_kl": 0.01}),
        (PPOConfig, {"vtrace": True, "target_kl": 1.0}),
        (POCAConfig, {}),
        (PPOConfig, {"privileged": ["vector 0"]}),
        (POCAConfig, {"privileged": ["vector 0"]}),
        (PPOConfig, {"normalize_reward": True}),
    ],
    ids=["ppo", "ppo-vtrace", "poca", "ppo-privileged", "poca-privileged", "ppo-normalized-rewards"],
)
def test_the_weights_are_those_of_one_process_with_both_rounds_and_the_doubled_batch(
    ranks: Ranks, trainer: type[PPOConfig] | type[POCAConfig], hyper: dict[str, Any]
) -> None:
    pair, one = Pair(ranks, config(trainer, **hyper), SPEC), build(config(trainer, 2 * STEPS, **hyper), SPEC)
    before = pair.algorithm.flat_weights()

    for update in range(2):
        own, other = rollout(2 * update), rollout(2 * update + 1)
        # It also compares the weights of both ranks, bit for bit, and raises if they differ.
        measured = pair.update(own, other, STEPS * update)
        expected = one.update(own.followed_by(other), STEPS * update)

    assert np.abs(pair.algorithm.flat_weights() - before).max() > 1e-3
    np.testing.assert_allclose(pair.algorithm.flat_weights(), one.flat_weights(), atol=TOLERANCE)
    mine, its = pair.algorithm.state_dict(), one.state_dict()
    for state in (mine, its):  # a softmax does not depend on it: Adam makes steps of what rounding leaves
        state["model"].pop("critic.attention.key.bias", None)
        state["signals"]["extrinsic"].get("scale", {}).pop("episodes", None)  # a rank's own
    for part in ("model", "signals", "rate_factor"):
        torch.testing.assert_close(mine[part], its[part], rtol=1e-5, atol=TOLERANCE)
    names = {"Losses/Policy Loss", "Losses/Value Loss", "Losses/Gradient Norm", "Policy/Approximate KL"}
    for name in names | {name for name in expected if name.endswith((" Reward", "Value Estimate"))}:
        assert measured[name] == pytest.approx(expected[name], rel=1e-3, abs=1e-5), name


def both(first: Batch, second: Batch) -> Batch:
    """The batches of both ranks as one."""
    joined: dict[str, Any] = {}
    for name in Batch._fields:
        parts = getattr(first, name), getattr(second, name)
        if isinstance(parts[0], Tensor):
            joined[name] = torch.cat(parts)
        elif isinstance(parts[0], list):
            joined[name] = [torch.cat(pair) for pair in zip(*parts, strict=True)]
    return first._replace(**joined)._replace(weight=joined["weight"] / 2)


@pytest.mark.parametrize(
    "spec",
    [make_spec(observations=(3, 2), continuous=2), make_spec(observations=(3,), continuous=1, branches=(3, 2))],
    ids=["columns", "columns-and-branches"],
)
def test_the_weights_of_sac_are_those_of_one_process_with_the_batches_of_both_ranks(
    ranks: Ranks, monkeypatch: pytest.MonkeyPatch, spec: BehaviorSpec
) -> None:
    network = {"normalize": True}
    section = make_sac_config(network=network, learning_rate=1e-3)
    one = build(make_sac_config(network=network, learning_rate=1e-3, batch_size=32, steps_per_update=8.0), spec)
    pair = Pair(ranks, section, spec)
    # The buffers of both ranks, with the generators that draw from them.
    buffers = [build(section, spec), build(section, spec, seed_of_rank(pair.order, 1))]
    buffers[1].load_state_dict(state_of_rank(pair.order.state, buffers[1].state_dict()))
    experiences = [buffer.experience for buffer in buffers]
    for experience in experiences:
        experience._actor = one.actor  # its statistics normalise
    monkeypatch.setattr(one.experience, "batch", lambda: both(*(each.batch() for each in experiences)))
    monkeypatch.setattr(
        one.experience, "noise", lambda columns: torch.cat([each.noise(columns) for each in experiences])
    )
    rng = np.random.default_rng(5)
    before = pair.algorithm.flat_weights()

    for number in range(3):
        rounds = [
            random_round(spec, rng, masked=True, episodes=[number] * 3, simulators=[rank] * 3) for rank in range(2)
        ]
        for experience, stored in zip(experiences, rounds, strict=True):
            experience.replay.store(stored)
        measured = pair.update(*rounds, 32 * (number + 1))
        expected = one.update(rounds[0].followed_by(rounds[1]), 32 * (number + 1))

    assert np.abs(pair.algorithm.flat_weights() - before).max() > 1e-3
    np.testing.assert_allclose(pair.algorithm.flat_weights(), one.flat_weights(), atol=TOLERANCE)
    mine, its = pair.algorithm.state_dict(), one.state_dict()
    for part in ("critics", "log_coefficients"):
        torch.testing.assert_close(mine[part], its[part], rtol=0.0, atol=TOLERANCE)
    assert mine["counters"] == [96, 12, 0, 48.0]
    for name in ("Losses/Q1 Loss", "Losses/Policy Gradient Norm", "Policy/Entropy"):
        assert measured[name] == pytest.approx(expected[name], rel=1e-3), name


def test_what_crosses_in_an_update_is_the_gradient_of_each_minibatch_and_statistics_that_are_independent_of_both(
    ranks: Ranks,
) -> None:
    def crossed(units: int, minibatches: int) -> tuple[int, int]:
        section = PPOConfig.model_validate(
            {
                "hyperparameters": {"batch_size": STEPS // minibatches, "buffer_size": STEPS, "num_epoch": 2},
                "network_settings": {**SMALL, "hidden_units": units},
            }
        )
        pair = Pair(ranks, section, SPEC)
        gradients = 4 * pair.algorithm.optimizer.gradient.numel() * 2 * minibatches
        return int(pair.update(rollout(1), rollout(2), STEPS)[EXCHANGED]) - gradients, gradients

    statistics = [crossed(8, 1), crossed(64, 1), crossed(64, 4)]

    assert len({bytes_ for bytes_, _ in statistics}) == 1
    assert 0 < statistics[0][0] < 512
    assert statistics[2][1] > 100 * statistics[2][0], "gradients are nearly all"


def test_what_crosses_in_an_update_of_sac_is_the_gradient_of_each_step(ranks: Ranks) -> None:
    spec = make_spec(observations=(3,), continuous=2)
    pair = Pair(ranks, make_sac_config(), spec)
    rng = np.random.default_rng(1)

    measured = pair.update(random_round(spec, rng), random_round(spec, rng), 32)

    steps, terms = 4, len(pair.algorithm.term_names)
    gradients = 4 * pair.algorithm.optimizer.gradient.numel() * steps
    # Is the round finite? Does the buffer hold a batch? The terms of each step; the weights' checksum, twice.
    assert int(measured[EXCHANGED]) == gradients + 8 + 8 + 4 * terms * steps + 2 * 8


def test_dqn_with_priorities_learns_in_both_ranks(ranks: Ranks) -> None:
    spec = make_spec(observations=(1,), branches=(3,))
    pair = Pair(ranks, make_dqn_config(prioritized=True, n_step=3), spec)
    rng = np.random.default_rng(1)
    before = pair.algorithm.flat_weights()

    for number in range(2):  # each update compares weights
        pair.update(random_round(spec, rng), random_round(spec, rng), 32 * (number + 1))

    assert np.abs(pair.algorithm.flat_weights() - before).max() > 1e-4


def test_a_rank_with_fewer_steps_gives_all_as_many_minibatches_as_it_has(ranks: Ranks) -> None:
    pair = Pair(ranks, config(PPOConfig, size=16), SPEC)

    assert pair.update(rollout(1), rollout(2).beginning(40), 64)[EXCHANGED] > 0  # the exchanges of both match


def test_what_is_not_finite_in_one_rank_takes_the_update_back_in_both(ranks: Ranks) -> None:
    pair = Pair(ranks, config(PPOConfig), SPEC)
    pair.update(rollout(1), rollout(2), STEPS)
    before = pair.algorithm.flat_weights()
    spoiled = rollout(4)
    spoiled.rewards[3] = torch.nan

    with pytest.raises(Diverged):
        pair.update(rollout(3), spoiled, 2 * STEPS)

    np.testing.assert_array_equal(pair.algorithm.flat_weights(), before)
    assert pair.update(rollout(5), rollout(6), 3 * STEPS)  # compares weights


def test_a_round_of_another_rank_that_is_not_finite_is_stored_by_none(ranks: Ranks) -> None:
    spec = make_spec(observations=(3,), continuous=2)
    pair = Pair(ranks, make_sac_config(), spec)
    rng = np.random.default_rng(1)
    spoiled = random_round(spec, rng)
    spoiled.rewards[3] = torch.inf

    with pytest.raises(Diverged, match="the update of another rank is not finite"):
        pair.update(random_round(spec, rng), spoiled, 32)

    assert len(pair.algorithm.experience.replay) == 0
    assert pair.update(random_round(spec, rng), random_round(spec, rng), 64)


def test_a_changed_configuration_holds_in_both_ranks(ranks: Ranks) -> None:
    section = config(PPOConfig)
    changed = section.model_copy(
        update={"hyperparameters": section.hyperparameters.model_copy(update={"learning_rate": 1e-2, "num_epoch": 1})}
    )
    pair = Pair(ranks, section, SPEC)

    ranks.reconfigure(SPEC.behavior, changed)
    pair.algorithm.reconfigure(changed)

    assert pair.update(rollout(1), rollout(2), STEPS)["Policy/Learning Rate"] == pytest.approx(1e-2, rel=1e-3)


def test_randomness_and_experience_are_a_ranks_own_and_all_else_is_that_of_rank_0() -> None:
    spec = make_spec(observations=(3,), continuous=2)
    section = make_sac_config(save_replay_buffer=True)
    first, second = build(section, spec), build(section, spec, 2)
    first.update(random_round(spec, np.random.default_rng(1)), 16)

    second.load_state_dict(state_of_rank(first.state_dict(), second.state_dict()))

    np.testing.assert_array_equal(second.flat_weights(), first.flat_weights())
    assert second.state_dict()["counters"] == first.state_dict()["counters"]
    assert len(second.experience.replay) == 0
    assert not torch.equal(second.generator.get_state(), first.generator.get_state())


def test_steps_count_for_the_ranks_that_were_there() -> None:
    """Another number of ranks after a resume neither asks for the gradient steps of the past again nor skips any."""
    spec = make_spec(observations=(3,), continuous=2)
    alone = build(make_sac_config(), spec)
    rng = np.random.default_rng(1)
    alone.update(random_round(spec, rng), 16)
    state = alone.state_dict()
    state["counters"] = [16, 2, 0, 8.0]  # as two ranks would have counted

    alone.load_state_dict(state)
    alone.update(random_round(spec, rng), 32)

    assert alone.state_dict()["counters"] == [32, 6, 0, 24.0]


def test_what_travels_of_a_view_is_what_it_shows() -> None:
    column = torch.arange(100_000)

    data = pickled({"some": column[:3], "none": torch.empty(0, 4), "one": torch.tensor(2.5)})

    assert len(data) < 2000
    found = pickle.loads(bytes(data))
    assert found["some"].tolist() == [0, 1, 2]
    assert found["none"].shape == (0, 4)
    assert float(found["one"]) == 2.5
