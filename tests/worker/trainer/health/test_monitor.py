"""What a monitor concludes from what it is told: thresholds, blame, what is over, what a resumed run goes on with."""

import json
from collections.abc import Callable
from typing import Any

import numpy as np
from pydantic import TypeAdapter

from ludus.collector.segments import SegmentEnd
from ludus.config.behavior import BehaviorConfig
from ludus.config.trainer import ReinforcementConfig
from ludus.protocol.spec import BehaviorSpec
from server.ladders.refs import PlayedMatch
from tests.ludus.demonstrations.shown import make_demonstration
from tests.worker.rollouts import make_rollout, make_spec
from worker.experience.rollout import Rollout
from worker.trainer.health.monitor import MISSES, HealthMonitor, whole_lengths

CONFIG: TypeAdapter[ReinforcementConfig] = TypeAdapter(BehaviorConfig)
ROUND = 1000
HEALTHY = {
    "Policy/Entropy": 0.5,
    "Policy/Approximate KL": 0.01,
    "Losses/Explained Variance": 0.8,
    "Losses/Value Loss": 0.1,
}
PPO: dict[str, Any] = {"max_steps": 40_000, "summary_freq": 1000}


class Told:
    """A behavior with two choices, and what its monitor is told of each round of 1,000 steps."""

    def __init__(self, spec: BehaviorSpec | None = None, **config: Any) -> None:
        self.config = CONFIG.validate_python({**PPO, **config})
        self.spec = spec or make_spec(observations=(3,), branches=(2,))
        self.monitor = HealthMonitor(self.config, self.spec)
        self.rng = np.random.default_rng(1)
        self.step = 0

    def rollout(self, see: Callable[[np.ndarray], Any] | None = None, reward: float = 0.1) -> Rollout:
        """Return a round in which the choice moves the first number."""
        choices = self.rng.integers(2, size=ROUND)
        seen = self.rng.standard_normal((ROUND, 3))
        seen[1:, 0] += choices[:-1] * 2.0
        shown = [seen] if see is None else see(seen)
        ends = [*range(50, ROUND + 1, 50)]
        return make_rollout(
            observations=shown,
            next_observations=[part[[end - 1 for end in ends]] for part in shown],
            rewards=self.rng.standard_normal(ROUND) * reward,
            discrete=choices[:, None],
            log_probs=np.full((ROUND, 1), np.log(0.5)),
            lengths=[50] * len(ends),
            ending=SegmentEnd.TERMINATED,
            agents=[number % 4 for number in range(len(ends))],
        )

    def play(
        self,
        rounds: int = 1,
        *,
        returns: Callable[[int], float] | None = None,
        length: int = 50,
        see: Callable[[np.ndarray], Any] | None = None,
        reward: float = 0.1,
        **measured: float,
    ) -> None:
        """Play and learn; `returns` says what each of the 20 episodes of a round earned, by its number."""
        names = {"entropy": "Policy/Entropy", "kl": "Policy/Approximate KL", "explained": "Losses/Explained Variance"}
        changed = {names.get(key, key): value for key, value in measured.items()}
        for _ in range(rounds):
            self.step += ROUND
            for number in range(20 if returns is not None else 0):
                assert returns is not None
                self.monitor.evidence.episodes.add(returns(self.step + number), length + number % 3)
            rollout = self.rollout(see, reward)
            self.monitor.experienced(rollout, self.step)
            self.monitor.updated({**HEALTHY, **changed}, rollout)
            self.monitor.learned()

    @property
    def codes(self) -> list[str]:
        return [fact.code for fact in self.monitor.facts]

    @property
    def message(self) -> str:
        (fact,) = self.monitor.facts
        return fact.message


def rising(number: int) -> float:
    return number / 1000 + number % 7


def test_a_run_that_learns_has_no_finding() -> None:
    told = Told()

    told.play(40, returns=rising)
    told.monitor.conclude()

    assert told.codes == []


