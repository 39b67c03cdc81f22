"""PPO with several rewards, any network and an imitator: what is mixed, measured, and taken back together."""

from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from ludus.collector.segments import SegmentEnd
from ludus.config.behavior import PPOConfig
from ludus.protocol.spec import BehaviorSpec
from tests.ludus.demonstrations.shown import make_demonstration
from tests.worker.learning.rewards.test_signals import NAMES, SPECS, make_signals
from tests.worker.rollouts import equal_states, random_rollout
from worker.experience.demonstrations import DemonstrationBuffer
from worker.experience.rollout import Rollout
from worker.learning.algorithms.numeric_check import Diverged
from worker.learning.algorithms.ppo import PPO
from worker.learning.functional.returns import generalized_advantages

CPU = torch.device("cpu")
LENGTHS = [9, 16, 4, 11, 8]
MEMORY = {"memory_size": 6, "sequence_length": 4}


def make_ppo(
    names: tuple[str, ...] = NAMES,
    spec: BehaviorSpec = SPECS["everything"],
    *,
    memory: Any = None,
    seed: int = 1,
    **overrides: Any,
) -> PPO:
    hyper = {
        "batch_size": 16,
        "buffer_size": 48,
        "num_epoch": 1,
        "learning_rate": 1e-3,
        "learning_rate_schedule": "constant",
    }
    network = {"hidden_units": 16, "num_layers": 1, "vis_encode_type": "fully_connected", "memory": memory}
    config = PPOConfig.model_validate(
        {"trainer_type": "ppo", "hyperparameters": {**hyper, **overrides}, "network_settings": network}
    )
    return PPO(config, spec, CPU, seed, make_signals(names, spec, seed))


def make_steps(spec: BehaviorSpec = SPECS["everything"], seed: int = 1, **overrides: Any) -> Rollout:
    return random_rollout(spec, LENGTHS, np.random.default_rng(seed), memory_size=6, masked=True, **overrides)


@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS.keys())
def test_any_network_learns_from_any_signals(spec: BehaviorSpec) -> None:
    ppo = make_ppo(spec=spec, memory=MEMORY, shared_critic=True)
    before = ppo.flat_weights()

    stats = ppo.update(make_steps(spec), step=0)

    assert all(np.isfinite(value) for value in stats.values())
    assert not np.array_equal(ppo.flat_weights(), before)


def test_each_signal_has_its_own_returns_and_the_advantage_is_their_mean() -> None:
    endings = [SegmentEnd.TERMINATED, SegmentEnd.CUT, SegmentEnd.TRUNCATED, SegmentEnd.TERMINATED, SegmentEnd.CUT]
    ppo, rollout = make_ppo(), make_steps(ending=endings, sequences=[0, 0, 1, 2, 3])
    prepared = ppo.prepare(rollout)
    rewards = ppo.signals.evaluate(prepared.transitions)
    (_, bootstrap, _), _ = ppo.estimate(rollout, ppo.actor.encode(prepared.transitions.observations))

    # Two episodes begin, in rows 0 and 9: what curiosity and RND go on with where an episode terminated.
    beginning = (prepared.batch.values[0] + prepared.batch.values[9]) / 2
    alone = []
    for index, name in enumerate(NAMES):
        column, goes_on = slice(index, index + 1), name in {"curiosity", "rnd"}
        behind = bootstrap[:, column].clone()
        if goes_on:
            behind[[0, 3]] = beginning[column]
        alone.append(
            generalized_advantages(
                rewards[:, column],
                prepared.batch.values[:, column],
                behind,
                rollout.lengths,
                (rollout.endings == SegmentEnd.TERMINATED).unsqueeze(1) & (not goes_on),
                gamma=torch.tensor([0.9 + index / 100]),
                lambd=0.95,
            )
        )
    advantages = torch.cat(alone, 1)

    torch.testing.assert_close(prepared.batch.returns, advantages + prepared.batch.values)
    mean = advantages.mean(1)
    torch.testing.assert_close(prepared.batch.advantage, (mean - mean.mean()) / mean.std(correction=0))


