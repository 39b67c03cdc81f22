"""Whether an action changes what follows: told from steps of real games, whose actions count or are ignored."""

from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import pytest

from ludus.collector.segments import SegmentEnd
from ludus.play.checks.influence import NO_SCORE, Score
from ludus.play.checks.influence import scores as scores_of_steps
from ludus.protocol.spec import ActionSpec
from tests.toys.chase import Chase
from tests.worker.rollouts import make_rollout
from worker.experience.rollout import Rollout
from worker.trainer.health.evidence import steps_of

STEPS = 1024


def scores(rollout: Rollout, actions: ActionSpec) -> dict[str, float]:
    return scores_of_steps(steps_of(rollout), actions)


Act = Callable[[Any, np.random.Generator], tuple[int, float]]


def by_chance(observation: Any, rng: np.random.Generator) -> tuple[int, float]:
    del observation
    return int(rng.integers(2)), 0.5


def by_policy(observation: Any, rng: np.random.Generator) -> tuple[int, float]:
    right = 1 / (1 + np.exp(-4.0 * float(observation[2]) - float(observation[3])))
    choice = int(rng.random() < right)
    return choice, float(right if choice else 1 - right)


def play(env: gymnasium.Env[Any, Any], act: Act, *, ignores: bool) -> Rollout:
    """Play an environment with two choices; where it ignores them, it draws its own."""
    rng = np.random.default_rng(7)
    seen: list[Any] = []
    following, lengths, endings, rewards, choices, probabilities = [], [], [], [], [], []
    observation, _ = env.reset(seed=3)
    length = 0
    while len(seen) < STEPS or length:
        choice, probability = act(observation, rng)
        seen.append(observation)
        choices.append(choice)
        probabilities.append(probability)
        observation, reward, terminated, truncated, _ = env.step(int(rng.integers(2)) if ignores else choice)
        rewards.append(float(reward))
        length += 1
        if terminated or truncated or length == 64:
            following.append(observation)
            lengths.append(length)
            endings.append(SegmentEnd.TERMINATED if terminated else SegmentEnd.CUT)
            length = 0
            if terminated or truncated:
                observation, _ = env.reset()
    return make_rollout(
        observations=[np.array(seen)],
        next_observations=[np.array(following)],
        rewards=np.array(rewards),
        discrete=np.array(choices)[:, None],
        log_probs=np.log(probabilities)[:, None],
        lengths=lengths,
        ending=endings,
    )


@pytest.mark.parametrize("act", [by_chance, by_policy])
def test_the_actions_of_a_game_are_told_from_what_follows_them(act: Act) -> None:
    found = scores(play(gymnasium.make("CartPole-v1"), act, ignores=False), ActionSpec(0, (2,)))

    assert found["branch 0"] > 10 * NO_SCORE


@pytest.mark.parametrize("act", [by_chance, by_policy])
def test_ignored_actions_are_told_from_nothing_whatever_the_policy_sees(act: Act) -> None:
    found = scores(play(gymnasium.make("CartPole-v1"), act, ignores=True), ActionSpec(0, (2,)))

    assert found["branch 0"] < NO_SCORE


def test_the_ignored_part_of_an_action_is_told_from_the_part_that_counts() -> None:
    rng = np.random.default_rng(1)
    pushes, noise = rng.standard_normal((STEPS, 2)), rng.integers(3, size=STEPS)
    seen = np.cumsum(pushes[:, :1], 0)
    rollout = make_rollout(
        observations=[seen - pushes[:, :1]],
        next_observations=[seen[-1:]],
        rewards=np.zeros(STEPS),
        continuous=pushes,
        discrete=noise[:, None],
        log_probs=np.tile([-1.4, -1.4, -np.log(3)], (STEPS, 1)),
        lengths=[STEPS],
    )

    found = scores(rollout, ActionSpec(2, (3,)))

    assert found["continuous column 0"] > 5 * NO_SCORE
    assert max(found["continuous column 1"], found["branch 0"]) < NO_SCORE


def test_an_action_that_is_only_rewarded_counts() -> None:
    rng = np.random.default_rng(1)
    shown, choices = rng.integers(2, size=STEPS), rng.integers(2, size=STEPS)
    rollout = make_rollout(
        observations=[shown[:, None] * 2.0 - 1.0],
        next_observations=[rng.integers(2, size=(STEPS, 1)) * 2.0 - 1.0],
        rewards=(shown == choices).astype(float),
        discrete=choices[:, None],
        log_probs=np.full((STEPS, 1), np.log(0.5)),
    )

    assert scores(rollout, ActionSpec(0, (2,)))["branch 0"] > 10 * NO_SCORE


def test_an_action_that_counts_in_one_of_twenty_steps_is_seen_in_five_samples() -> None:
    rng = np.random.default_rng(1)
    score = Score()
    for _ in range(5):
        choices = rng.integers(2, size=STEPS)
        moved = (rng.random(STEPS) < 0.05) * (choices * 2.0 - 1.0)
        seen = np.cumsum(moved)[:, None]
        rollout = make_rollout(
            observations=[seen - moved[:, None]],
            next_observations=[seen[-1:]],
            rewards=np.zeros(STEPS),
            discrete=choices[:, None],
            log_probs=np.full((STEPS, 1), np.log(0.5)),
            lengths=[STEPS],
        )
        score.add(STEPS, scores(rollout, ActionSpec(0, (2,)))["branch 0"])

    assert score.joint > NO_SCORE


def test_a_branch_without_a_choice_has_no_score() -> None:
    rng = np.random.default_rng(1)
    rollout = make_rollout(
        observations=[rng.standard_normal((STEPS, 2))],
        rewards=rng.standard_normal(STEPS),
        discrete=np.zeros((STEPS, 1)),
        log_probs=np.zeros((STEPS, 1)),
        masks=np.tile([True, False], (STEPS, 1)),
    )

    assert scores(rollout, ActionSpec(0, (2,))) == {}


def test_a_policy_that_is_sure_of_its_choices_does_not_show_what_they_do() -> None:
    rng = np.random.default_rng(1)
    observations = rng.standard_normal((STEPS, 2))
    rollout = make_rollout(
        observations=[observations],
        rewards=rng.standard_normal(STEPS),
        discrete=(observations[:, :1] > 1.5) | (rng.random((STEPS, 1)) < 0.005),
        log_probs=np.full((STEPS, 1), np.log(0.995)),
    )

    assert scores(rollout, ActionSpec(0, (2,))) == {}


def test_pictures_show_what_an_action_does() -> None:
    rng = np.random.default_rng(1)
    choices = rng.integers(2, size=STEPS)
    pictures = np.zeros((STEPS + 1, 1, 16, 16), np.uint8)
    at = 8
    for step in range(STEPS):
        pictures[step, 0, :, at] = 255
        at = int(np.clip(at + choices[step] * 2 - 1, 0, 15))
    pictures[STEPS, 0, :, at] = 255
    rollout = make_rollout(
        observations=[pictures[:-1]],
        next_observations=[pictures[-1:]],
        rewards=np.zeros(STEPS),
        discrete=choices[:, None],
        log_probs=np.full((STEPS, 1), np.log(0.5)),
        lengths=[STEPS],
    )

    assert scores(rollout, ActionSpec(0, (2,)))["branch 0"] > NO_SCORE


def test_few_steps_say_nothing() -> None:
    rollout = play(Chase(), lambda _, rng: (int(rng.integers(3)), 1 / 3), ignores=False).beginning(100)

    assert scores(rollout, ActionSpec(0, (3,))) == {}
