"""Resets of networks (`reset_interval`): what begins anew, what stays, and when; for every off-policy trainer."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from ludus.protocol.spec import BehaviorSpec
from tests.worker.learning.algorithms.off_policy_world import (
    make_crossq,
    make_dqn,
    make_recurrent_dqn,
    make_sac,
    make_td3,
    make_tqc,
    random_round,
)
from tests.worker.rollouts import equal_states, make_spec
from worker.learning.algorithms.off_policy import OffPolicyAlgorithm

CONTINUOUS, DISCRETE = make_spec(observations=(3,), continuous=2), make_spec(observations=(3,), branches=(3, 2))
Make = Callable[..., OffPolicyAlgorithm]
TRAINERS: dict[str, tuple[Make, BehaviorSpec]] = {
    "sac": (make_sac, CONTINUOUS),
    "sac with pictures": (make_sac, make_spec(observations=(3, (1, 20, 20)), continuous=2)),
    "dqn": (make_dqn, DISCRETE),
    "dqn with a memory": (make_recurrent_dqn, DISCRETE),
    "td3": (make_td3, CONTINUOUS),
    "tqc": (make_tqc, CONTINUOUS),
    "crossq": (make_crossq, CONTINUOUS),
}
"""Rounds have 16 steps and four gradient steps."""


def learn(algorithm: OffPolicyAlgorithm, spec: BehaviorSpec, rounds: range) -> None:
    for number in rounds:
        memory_size = algorithm.actor.memory_size
        rollout = random_round(spec, np.random.default_rng(number), episodes=[number] * 3, memory_size=memory_size)
        algorithm.update(rollout, 16 * (number + 1))


def parameters(algorithm: OffPolicyAlgorithm) -> list[torch.Tensor]:
    """Copies of all parameters, those of targets included."""
    return [parameter.clone() for parameter, _ in algorithm.initial_parameters()]


def moments(algorithm: OffPolicyAlgorithm) -> float:
    states = [optimizer.state_dict() for optimizer in algorithm._optimizers]
    return sum(
        float(part.abs().sum()) for state in states for name in ("first", "second") for part in state[name].values()
    )


@pytest.mark.parametrize("name", TRAINERS)
def test_a_reset_draws_every_network_anew_and_forgets_the_moments(name: str) -> None:
    make, spec = TRAINERS[name]
    algorithm = make(spec, network={"normalize": True})
    learn(algorithm, spec, range(3))
    assert moments(algorithm) > 0.0
    kept = [part.clone() for part in (algorithm.actor.normalizer or torch.nn.Module()).state_dict().values()]
    state = algorithm.generator.get_state()  # type: ignore[attr-defined]
    expected = [initial.clone() for _, initial in algorithm.initial_parameters()]
    algorithm.generator.set_state(state)  # type: ignore[attr-defined]

    algorithm.reset()

    found = parameters(algorithm)
    assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))
    assert moments(algorithm) == 0.0
    assert len(algorithm.experience.replay) == 48
    assert kept
    assert all(map(torch.equal, kept, algorithm.actor.normalizer.state_dict().values()))


@pytest.mark.parametrize("name", TRAINERS)
def test_networks_begin_anew_after_so_many_gradient_steps(name: str) -> None:
    make, spec = TRAINERS[name]
    algorithm, never = make(spec, reset_interval=8), make(spec)
    resets: list[int] = []
    reset = algorithm.reset
    algorithm.reset = lambda: (resets.append(algorithm.experience.updates), reset())[1]  # type: ignore[method-assign]

    learn(algorithm, spec, range(2))
    learn(never, spec, range(2))

    assert resets == []
    assert equal_states(algorithm.state_dict(), never.state_dict()), "until then nothing is different"
    learn(algorithm, spec, range(2, 7))
    assert resets == [8, 16, 24], "before the gradient step behind each eighth one"


@pytest.mark.parametrize("name", TRAINERS)
def test_a_learner_resumed_before_a_reset_goes_on_bit_for_bit(name: str) -> None:
    make, spec = TRAINERS[name]
    options: dict[str, Any] = {"reset_interval": 10, "save_replay_buffer": True}
    algorithm, resumed = make(spec, seed=1, **options), make(spec, seed=2, **options)
    learn(algorithm, spec, range(2))

    resumed.load_state_dict(algorithm.state_dict())
    for learner in (algorithm, resumed):
        learn(learner, spec, range(2, 4))

    assert equal_states(algorithm.state_dict(), resumed.state_dict())


def test_more_gradient_steps_than_steps_count_resets_by_gradient_steps() -> None:
    sac = make_sac(CONTINUOUS, steps_per_update=0.5, reset_interval=64)
    resets: list[int] = []
    reset = sac.reset
    sac.reset = lambda: (resets.append(1), reset())[1]  # type: ignore[method-assign]

    learn(sac, CONTINUOUS, range(5))  # 32 gradient steps each

    assert sac.experience.updates == 160
    assert len(resets) == 2, "before the 65th and the 129th"
