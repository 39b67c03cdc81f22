"""Reward signals: their order, their number, and their mistakes."""

from typing import Any

import pytest

from ludus.config.rewards import ExtrinsicConfig, GAILConfig, RewardSignals
from tests.server.config.checks import DEMONSTRATION, behavior, codes_of, ppo_of, problem_of

DEMONSTRATED = {"demonstrations": [DEMONSTRATION]}


def test_signals_have_the_order_of_the_value_heads_however_they_are_written() -> None:
    document = behavior(
        reward_signals={
            "rnd": {},
            "gail": [DEMONSTRATED, {**DEMONSTRATED, "gamma": 0.5}],
            "curiosity": {},
            "extrinsic": {},
        }
    )

    active = ppo_of(document).reward_signals.active()

    assert [name for name, _ in active] == ["extrinsic", "curiosity", "gail", "gail_2", "rnd"]
    assert [signal.gamma for _, signal in active] == [0.99, 0.99, 0.99, 0.5, 0.99]


@pytest.mark.parametrize("signals", [{}, {"extrinsic": None}, {"curiosity": None, "gail": None}])
def test_a_behavior_without_any_signal_is_refused(signals: dict[str, Any]) -> None:
    problem = problem_of(behavior(reward_signals=signals))

    assert (problem.path, problem.code) == ("behaviors.A.reward_signals", "missing")
    assert "extrinsic" in problem.message


@pytest.mark.parametrize("gail", [{}, {"demonstrations": []}, {"demo_path": None}])
def test_gail_without_demonstrations_is_refused(gail: dict[str, Any]) -> None:
    problem = problem_of(behavior(reward_signals={"gail": gail}))

    assert (problem.path, problem.code) == ("behaviors.A.reward_signals.gail.demonstrations", "missing")
    assert "ludus demonstration upload" in problem.message


def test_a_mistake_in_one_of_several_signals_is_found_at_its_place() -> None:
    document = behavior(reward_signals={"gail": [DEMONSTRATED, {**DEMONSTRATED, "gamma": 2, "use_actoins": True}]})

    assert codes_of(document) == {
        "behaviors.A.reward_signals.gail[1].gamma": "out_of_range",
        "behaviors.A.reward_signals.gail[1].use_actoins": "unknown_key",
    }


@pytest.mark.parametrize(
    ("gail", "path", "code"),
    [
        ([], "gail", "out_of_range"),
        ([DEMONSTRATED] * 9, "gail", "out_of_range"),
        ([5], "gail[0]", "wrong_type"),
        (5, "gail", "wrong_type"),
        ({"demonstrations": "x"}, "gail.demonstrations", "wrong_type"),
        ({"demonstrations": ["run_1"]}, "gail.demonstrations[0]", "invalid_value"),
        ({"demonstrations": [DEMONSTRATION, DEMONSTRATION]}, "gail.demonstrations", "invalid_value"),
    ],
)
def test_nonsense_is_no_gail(gail: object, path: str, code: str) -> None:
    assert codes_of(behavior(reward_signals={"extrinsic": {}, "gail": gail})) == {
        f"behaviors.A.reward_signals.{path}": code
    }


def test_a_reward_signals_section_can_be_made_in_code() -> None:
    signals = RewardSignals(extrinsic=ExtrinsicConfig(), gail=[GAILConfig(demonstrations=[DEMONSTRATION])])

    assert [name for name, _ in signals.active()] == ["extrinsic", "gail"]
