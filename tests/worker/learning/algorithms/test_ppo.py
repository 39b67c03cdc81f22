"""The update itself: what it starts from, what it changes, what it reports, and what it refuses."""

from typing import Any

import numpy as np
import pytest
import torch

from ludus.collector.policy import ActingPolicy
from ludus.collector.segments import SegmentEnd
from ludus.config.network import NetworkSettings
from tests.worker.rollouts import acted_rollout, make_config, make_rollout, make_spec
from worker.experience.rollout import Rollout
from worker.learning.algorithms.numeric_check import Diverged
from worker.learning.algorithms.ppo import PPO
from worker.trainer import checkpoint

SPACES = [(0, (3,)), (0, (3, 2)), (2, ()), (2, (3, 2))]
CPU = torch.device("cpu")


def make_ppo(
    continuous: int = 2, branches: tuple[int, ...] = (3,), *, seed: int = 1, normalize: bool = True, **overrides: Any
) -> tuple[PPO, ActingPolicy]:
    """A learner, and a policy with its weights."""
    config = make_config(network={"normalize": normalize}, **overrides)
    spec = make_spec(observations=(3, 2), continuous=continuous, branches=branches)
    ppo = PPO(config, spec, CPU, seed=seed)
    policy = ActingPolicy(spec, config.network_settings)
    policy.load(ppo.flat_weights())
    return ppo, policy


def train(ppo: PPO, policy: ActingPolicy, rng: np.random.Generator, updates: int) -> None:
    for _ in range(updates):
        policy.load(ppo.flat_weights())
        ppo.update(acted_rollout(policy, rng, version=ppo.version), step=ppo.version * 256)


def equal_states(one: Any, other: Any) -> bool:
    """Whether two nested states are equal, tensors bit for bit."""
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(equal_states(one[key], other[key]) for key in one)
    return torch.equal(one, other) if isinstance(one, torch.Tensor) else one == other


@pytest.mark.parametrize("shared_critic", [False, True])
@pytest.mark.parametrize(("continuous", "branches"), SPACES)
def test_ratio_is_one_on_the_first_minibatch(continuous: int, branches: tuple[int, ...], shared_critic: bool) -> None:
    ppo, policy = make_ppo(continuous, branches, num_epoch=1, batch_size=256, shared_critic=shared_critic)
    train(ppo, policy, np.random.default_rng(1), updates=2)  # weights and normalizer have moved
    policy.load(ppo.flat_weights())
    rollout = acted_rollout(policy, np.random.default_rng(2), masked=bool(branches))

    stats = ppo.update(rollout, step=0)  # of one minibatch

    assert stats["Policy/Approximate KL"] < 1e-9
    assert stats["Policy/Clip Fraction"] == 0.0
    assert stats["Losses/Policy Loss"] == pytest.approx(0.0, abs=1e-5)  # minus the mean of normalised advantages


def test_ratio_moves_away_from_one_afterwards() -> None:
    ppo, policy = make_ppo(num_epoch=2, batch_size=256)

    stats = ppo.update(acted_rollout(policy, np.random.default_rng(2)), step=0)

    assert stats["Policy/Approximate KL"] > 1e-6


def test_targets_are_returns_and_normalised_advantages() -> None:
    ppo, policy = make_ppo(0, (2,), normalize=False, gamma=0.5, lambd=0.5)
    rollout = acted_rollout(
        policy,
        np.random.default_rng(3),
        steps=4,
        rewards=np.array([1.0, 2.0, 3.0, 4.0]),
        group_rewards=np.array([0.0, 0.0, 10.0, 0.0]),
        lengths=[2, 2],
        ending=[SegmentEnd.TERMINATED, SegmentEnd.TRUNCATED],
    )

    batch = ppo.prepare(rollout).batch

    v = batch.values.squeeze(1).tolist()
    behind = float(ppo.model.values(ppo.actor.encode(rollout.next_observations))[0][1])
    third = 4.0 + 0.5 * behind - v[3]  # truncated: the value behind it counts
    first = 2.0 - v[1]  # terminated: it doesn't
    advantages = [
        1.0 + 0.5 * v[1] - v[0] + 0.25 * first,
        first,
        13.0 + 0.5 * v[3] - v[2] + 0.25 * third,  # own and group reward
        third,
    ]
    assert (batch.returns - batch.values).squeeze(1).tolist() == pytest.approx(advantages, abs=1e-5)
    normalised = (np.array(advantages) - np.mean(advantages)) / np.std(advantages)
    np.testing.assert_allclose(batch.advantage.numpy(), normalised, rtol=1e-4)


