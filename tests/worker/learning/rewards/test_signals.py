"""Signals mixed freely: one axis, one state, one way back."""

import itertools
from contextlib import suppress
from typing import Any

import pytest
import torch

from ludus.config.rewards import CuriosityConfig, GAILConfig, RewardSignals, RNDConfig
from ludus.protocol.spec import BehaviorSpec
from tests.worker.learning.rewards.steps import CPU, Expert, random_transitions
from tests.worker.rollouts import equal_states, make_spec
from worker.learning.algorithms.numeric_check import Diverged
from worker.learning.algorithms.training_state import TrainingState
from worker.learning.rewards.curiosity import CuriosityReward
from worker.learning.rewards.gail import GAILReward
from worker.learning.rewards.rnd import RNDReward
from worker.learning.rewards.signal import RewardSignal
from worker.learning.rewards.signals import ExtrinsicReward, NamedSignal, SignalSet, extrinsic_alone, title

NETWORK = {"hidden_units": 16, "num_layers": 1, "vis_encode_type": "fully_connected", "normalize": True}
SPECS = {
    "continuous vectors": make_spec(observations=(3, 2), continuous=2),
    "discrete pictures": make_spec(observations=((1, 8, 8),), branches=(3, 2)),
    "everything": make_spec(observations=(3, (1, 8, 8), (4, 2)), continuous=1, branches=(2,)),
}
NAMES = ("extrinsic", "curiosity", "gail", "gail_2", "rnd")


def make_signal(name: str, spec: BehaviorSpec, generator: torch.Generator, strength: float) -> RewardSignal:
    config: dict[str, Any] = {"strength": strength, "learning_rate": 1e-3, "network_settings": NETWORK}
    gail = {**config, "demo_path": "there", "use_actions": True, "use_vail": name == "gail_2"}
    match name:
        case "extrinsic":
            return ExtrinsicReward()
        case "curiosity":
            return CuriosityReward(CuriosityConfig.model_validate(config), spec, CPU, generator)
        case "rnd":
            return RNDReward(RNDConfig.model_validate(config), spec, CPU, generator)
        case _:
            expert = Expert(random_transitions(spec, seed=77))
            return GAILReward(GAILConfig.model_validate(gail), spec, CPU, generator, expert, name)


def make_signals(names: tuple[str, ...], spec: BehaviorSpec, seed: int = 1) -> SignalSet:
    generator = torch.Generator().manual_seed(seed)
    strengths = {name: 0.5 + index for index, name in enumerate(NAMES)}
    return SignalSet(
        [
            NamedSignal(name, strengths[name], 0.9 + index / 100, make_signal(name, spec, generator, strengths[name]))
            for index, name in enumerate(names)
        ],
        CPU,
    )


@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS.keys())
def test_every_signal_is_a_column_times_its_strength(spec: BehaviorSpec) -> None:
    signals = make_signals(NAMES, spec)
    steps = random_transitions(spec)
    signals.update(steps)

    rewards = signals.evaluate(steps)

    assert rewards.shape == (64, 5)
    assert signals.names == NAMES
    for index, item in enumerate(signals.named):
        torch.testing.assert_close(rewards[:, index], item.signal.evaluate(steps) * (0.5 + index))
    torch.testing.assert_close(rewards[:, 0], (steps.rewards + steps.group_rewards) * 0.5)
    assert signals.gamma.tolist() == pytest.approx([0.90, 0.91, 0.92, 0.93, 0.94])
    assert signals.ignores_termination.tolist() == [False, True, False, False, True]


@pytest.mark.parametrize(
    "names", [subset for size in (1, 2, 3) for subset in itertools.combinations(NAMES, size)], ids="-".join
)
def test_any_mixture_learns_a_step(names: tuple[str, ...]) -> None:
    spec = SPECS["everything"]
    signals = make_signals(names, spec)
    steps = random_transitions(spec)

    measured = signals.update(steps.select(torch.arange(10)))

    assert signals.learns == (names != ("extrinsic",))
    assert all(bool(value.isfinite()) for value in measured.values())
    assert bool(measured) == signals.learns
    assert bool(signals.is_finite())
    assert bool(signals.evaluate(steps).isfinite().all())


def test_a_state_is_a_copy() -> None:
    signals = make_signals(NAMES, SPECS["everything"])
    before = signals.state_dict()
    state = signals.state_dict()

    signals.update(random_transitions(SPECS["everything"]))

    assert equal_states(before, state)
    assert not equal_states(before, signals.state_dict())


def test_an_update_can_be_taken_back() -> None:
    signals = make_signals(NAMES, SPECS["everything"])
    steps = random_transitions(SPECS["everything"])
    signals.update(steps)
    rewards = signals.evaluate(steps)

    with suppress(Diverged), TrainingState({}, signals.changed).undone_if_diverged():
        signals.update(steps)
        assert not torch.equal(signals.evaluate(steps), rewards)
        raise Diverged("gradient")

    assert torch.equal(signals.evaluate(steps), rewards)


@pytest.mark.parametrize("name", NAMES[1:])
def test_a_spoiled_signal_is_named(name: str) -> None:
    signals = make_signals(NAMES, SPECS["continuous vectors"])
    assert signals.invalid_signal() is None
    invalid_signal: Any = next(item.signal for item in signals.named if item.name == name)
    with torch.no_grad():
        invalid_signal.optimizer.parameters[0].view(-1)[0] = torch.nan

    assert not bool(signals.is_finite())
    assert signals.invalid_signal() == name


def test_extrinsic_alone_is_the_games_rewards() -> None:
    signals = extrinsic_alone(RewardSignals.model_validate({"extrinsic": {"gamma": 0.8, "strength": 2.0}}), CPU)
    steps = random_transitions(SPECS["continuous vectors"])

    assert signals.names == ("extrinsic",)
    assert signals.gamma.tolist() == pytest.approx([0.8])
    torch.testing.assert_close(signals.evaluate(steps)[:, 0], 2.0 * (steps.rewards + steps.group_rewards))


def test_extrinsic_alone_refuses_to_leave_signals_out() -> None:
    with pytest.raises(ValueError, match="have to be built"):
        extrinsic_alone(RewardSignals.model_validate({"extrinsic": {}, "rnd": {}}), CPU)


def test_metrics_call_signals_as_ml_agents_does() -> None:
    assert [title(name) for name in NAMES] == ["Extrinsic", "Curiosity", "Gail", "Gail 2", "Rnd"]
