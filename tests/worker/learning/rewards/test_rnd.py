"""RND pays for what is new, and less each time."""

import pytest
import torch

from ludus.config.rewards import RNDConfig
from ludus.protocol.spec import BehaviorSpec
from tests.worker.learning.rewards.steps import CPU, normals, random_transitions, single_steps
from tests.worker.rollouts import make_spec
from worker.learning.rewards.rnd import RNDReward

SPEC = make_spec(observations=(3,), branches=(2,))


def make_rnd(spec: BehaviorSpec = SPEC, *, learning_rate: float = 1e-3, seed: int = 1, **network: object) -> RNDReward:
    settings = {"hidden_units": 32, "num_layers": 1, "vis_encode_type": "fully_connected", **network}
    config = RNDConfig.model_validate({"learning_rate": learning_rate, "network_settings": settings})
    return RNDReward(config, spec, CPU, torch.Generator().manual_seed(seed))


def test_reward_is_the_squared_distance_of_both_networks_features() -> None:
    rnd = make_rnd()
    observations = normals(5, 3)

    rewards = rnd.evaluate(single_steps(observations))

    networks = rnd.network
    expected = (networks.predictor([observations])[0] - networks.target([observations])[0]).square().sum(1)
    torch.testing.assert_close(rewards, expected.detach())
    assert float(rewards.min()) > 0.0


def test_reward_falls_with_visits_and_stays_where_nobody_was() -> None:
    rnd = make_rnd(learning_rate=1e-2)
    known, unknown = single_steps(normals(64, 3, mean=2.0)), single_steps(normals(64, 3, mean=-2.0, seed=2))
    before = float(rnd.evaluate(known).mean()), float(rnd.evaluate(unknown).mean())

    means = []
    for _ in range(4):
        for _ in range(50):
            rnd.update(known)
        means.append(float(rnd.evaluate(known).mean()))

    assert before[0] > means[0] > means[1] > means[2] > means[3]
    assert means[3] < before[0] / 10
    assert float(rnd.evaluate(unknown).mean()) > before[1] / 4


def test_the_target_never_changes() -> None:
    rnd = make_rnd()
    before = [weight.clone() for weight in rnd.network.target.parameters()]

    rnd.update(single_steps(normals(64, 3)))

    for weight, old in zip(rnd.network.target.parameters(), before, strict=True):
        assert torch.equal(weight, old)


def test_the_loss_is_the_mean_reward_of_before() -> None:
    rnd = make_rnd()
    steps = single_steps(normals(64, 3))
    mean = float(rnd.evaluate(steps).mean())

    assert {name: float(value) for name, value in rnd.update(steps).items()} == {
        "Losses/RND Loss": pytest.approx(mean, rel=1e-5)
    }


def test_evaluating_changes_nothing_and_updates_merge_the_statistics() -> None:
    rnd = make_rnd(normalize=True)
    observations = normals(64, 3, mean=5.0)
    steps = single_steps(observations)
    normalizer = rnd.network.target.normalizer
    assert normalizer is not None

    assert torch.equal(rnd.evaluate(steps), rnd.evaluate(steps))
    assert float(normalizer.count) == 1.0
    rnd.update(steps)

    torch.testing.assert_close(normalizer.mean, observations.double().sum(0) / 65)  # 64 and the imagined one


def test_many_steps_are_evaluated_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = make_spec(observations=(3, (1, 8, 8)), branches=(2,))
    rnd = make_rnd(spec)
    steps = random_transitions(spec)
    whole = rnd.evaluate(steps)
    monkeypatch.setattr(type(rnd.network.target), "rows_at_once", 7)

    torch.testing.assert_close(rnd.evaluate(steps), whole)