def test_a_solved_task_has_no_finding_whatever_its_critic_explains() -> None:
    told = Told()

    told.play(5, returns=lambda number: 20.0 + number % 11)
    told.play(35, returns=lambda _: 500.0, explained=-10.0, entropy=1e-9)
    told.monitor.conclude()

    assert told.codes == []


def test_a_task_that_was_solved_before_it_began_has_no_finding() -> None:
    told = Told(initialize_from="ckpt_" + "0" * 26)

    told.play(40, returns=lambda _: 500.0, explained=-10.0)
    told.monitor.conclude()

    assert told.codes == []


def test_a_rare_reward_that_was_not_found_yet_is_no_finding_early_in_a_run() -> None:
    told = Told(max_steps=1_000_000)

    told.play(60, returns=lambda _: 0.0, reward=0.0)
    assert told.codes == []

    told.monitor.conclude()
    assert told.codes == ["returns_constant"]


def test_equal_returns_of_episodes_of_different_length_teach_to_be_quick() -> None:
    told = Told()

    told.play(40, returns=lambda _: 1.0)  # of 50 to 52 decisions
    told.monitor.conclude()

    assert "returns_constant" not in told.codes


def test_a_finding_is_over_after_some_reviews_without_it() -> None:
    told = Told()
    told.play(12)
    told.play(12)
    assert told.codes == ["no_episode_ended"]
    assert told.monitor.facts[0].since == 0

    told.play(MISSES - 1, returns=rising)
    assert told.codes == ["no_episode_ended"]
    told.play(1, returns=rising)
    assert told.codes == []


def test_episodes_that_ended_in_a_round_of_the_whole_run_are_seen() -> None:
    told = Told(hyperparameters={"buffer_size": 50_000})

    for number in range(100):
        told.monitor.evidence.episodes.add(rising(number), 50)
    told.monitor.experienced(told.rollout(), 40_000)
    told.monitor.conclude()

    assert told.codes == ["no_update"]


def test_a_mask_that_leaves_no_choice_is_to_blame_for_a_policy_that_does_not_change() -> None:
    told = Told()

    for _ in range(20):
        told.step += ROUND
        rollout = make_rollout(
            observations=[told.rng.standard_normal((ROUND, 3))],
            rewards=told.rng.standard_normal(ROUND),
            discrete=np.zeros((ROUND, 1)),
            log_probs=np.zeros((ROUND, 1)),
            masks=np.tile([True, False], (ROUND, 1)),
            lengths=[50] * 20,
        )
        told.monitor.evidence.episodes.add(told.rng.standard_normal(), 50)
        told.monitor.experienced(rollout, told.step)
        told.monitor.updated({**HEALTHY, "Policy/Approximate KL": 0.0}, rollout)
        told.monitor.learned()

    assert told.codes == ["no_choice"]
    assert "in all 20,000 steps" in told.message


def test_a_resumed_run_goes_on_with_its_findings_and_their_beginning() -> None:
    first, second = Told(), Told()
    first.play(30, returns=lambda _: 0.0, reward=0.0)
    second.monitor.load_state_dict(first.monitor.state_dict())
    second.step, second.rng = first.step, first.rng

    assert second.monitor.facts == first.monitor.facts
    second.play(returns=lambda _: 0.0, reward=0.0)
    (before,), (after,) = first.monitor.facts, second.monitor.facts
    assert (after.code, after.since) == ("returns_constant", before.since)
    assert after.message == "All 620 episodes had a return of exactly 0."
    json.dumps(after.figures)


def test_a_changed_configuration_is_looked_at_anew() -> None:
    told = Told(summary_freq=50_000)
    assert told.codes == ["no_summary"]

    told.monitor.reconfigure(CONFIG.validate_python(PPO))
    told.play(MISSES, returns=rising)

    assert told.codes == []


# learning ---------------------------------------------------------------------------------------------------------


