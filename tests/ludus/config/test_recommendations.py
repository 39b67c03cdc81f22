"""Measured keys: every figure follows from the scores beside it, and a row counts for its own kind of task alone."""

from typing import Any

import numpy as np
import pytest

from ludus.config.behavior import TRAINERS
from ludus.config.recommendations import (
    PROVEN_TASKS,
    advice,
    harmed,
    is_better,
    measured,
    measurements,
    summary,
    unmet,
    value_at,
)
from ludus.statistics import compare_groups

ROWS = pytest.mark.parametrize("row", measurements(), ids=lambda row: f"{row['when']['trainer_type']}-{row['key']}")


def section_of(row: dict[str, Any], **keys: Any) -> dict[str, Any]:
    """A resolved section of the kind that a row was measured for, with all defaults."""
    trainer = row["when"]["trainer_type"]
    return TRAINERS[trainer].model_validate({"max_steps": row["tasks"][0]["steps"], **keys}).model_dump(mode="json")


def changed(row: dict[str, Any]) -> dict[str, Any]:
    """The same with the measured value."""
    value: Any = row["value"]
    for key in reversed(row["key"].split(".")):
        value = {key: value}
    return section_of(row, **value)


def row_of(*chances: tuple[float, float, float], p_value: float = 0.01) -> dict[str, Any]:
    """A row whose tasks have these probabilities of improvement, as value, low and high; the first is that of all."""
    figures = [dict(zip(("value", "low", "high"), chance, strict=True)) for chance in chances]
    tasks = [{"task": f"task {index}", "with": [0.0] * 5, "probability": each} for index, each in enumerate(figures)]
    return {"key": "a.b", "value": True, "probability": figures[0], "p_value": p_value, "tasks": tasks}


@ROWS
def test_figures_follow_from_the_scores(row: dict[str, Any]) -> None:
    for part, tasks in ((row, row["tasks"]), *((task, [task]) for task in row["tasks"])):
        expected = compare_groups(*(np.array([task[side] for task in tasks]).T for side in ("without", "with")))

        chance = expected.probability
        assert part["probability"] == pytest.approx(
            {"value": chance.value, "low": chance.low, "high": chance.high}, abs=1e-3
        )
        assert part["p_value"] == pytest.approx(expected.p_value, rel=0.05)


@ROWS
def test_a_row_names_a_key_of_its_trainer_and_the_default_of_it(row: dict[str, Any]) -> None:
    assert value_at(section_of(row), row["key"]) == row["default"]
    assert value_at(changed(row), row["key"]) != row["default"]


@ROWS
def test_a_row_is_for_its_own_kind_of_task_and_for_those_who_do_not_have_the_value_yet(row: dict[str, Any]) -> None:
    most = row["when"]["max_steps"]["max"]

    assert row in measured(section_of(row))
    assert row not in measured(changed(row))
    assert row not in measured(section_of(row, max_steps=most + 1))
    assert unmet(row, section_of(row, max_steps=most + 1)) == [
        f"max_steps from {row['when']['max_steps']['min']:,} to {most:,}"
    ]


def test_conditions_that_are_not_met_are_named() -> None:
    row = next(row for row in measurements() if row["when"]["trainer_type"] == "ppo")

    section = section_of(
        row, reward_signals={"extrinsic": {}, "rnd": {}}, network_settings={"memory": {"memory_size": 32}}
    )

    assert unmet(row, section) == ["reward_signals of extrinsic alone", "network_settings.memory null"]


@pytest.mark.parametrize(
    ("chance", "p_value", "better"),
    [
        ((0.8, 0.7, 0.9), 0.01, True),
        ((0.8, 0.7, 0.9), 0.06, False),  # the test of ranks does not exclude chance
        ((0.6, 0.5, 0.7), 0.01, False),
        ((0.2, 0.1, 0.3), 0.01, False),
    ],
)
def test_a_key_is_better_where_interval_and_test_say_so(
    chance: tuple[float, float, float], p_value: float, *, better: bool
) -> None:
    assert is_better(row_of(chance, p_value=p_value)) is better


def test_tasks_are_harmed_below_one_half() -> None:
    assert harmed(row_of((0.8, 0.7, 0.9), (0.1, 0.0, 0.4), (0.3, 0.1, 0.5))) == ["task 1"]


def test_few_tasks_prove_nothing() -> None:
    chance = (0.8, 0.7, 0.9)

    assert summary(row_of(chance)) == (
        "probability of improvement 0.80 [0.70, 0.90] on 1 task x 5 seeds: off by default, not proven"
    )
    assert summary(row_of(*[chance] * PROVEN_TASKS)).endswith(f"on {PROVEN_TASKS} tasks x 5 seeds")


def test_a_warning_is_one_line_about_all_keys_that_are_probably_better_and_harm_nothing() -> None:
    good, unlikely, harming, unsure = (
        row_of((0.8, 0.7, 0.9)),
        row_of((0.75, 0.6, 0.9)),
        row_of((0.8, 0.7, 0.9), (0.1, 0.0, 0.4)),
        row_of((0.9, 0.8, 1.0), p_value=0.2),
    )
    other = good | {"key": "c", "value": "x"}

    assert advice([unlikely, harming, unsure]) is None
    named = advice([unlikely, good, harming, other])

    figures = "(probability of improvement 0.80 [0.70, 0.90] on 1 task x 5 seeds: off by default, not proven)"
    rows = f'a.b: true {figures}; c: "x" {figures}'
    assert named == (
        "a.b",
        f"another value measured better on tasks of this kind: {rows}; see `ludus recommend`",
    )