def test_strength_scales_rewards() -> None:
    config = make_config()
    strong = config.model_copy(
        update={"reward_signals": config.reward_signals.model_validate({"extrinsic": {"strength": 3.0}})}
    )
    ppo = PPO(strong, make_spec(branches=(2,)), CPU, seed=1)
    policy = ActingPolicy(make_spec(branches=(2,)), NetworkSettings(hidden_units=32))
    policy.load(ppo.flat_weights())

    prepared = ppo.prepare(acted_rollout(policy, np.random.default_rng(1), steps=2, rewards=np.array([1.0, -2.0])))

    assert prepared.episodes.tolist() == [[3.0], [-6.0]]


def test_normalizer_merges_the_rollout_after_the_update() -> None:
    ppo, policy = make_ppo(num_epoch=1)
    rollout = acted_rollout(policy, np.random.default_rng(4))
    normalizer = ppo.actor.normalizer
    assert normalizer is not None

    batch = ppo.prepare(rollout).batch
    ppo.update(rollout, step=0)

    observations = torch.cat(rollout.observations, 1)
    torch.testing.assert_close(batch.encoded[0], observations.clamp(-5, 5))  # the statistics that acted: mean 0, std 1
    torch.testing.assert_close(normalizer.mean, observations.double().sum(0) / 257)  # 256 and the imagined one


def test_value_clip_acts_where_it_is_asked_for() -> None:
    free, _ = make_ppo(epsilon=0.01, num_epoch=8, learning_rate=0.01)
    clipped, policy = make_ppo(epsilon=0.01, num_epoch=8, learning_rate=0.01, clip_value_loss=True)
    rollout = acted_rollout(policy, np.random.default_rng(5), rewards=np.full(256, 100.0))

    before = free.prepare(rollout).batch.values
    moved = []
    for ppo in (free, clipped):
        ppo.actor.body.normalizer = None
        ppo.update(rollout, step=0)
        moved.append(float((ppo.prepare(rollout).batch.values - before).abs().mean()))

    # Once a value has left the range of 0.01, nothing pulls it any further; Adam's momentum still does a little.
    assert moved[1] < moved[0] / 3


def test_gradients_are_clipped_where_it_is_asked_for() -> None:
    free, policy = make_ppo()
    clipped, _ = make_ppo(max_grad_norm=1e-6)
    rollout = acted_rollout(policy, np.random.default_rng(5), rewards=np.full(256, 100.0))

    assert free.update(rollout, step=0)["Losses/Gradient Norm"] > 1.0
    clipped.update(rollout, step=0)

    # Adam divides by the gradient's size, except where its epsilon of 1e-8 is not small beside it.
    assert not np.array_equal(free.flat_weights(), clipped.flat_weights())
    assert float(clipped.optimizer.gradient.norm()) == pytest.approx(1e-6, rel=1e-3)


def test_a_remainder_is_left_out_and_a_small_rollout_is_one_minibatch() -> None:
    ppo, policy = make_ppo(batch_size=100)
    generator = torch.Generator().manual_seed(1)

    sizes = {}
    for steps in (256, 60):
        batch = ppo.prepare(acted_rollout(policy, np.random.default_rng(6), steps=steps)).batch
        sizes[steps] = [len(part.advantage) for part in batch.minibatches(100, generator)]

    assert sizes == {256: [100, 100], 60: [60]}