def test_an_entropy_that_is_gone_before_anything_was_learned_is_found() -> None:
    told = Told()

    told.play(12, returns=lambda number: float(number % 5), entropy=1e-9)

    assert told.codes == ["entropy_collapsed"]
    assert told.monitor.facts[0].since == 1000
    assert "Raise hyperparameters.beta (0.005)" in told.monitor.facts[0].remedy


def test_an_update_that_went_too_far_is_to_blame_for_the_entropy_that_is_gone_since() -> None:
    told = Told(hyperparameters={"learning_rate": 0.5})

    told.play(1, returns=lambda number: float(number % 5), kl=35.0)
    told.play(30, returns=lambda number: float(number % 5), entropy=1e-9)
    told.monitor.conclude()

    assert told.codes == ["kl_exploded"]
    assert "Since step 2,000 it hardly explores" in told.message
    assert "learning_rate (0.5)" in told.monitor.facts[0].remedy


def test_an_update_that_went_too_far_is_over_after_ten_that_did_not() -> None:
    told = Told()

    told.play(1, returns=rising, kl=3.0)
    assert told.codes == ["kl_exploded"]
    told.play(10 + MISSES, returns=rising)

    assert told.codes == []


def test_a_large_beta_is_to_blame_for_an_entropy_that_stays_at_its_maximum() -> None:
    told = Told(hyperparameters={"beta": 1.0})

    told.play(30, returns=lambda number: float(number % 5), entropy=0.692)

    assert told.codes == ["entropy_bonus_large"]


def test_returns_that_have_not_risen_are_found_where_nothing_says_why() -> None:
    told = Told()

    told.play(19, returns=lambda number: float(number % 5))
    assert told.codes == []
    told.play(1, returns=lambda number: float(number % 5))

    assert told.codes == ["plateau"]


def test_a_reward_that_hardly_any_episode_has_is_counted() -> None:
    told = Told()

    told.play(20, returns=lambda number: float(number % 5000 == 7))

    assert told.codes == ["plateau"]
    assert told.message == "Nothing was learned: only 4 of 400 episodes had a return other than 0."


def test_returns_are_not_compared_while_lessons_change_the_game() -> None:
    told = Told()
    told.monitor = HealthMonitor(told.config, told.spec, has_lessons=True)

    told.play(40, returns=lambda number: float(number % 5))

    assert told.codes == []


# imitation --------------------------------------------------------------------------------------------------------


def gail(**more: Any) -> dict[str, Any]:
    signal = {"demonstrations": ["dem_" + "0" * 26], **more}
    return {"reward_signals": {"extrinsic": {}, "gail": signal}}


def test_gail_on_episodes_of_different_length_is_found_unless_it_imitates_all_the_same() -> None:
    failing, imitating, ignoring = Told(**gail()), Told(**gail()), Told(**gail(ignore_done=True))

    failing.play(30, returns=lambda number: float(number % 5))
    imitating.play(30, returns=rising)
    ignoring.play(30, returns=rising)

    assert failing.codes == ["gail_variable_horizon"]
    assert (imitating.codes, ignoring.codes) == ([], [])


def test_demonstrations_of_another_length_than_the_games_episodes_count_too() -> None:
    told = Told(**gail())
    told.monitor.demonstrated(np.array([10, 10]))

    told.play(30, returns=lambda number: float(number % 5))

    assert "(10 to 52 decisions" in told.message


def test_parts_of_demonstrated_episodes_say_nothing_of_their_length() -> None:
    stopped_in_its_second = make_demonstration(make_spec(branches=(2,)), (10, 7), "ec")

    assert whole_lengths(stopped_in_its_second).tolist() == [10]


def test_a_discriminator_that_is_always_right_is_found() -> None:
    told = Told(**gail(ignore_done=True))
    estimates = {"Policy/GAIL Policy Estimate": 0.001, "Policy/GAIL Expert Estimate": 0.999}

    told.play(30, returns=lambda number: float(number % 5), **estimates)

    assert told.codes == ["gail_discriminator_certain"]


# matches ----------------------------------------------------------------------------------------------------------