def test_metrics_of_every_signal_have_ml_agents_names() -> None:
    ppo = make_ppo()
    rollout = make_steps(ending=SegmentEnd.TERMINATED)

    stats = ppo.update(rollout, step=0)

    titles = ("Extrinsic", "Curiosity", "Gail", "Gail 2", "Rnd")
    assert {f"Policy/{title} Value Estimate" for title in titles} <= set(stats)
    assert {f"Policy/{title} Reward" for title in titles[1:]} <= set(stats)
    assert "Policy/Extrinsic Reward" not in stats  # measured where episodes are played
    assert {
        "Losses/Curiosity Forward Loss",
        "Losses/Curiosity Inverse Loss",
        "Losses/RND Loss",
        "Losses/GAIL Loss",
        "Policy/GAIL Policy Estimate",
        "Policy/GAIL Expert Estimate",
        "Policy/GAIL Grad Mag Loss",
        "Policy/GAIL 2 Beta",
        "Losses/GAIL 2 KL Loss",
    } <= set(stats)


def test_reward_metrics_are_means_of_summed_rewards_of_finished_episodes() -> None:
    ppo = make_ppo(("extrinsic", "rnd"))
    endings = [SegmentEnd.TERMINATED, SegmentEnd.CUT, SegmentEnd.TRUNCATED, SegmentEnd.CUT, SegmentEnd.TERMINATED]
    first = make_steps(ending=endings)
    rewards = ppo.signals.evaluate(ppo.prepare(first).transitions)[:, 1].double()

    stats = ppo.update(first, step=0)

    sums = [float(part.sum()) for part in rewards.split(LENGTHS)]
    assert stats["Policy/Rnd Reward"] == pytest.approx((sums[0] + sums[2] + sums[4]) / 3)
    second = make_steps(seed=2, ending=SegmentEnd.TERMINATED, sequences=[0, 1, 0, 1, 0], episodes=[1, 0, 1, 0, 1])
    rewards = ppo.signals.evaluate(ppo.prepare(second).transitions)[:, 1].double()
    stats = ppo.update(second, step=0)
    sums = [
        float(part.sum()) + (sums[index] if index in {1, 3} else 0.0)
        for index, part in enumerate(rewards.split(LENGTHS))
    ]
    assert stats["Policy/Rnd Reward"] == pytest.approx(sum(sums) / 5)


def test_signals_learn_on_every_minibatch_of_every_epoch() -> None:
    ppo = make_ppo(num_epoch=2)

    ppo.update(make_steps(), step=0)

    # 48 steps are 3 minibatches of 16; 2 passes.
    state = ppo.state_dict()["signals"]
    assert [int(state[name]["optimizer"]["steps"]) for name in NAMES[1:]] == [6] * 4


def without_generators(state: dict[str, Any]) -> dict[str, Any]:
    """The state but for what was drawn."""
    return {
        key: without_generators(value) if isinstance(value, dict) else value
        for key, value in state.items()
        if key not in {"generator", "generators"}
    }


@pytest.mark.long
@pytest.mark.parametrize("name", ["gail_2", "rnd"])
def test_a_signal_that_breaks_takes_everything_back_and_is_named(name: str) -> None:
    ppo = make_ppo(batch_size=24)
    ppo.update(make_steps(), step=0)
    before = ppo.state_dict()
    signal: Any = next(item.signal for item in ppo.signals.named if item.name == name)
    learning_rate, signal.learning_rate = signal.learning_rate, 1e38

    with pytest.raises(Diverged) as diverged:
        ppo.update(make_steps(seed=2), step=0)

    named = {"gail_2": "GAIL 2", "rnd": "RND"}[name]
    assert named in diverged.value.tensor or diverged.value.tensor == f"weights of {name}"
    assert equal_states(without_generators(before), without_generators(ppo.state_dict()))
    signal.learning_rate = learning_rate
    assert ppo.update(make_steps(seed=3), step=0)["Losses/Value Loss"] > 0.0


@pytest.mark.long
def test_an_exploding_critic_is_named_with_both_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    ppo = make_ppo(("extrinsic",), critic_learning_rate=1.0, num_epoch=30)
    before = ppo.state_dict()
    rates = ppo.rates(0)._replace(critic_learning_rate=1e4)
    monkeypatch.setattr(ppo, "rates", lambda _: rates)

    with pytest.raises(Diverged, match=r"(value loss|gradient) exploded from .* to .* in minibatch \d+") as diverged:
        ppo.update(make_steps(), step=0)

    assert diverged.value.minibatch is not None
    assert equal_states(without_generators(before), without_generators(ppo.state_dict()))