def test_minibatches_shuffle_steps_and_keep_rows_together() -> None:
    ppo, policy = make_ppo()
    batch = ppo.prepare(acted_rollout(policy, np.random.default_rng(7), masked=True)).batch

    parts = list(batch.minibatches(64, torch.Generator().manual_seed(1)))

    log_prob = torch.cat([part.log_prob for part in parts])
    assert not torch.equal(log_prob, batch.log_prob)
    order = [int((batch.log_prob == value).nonzero()[0]) for value in log_prob]
    assert sorted(order) == list(range(256))
    torch.testing.assert_close(torch.cat([part.encoded[0] for part in parts]), batch.encoded[0][order])


def test_masks_that_allow_everything_cost_nothing() -> None:
    ppo, policy = make_ppo(0, (3,))
    rng = np.random.default_rng(8)
    observations = [rng.normal(size=(9, 3)), rng.normal(size=(9, 2))]
    acted = policy.act([part.astype(np.float32) for part in observations], None, None, rng)

    prepared = ppo.prepare(
        make_rollout(
            observations=observations,
            rewards=np.zeros(9),
            discrete=acted.discrete,
            log_probs=acted.log_probs,
            masks=np.ones((9, 3), bool),
        )
    )

    assert prepared.batch.masks is None


def test_schedules_are_read_at_the_policys_step() -> None:
    ppo, policy = make_ppo(learning_rate=1e-3, learning_rate_schedule="linear", epsilon=0.3, beta=0.01, max_steps=1000)

    stats = ppo.update(acted_rollout(policy, np.random.default_rng(9)), step=500)

    assert stats["Policy/Learning Rate"] == pytest.approx(5e-4, rel=1e-6)
    assert stats["Policy/Epsilon"] == pytest.approx(0.2)  # half-way from 0.3 to its floor of 0.1
    assert stats["Policy/Beta"] == pytest.approx(0.005005)  # half-way from 0.01 to its floor of 1e-5


def test_entropy_is_reported_as_ml_agents_does() -> None:
    # Two columns with sigma 1: mean 0.5 ln(2 pi e) = 1.4189; one branch of 3 equally likely choices: ln 3 = 1.0986.
    ppo, policy = make_ppo(2, (3,), learning_rate=1e-9, num_epoch=1)
    with torch.no_grad():
        ppo.actor.head.weight.zero_()
    policy.load(ppo.flat_weights())

    stats = ppo.update(acted_rollout(policy, np.random.default_rng(10)), step=0)

    assert stats["Policy/Entropy"] == pytest.approx(1.4189 + 1.0986, abs=1e-3)
    assert stats["Policy/Continuous Entropy"] == pytest.approx(1.4189, abs=1e-3)
    assert stats["Policy/Branch 0 Entropy"] == pytest.approx(1.0986, abs=1e-3)


def test_policy_lag_counts_versions_behind() -> None:
    ppo, policy = make_ppo()
    train(ppo, policy, np.random.default_rng(11), updates=3)

    stats = ppo.update(acted_rollout(policy, np.random.default_rng(12), version=1), step=0)

    assert stats["Policy/Lag"] == 2.0  # version 3 is updated, version 1 acted
    assert ppo.version == 4


def test_metrics_have_ml_agents_names() -> None:
    ppo, policy = make_ppo(2, (3, 2))

    stats = ppo.update(acted_rollout(policy, np.random.default_rng(20)), step=0)

    assert set(stats) == {
        "Losses/Policy Loss",
        "Losses/Value Loss",
        "Policy/Entropy",
        "Policy/Continuous Entropy",
        "Policy/Branch 0 Entropy",
        "Policy/Branch 1 Entropy",
        "Policy/Learning Rate",
        "Policy/Epsilon",
        "Policy/Beta",
        "Policy/Extrinsic Value Estimate",
        "Policy/Approximate KL",
        "Policy/Clip Fraction",
        "Losses/Explained Variance",
        "Losses/Gradient Norm",
        "Policy/Lag",
    }


