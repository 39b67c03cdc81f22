"""Off-policy learners that are cut anywhere go on bit for bit: while the replay buffer fills, too, and whatever is
published to collectors then.

Rounds are played by the weights that a learner publishes: at its start, and with each new version.
"""

import copy
from typing import Any

import numpy as np
import pytest

from ludus.protocol.batches import Array
from ludus.protocol.spec import BehaviorSpec
from tests.worker.learning.algorithms.off_policy_world import make_dqn
from tests.worker.learning.algorithms.test_resets import CONTINUOUS, DISCRETE, TRAINERS
from tests.worker.rollouts import equal_states
from tests.worker.trainer.made_up_experience import make_round
from worker.learning.algorithms.numeric_check import Diverged
from worker.learning.algorithms.off_policy import OffPolicyAlgorithm

FILLING, ROUND, ROUNDS = 120, 48, 5
"""Steps until the first gradient step, which is in round 2; steps and number of rounds."""
CURIOUS = {"signals": {"extrinsic": {"gamma": 0.9}, "curiosity": {"gamma": 0.9}}}
RATES: dict[str, dict[str, Any]] = {
    "each round": {},
    "signals alone at first": {**CURIOUS, "steps_per_update": 50.0, "reward_signal_steps_per_update": 10.0},
}


def make(name: str, seed: int, **options: Any) -> OffPolicyAlgorithm:
    maker, spec = TRAINERS[name]
    return maker(spec, seed=seed, save_replay_buffer=True, buffer_init_steps=FILLING, **options)


def play(
    algorithm: OffPolicyAlgorithm, spec: BehaviorSpec, rounds: range, published: Array | None = None
) -> tuple[list[object], Array]:
    """Play rounds and learn from them; return what was measured, and the weights that were published last."""
    config = algorithm.config.model_copy(update={"time_horizon": ROUND // 12})  # 12 segments
    weights = algorithm.flat_weights() if published is None else published
    measured: list[object] = []
    for number in rounds:
        rollout = make_round(config, spec, algorithm, seed=3, number=number, weights=weights)
        assert rollout.steps == ROUND
        version = algorithm.version
        measured.append(algorithm.update(rollout, ROUND * (number + 1)))
        if algorithm.version > version:
            weights = algorithm.flat_weights()
    return measured, weights


@pytest.mark.parametrize("cut", [1, *(pytest.param(cut, marks=pytest.mark.long) for cut in (2, 3, 4))])
@pytest.mark.parametrize(
    "normalize", [pytest.param(False, id="raw", marks=pytest.mark.long), pytest.param(True, id="normalized")]
)
@pytest.mark.parametrize("name", TRAINERS)
def test_a_learner_that_is_cut_in_any_round_goes_on_bit_for_bit(name: str, normalize: bool, cut: int) -> None:
    whole, first, resumed = (make(name, seed, network={"normalize": normalize}) for seed in (1, 1, 2))
    spec = TRAINERS[name][1]

    uncut, _ = play(whole, spec, range(ROUNDS))
    before, _ = play(first, spec, range(cut))
    resumed.load_state_dict(copy.deepcopy(first.state_dict()))
    after, _ = play(resumed, spec, range(cut, ROUNDS))

    assert [measured is None for measured in uncut] == [True, True, False, False, False]
    assert before + after == uncut
    assert equal_states(whole.state_dict(), resumed.state_dict())


@pytest.mark.parametrize("rates", RATES)
@pytest.mark.parametrize("name", TRAINERS)
def test_the_weights_of_collectors_change_with_the_version_alone(name: str, rates: str) -> None:
    algorithm, spec = make(name, 1, network={"normalize": True}, **RATES[rates]), TRAINERS[name][1]
    weights, versions = algorithm.flat_weights(), [0]

    for number in range(ROUNDS):
        play(algorithm, spec, range(number, number + 1), weights)
        changed = not np.array_equal(algorithm.flat_weights(), weights)
        versions.append(algorithm.version)
        assert changed == (versions[-1] > versions[-2])
        weights = algorithm.flat_weights()

    assert 0 < versions[-1] < ROUNDS


def test_an_update_that_is_taken_back_leaves_the_statistics_of_collectors_and_the_next_one_has_its_round() -> None:
    algorithm = make_dqn(DISCRETE, network={"normalize": True})
    _, weights = play(algorithm, DISCRETE, range(2))
    rollout = make_round(algorithm.config, DISCRETE, algorithm, seed=3, number=2, weights=weights)
    rollout.rewards.fill_(3e38)

    with pytest.raises(Diverged):
        algorithm.update(rollout, 3 * ROUND)

    assert np.array_equal(algorithm.flat_weights(), weights)
    assert algorithm.actor.normalizer is not None
    assert algorithm.experience.statistics is not None
    assert float(algorithm.experience.statistics.count) == 1 + 2 * ROUND + rollout.steps
    assert float(algorithm.actor.normalizer.count) == 1 + 2 * ROUND


def test_a_checkpoint_of_an_earlier_release_goes_on_with_the_statistics_of_its_actor() -> None:
    algorithm, resumed = (make("sac", seed, network={"normalize": True}) for seed in (1, 2))
    play(algorithm, CONTINUOUS, range(3))
    state = copy.deepcopy(algorithm.state_dict())
    del state["statistics"]

    resumed.load_state_dict(state)

    assert equal_states(algorithm.state_dict(), resumed.state_dict())