def match(outcome: Any, *, truncated: bool = False, rated: bool = True) -> PlayedMatch:
    return PlayedMatch(1, "Walker", 0, 0.0, 0, (), outcome, truncated, rated, 1200.0)


def test_matches_that_are_all_drawn_by_a_time_limit_say_why_none_is_rated() -> None:
    told = Told(self_play={})
    for _ in range(60):
        told.monitor.evidence.matches.add(match("draw", truncated=True, rated=False))

    told.play(10, returns=lambda _: 0.0, reward=0.0)

    assert told.codes == ["matches_drawn"]
    assert told.message.startswith("All 60 matches were drawn. A time limit ended all of them, and self_play.inter")


def test_matches_that_both_sides_win_are_found() -> None:
    told, fair = Told(self_play={}), Told(self_play={})
    for number in range(100):
        told.monitor.evidence.matches.add(match("win"))
        fair.monitor.evidence.matches.add(match("win" if number % 10 else "loss"))
    told.monitor.evidence.matches.opponents, told.monitor.evidence.matches.opponents_won = 100, 95
    fair.monitor.evidence.matches.opponents, fair.monitor.evidence.matches.opponents_won = 100, 10

    told.play(10, returns=rising)
    fair.play(10, returns=rising)

    assert told.codes == ["both_teams_win"]
    assert fair.codes == []


def test_steps_that_are_too_old_are_named_at_once_with_the_limit_and_what_to_raise() -> None:
    told = Told(hyperparameters={"max_policy_lag": 2}, summary_freq=20_000, max_steps=400_000)
    told.play(10, returns=rising, **{"Policy/Stale Share": 0.0})
    assert told.codes == []

    told.play(1, returns=rising, **{"Policy/Stale Share": 0.5})

    assert told.codes == ["steps_stale"]
    assert told.message.startswith("10% of the newest steps were not learned from")
    assert "more than max_policy_lag (2) versions old" in told.message
    assert told.monitor.facts[0].remedy == "Raise hyperparameters.max_policy_lag to 5, and set vtrace: true."


def test_a_run_in_which_every_step_is_too_old_says_so_and_what_to_do() -> None:
    told = Told(hyperparameters={"max_policy_lag": 1})
    dropped = {"Policy/Stale Share": 1.0, "Policy/Lag": 3.0}

    for _ in range(5):
        told.step += ROUND
        rollout = told.rollout()
        told.monitor.experienced(rollout, told.step)
        told.monitor.updated(dropped, rollout)
        told.monitor.learned()

    assert told.codes == ["steps_stale"]
    assert told.message.startswith("Nothing of the newest 5 rounds was learned from")
    assert told.monitor.facts[0].remedy.startswith("Raise hyperparameters.max_policy_lag to 3")
    assert told.monitor.evidence.updates.count == 0, "none of them was an update"


def test_steps_that_come_in_time_again_are_no_finding_any_more() -> None:
    told = Told(hyperparameters={"max_policy_lag": 2})
    told.play(2, returns=rising, **{"Policy/Stale Share": 0.5})
    assert told.codes == ["steps_stale"]

    told.play(25, returns=rising, **{"Policy/Stale Share": 0.0})

    assert told.codes == []


def test_collectors_that_act_with_another_policy_are_named_at_once_and_rounding_is_no_finding() -> None:
    told = Told(summary_freq=20_000, max_steps=400_000)
    told.play(10, returns=rising, **{"Policy/Acting KL": 1e-6})
    assert told.codes == []

    told.play(1, returns=rising, **{"Policy/Acting KL": 0.1})

    assert told.codes == ["actors_disagree"]
    assert "is 0.02 nats, where rounding costs less than 1e-6" in told.message


def test_the_rounding_of_huge_observations_is_blamed_on_the_observations() -> None:
    told = Told()

    told.play(3, returns=rising, see=lambda seen: [seen * 1e6], **{"Policy/Acting KL": 0.1})

    assert told.codes == ["observation_scale"]