def poisoned(rollout: Rollout, column: str) -> Rollout:
    """The rollout with one value of a column made infinite."""
    tensor = getattr(rollout, column)
    (tensor[0] if isinstance(tensor, list) else tensor).view(-1)[5] = torch.inf
    return rollout


@pytest.mark.parametrize(
    ("column", "named"),
    [("observations", "observations"), ("rewards", "returns"), ("continuous", "continuous"), ("log_probs", "log-prob")],
)
def test_a_value_that_is_not_finite_is_named_and_the_update_taken_back(column: str, named: str) -> None:
    ppo, policy = make_ppo(normalize=False)
    train(ppo, policy, np.random.default_rng(13), updates=1)
    before = ppo.state_dict()

    with pytest.raises(Diverged, match="taken back") as diverged:
        ppo.update(poisoned(acted_rollout(policy, np.random.default_rng(14)), column), step=0)

    assert diverged.value.tensor == named
    after = ppo.state_dict()
    del before["generator"], after["generator"]  # the order of minibatches was drawn
    assert equal_states(before, after)


def test_an_exploding_loss_is_named_with_its_minibatch() -> None:
    ppo, policy = make_ppo(learning_rate=1.0)
    rollout = acted_rollout(policy, np.random.default_rng(15), rewards=np.full(256, 1e25))

    with pytest.raises(Diverged) as diverged:
        ppo.update(rollout, step=0)

    assert (diverged.value.tensor, diverged.value.minibatch) == ("value loss", 0)  # (1e25)^2 is past float32
    assert "value loss is not finite in minibatch 0" in str(diverged.value)


def test_learning_goes_on_after_an_update_was_taken_back() -> None:
    ppo, policy = make_ppo()
    with pytest.raises(Diverged):
        ppo.update(poisoned(acted_rollout(policy, np.random.default_rng(16)), "rewards"), step=0)

    stats = ppo.update(acted_rollout(policy, np.random.default_rng(17)), step=0)

    assert np.isfinite(stats["Losses/Value Loss"])
    assert ppo.version == 1


@pytest.mark.parametrize(("continuous", "branches"), SPACES)
def test_equal_seeds_give_equal_weights(continuous: int, branches: tuple[int, ...]) -> None:
    states = []
    for _ in range(2):
        ppo, policy = make_ppo(continuous, branches, num_epoch=1)
        train(ppo, policy, np.random.default_rng(18), updates=2)
        states.append(ppo.state_dict())

    assert equal_states(*states)


def test_another_seed_gives_other_weights() -> None:
    assert not np.array_equal(make_ppo(seed=1)[0].flat_weights(), make_ppo(seed=2)[0].flat_weights())


def test_training_goes_on_from_a_checkpoint_bit_for_bit(tmp_path: Any) -> None:
    through, policy = make_ppo()
    rng = np.random.default_rng(19)
    train(through, policy, rng, updates=4)

    first, policy = make_ppo()
    rng = np.random.default_rng(19)
    train(first, policy, rng, updates=2)
    checkpoint.save(tmp_path, {"ppo": first.state_dict(), "rng": rng.bit_generator.state})
    second, policy = make_ppo(seed=77)
    saved = checkpoint.load(tmp_path)
    second.load_state_dict(saved["ppo"])
    rng = np.random.default_rng()
    rng.bit_generator.state = saved["rng"]
    train(second, policy, rng, updates=2)

    assert equal_states(through.state_dict(), second.state_dict())


def test_flat_weights_are_as_long_as_the_layout_says() -> None:
    ppo, policy = make_ppo()

    assert ppo.flat_weights().shape == (policy.flat_size,)
    assert ppo.flat_weights().dtype == np.float32
