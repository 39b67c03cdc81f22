"""Schedules against arithmetic."""

import pytest

from worker.learning.functional.schedules import BETA_FLOOR, EPSILON_FLOOR, LEARNING_RATE_FLOOR, Schedule


def test_constant_stays() -> None:
    schedule = Schedule("constant", 0.2, EPSILON_FLOOR, max_steps=100)

    assert [schedule.at(step) for step in (0, 50, 100, 1000)] == [0.2] * 4


def test_linear_ends_at_its_floor() -> None:
    schedule = Schedule("linear", 0.2, EPSILON_FLOOR, max_steps=100)

    # 0.1 above its floor, of which the remaining share of the steps is left
    assert [schedule.at(step) for step in (0, 50, 100)] == pytest.approx([0.2, 0.15, 0.1])


def test_steps_past_the_end_count_as_the_end() -> None:
    assert Schedule("linear", 3e-4, LEARNING_RATE_FLOOR, max_steps=100).at(101) == LEARNING_RATE_FLOOR


def test_a_value_below_its_floor_rises_to_it_as_in_ml_agents() -> None:
    assert Schedule("linear", 0.0, BETA_FLOOR, max_steps=100).at(100) == BETA_FLOOR