def test_the_critic_may_have_a_learning_rate_of_its_own() -> None:
    ppo = make_ppo(("extrinsic",), learning_rate=1e-3, critic_learning_rate=1e-2, batch_size=48, num_epoch=1)
    before = {name: weight.detach().clone() for name, weight in ppo.model.named_parameters()}

    stats = ppo.update(make_steps(), step=0)

    # Adam's first step moves every weight that has a gradient by its learning rate (biases of keys have none).
    moved = {name: float((weight.detach() - before[name]).abs().max()) for name, weight in ppo.model.named_parameters()}
    assert {round(value, 5) for name, value in moved.items() if value > 1e-4 and name.startswith("actor.")} == {1e-3}
    assert {round(value, 5) for name, value in moved.items() if value > 1e-4 and name.startswith("critic.")} == {1e-2}
    assert stats["Policy/Learning Rate"] == 1e-3
    assert stats["Policy/Critic Learning Rate"] == 1e-2


def test_the_critics_learning_rate_follows_the_actors_schedule() -> None:
    ppo = make_ppo(("extrinsic",), critic_learning_rate=1e-2, learning_rate_schedule="linear")

    rates = ppo.rates(ppo.config.max_steps // 2)

    assert rates.learning_rate == pytest.approx(5e-4, rel=1e-3)
    assert rates.critic_learning_rate == pytest.approx(5e-3, rel=1e-3)
    assert "Policy/Critic Learning Rate" not in make_ppo(("extrinsic",)).update(make_steps(), step=0)


class Waits(TorchDispatchMode):
    """Counts what makes a GPU wait: a number is read, or the size of a result depends on values."""

    WAITING = ("aten::_local_scalar_dense", "aten::nonzero", "aten::masked_select", "aten::equal")

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += func.name() in self.WAITING
        return func(*args, **(kwargs or {}))


@pytest.mark.long
def test_no_minibatch_waits_for_the_device() -> None:
    counts = []
    for epochs in (1, 2):
        ppo, rollout = make_ppo(num_epoch=epochs, batch_size=48), make_steps()
        with Waits() as waits:
            ppo.update(rollout, step=0)
        counts.append(waits.count)

    assert counts[0] == counts[1]


def test_signals_that_learn_cannot_be_left_out() -> None:
    config = PPOConfig.model_validate({"reward_signals": {"extrinsic": {}, "rnd": {}}})

    with pytest.raises(ValueError, match="have to be built"):
        PPO(config, SPECS["everything"], CPU, 1)


def make_imitating(seed: int = 1, **section: Any) -> tuple[PPO, Rollout]:
    """PPO beside behavioral cloning, on vectors."""
    spec = SPECS["continuous vectors"]
    config = PPOConfig.model_validate(
        {
            "hyperparameters": {"batch_size": 16, "buffer_size": 48, "learning_rate": 1e-3},
            "network_settings": {"hidden_units": 16, "num_layers": 1},
            "behavioral_cloning": {"demo_path": "there", "batch_size": 16, **section},
        }
    )
    expert = DemonstrationBuffer([make_demonstration(spec, lengths=(32,))], spec)
    return PPO(config, spec, CPU, seed, None, expert), random_rollout(spec, LENGTHS, np.random.default_rng(1))


def test_cloning_has_its_turn_once_per_update() -> None:
    ppo, rollout = make_imitating(num_epoch=5)

    stats = ppo.update(rollout, step=0)

    assert stats["Losses/Pretraining Loss"] > 0.0
    # 32 shown steps are 2 minibatches of 16, in 5 passes.
    assert int(ppo.state_dict()["cloning"]["optimizer"]["steps"]) == 10


def test_cloning_is_taken_back_with_the_update_and_takes_it_back() -> None:
    ppo, rollout = make_imitating()
    ppo.update(rollout, step=0)
    before = ppo.state_dict()
    rollout.rewards[3] = torch.inf
    with pytest.raises(Diverged, match="returns is not finite"):
        ppo.update(rollout, step=0)
    assert equal_states(without_generators(before), without_generators(ppo.state_dict()))

    rollout.rewards[3] = 0.0
    ppo, rollout = make_imitating(strength=1e38)
    before = ppo.state_dict()
    with pytest.raises(Diverged, match="Pretraining Loss"):
        ppo.update(rollout, step=0)
    assert equal_states(without_generators(before), without_generators(ppo.state_dict()))
