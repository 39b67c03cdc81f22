"""What is noted of observations, and the findings about them."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ludus.protocol.spec import BehaviorSpec
from tests.worker.rollouts import make_spec, random_rollout
from tests.worker.trainer.health.test_monitor import CONFIG, ROUND, Told, rising
from worker.trainer.checkpoint import load, save
from worker.trainer.health.monitor import HealthMonitor


def test_large_observations_are_to_blame_for_the_entropy_that_they_cost() -> None:
    told = Told()

    told.play(3, returns=lambda number: float(number % 5), see=lambda seen: [seen * 1e6], entropy=1e-20, kl=30.0)

    assert told.codes == ["observation_scale"]
    assert "of observation 0 (vector 0) reaches" in told.message
    assert told.monitor.facts[0].remedy == "Set network_settings.normalize: true."


def test_large_observations_are_no_finding_where_they_are_normalized_or_rare() -> None:
    normalized, rare = Told(network_settings={"normalize": True}), Told()

    def outlier(seen: np.ndarray) -> list[np.ndarray]:
        return [np.where(np.arange(ROUND)[:, None] == 500, 1e6, seen)]

    normalized.play(3, returns=rising, see=lambda seen: [seen * 1e6])
    rare.play(3, returns=rising, see=outlier)

    assert (normalized.codes, rare.codes) == ([], [])


@pytest.mark.parametrize(
    ("see", "expected"),
    [
        (lambda seen: [np.column_stack([seen[:, :2], np.full(ROUND, 0.25)])], ["observation_constant"]),
        (lambda seen: [np.column_stack([seen[:, :2], np.zeros(ROUND)])], ["observation_constant"]),
        (lambda seen: [np.column_stack([np.abs(seen[:, :2]).clip(0, 1), np.ones(ROUND)])], []),  # a ray at its end
        (lambda seen: [np.column_stack([seen[:, 0], seen[:, 1] > 0, np.zeros(ROUND)])], []),  # flags
        (lambda seen: [np.column_stack([seen[:, 0], np.zeros((ROUND, 2))])], []),  # padding
        (lambda seen: [np.column_stack([seen[:, 0], seen[:, 1] > 0, np.full(ROUND, 0.37)])], ["observation_constant"]),
    ],
    ids=["constant", "zero", "ray", "flags", "padding", "measurement among flags"],
)
def test_a_measurement_that_never_changes_is_named_and_what_is_constant_for_good_reasons_is_not(
    see: Callable[[np.ndarray], Any], expected: list[str]
) -> None:
    told = Told()

    told.play(40, returns=rising, see=see)

    assert told.codes == expected
    assert not expected or "element 2 of observation 0" in told.message


def test_a_goal_that_never_changes_is_no_finding_and_a_black_picture_is() -> None:
    spec = make_spec(observations=(3, 3, (3, 20, 20)), branches=(2,), goal=1)
    told = Told(spec)

    def see(seen: np.ndarray) -> list[np.ndarray]:
        return [seen, np.ones((ROUND, 3)), np.zeros((ROUND, 3, 20, 20), np.uint8)]

    told.play(20, returns=rising, see=see)

    assert told.codes == ["observation_constant"]
    assert told.message.endswith("observation 2 (image 2) (0).")


SHAPES = st.sampled_from([0, 1, 3, (3, 8, 8), (1, 17, 9), (2, 3), (1, 0)])
ACTIONS = st.sampled_from([(1, ()), (3, ()), (0, (2,)), (0, (1,)), (0, (3, 1, 2)), (2, (2,))])


@st.composite
def specs(draw: st.DrawFn) -> BehaviorSpec:
    """Specs of every kind of observation, also of no numbers, and of every kind of action."""
    continuous, branches = draw(ACTIONS)
    observations = draw(st.lists(SHAPES, min_size=1, max_size=4))
    return make_spec(observations=observations, continuous=continuous, branches=branches)


@given(
    spec=specs(),
    scale=st.sampled_from([0.0, 1e-30, 1.0, 1e30]),
    lengths=st.lists(st.integers(1, 40), min_size=1, max_size=40),
    masked=st.booleans(),
    trainer=st.sampled_from(["ppo", "sac", "poca"]),
)
def test_whatever_a_game_shows_is_reviewed_to_the_end(
    spec: BehaviorSpec, scale: float, lengths: list[int], masked: bool, trainer: str
) -> None:
    config = CONFIG.validate_python({"trainer_type": trainer, "max_steps": 4000, "summary_freq": 1000})
    monitor = HealthMonitor(config, spec)
    rng = np.random.default_rng(len(lengths))
    step = 0
    while step < config.max_steps:
        rollout = random_rollout(spec, lengths, rng, masked=masked)
        scaled: dict[str, Any] = {
            name: [column * scale if column.dtype.is_floating_point else column for column in getattr(rollout, name)]
            for name in ("observations", "next_observations")
        }
        rollout = replace(rollout, **scaled, rewards=rollout.rewards * scale)
        step += max(rollout.steps, 500)
        monitor.experienced(rollout, step)
        monitor.evidence.episodes.add(float(rollout.rewards.sum()), rollout.steps)
        monitor.learned()
    again = HealthMonitor(config, spec)
    with TemporaryDirectory() as folder:
        save(Path(folder), monitor.state_dict())
        again.load_state_dict(load(Path(folder)))
    again.conclude()
    monitor.conclude()
    assert again.facts == monitor.facts


@pytest.mark.parametrize("shape", [(0,), (3, 0, 0)])
def test_a_sensor_of_no_numbers_is_no_finding(shape: Any) -> None:
    spec = make_spec(observations=(3, shape[0] if len(shape) == 1 else shape), branches=(2,))
    monitor = HealthMonitor(CONFIG.validate_python({"max_steps": 4000}), spec)
    rng = np.random.default_rng(0)
    for step in range(1000, 5000, 1000):
        plain = make_spec(observations=(3,), branches=(2,))
        rollout = random_rollout(plain, [50] * 20, rng)
        nothing = rollout.observations[0].new_zeros
        monitor.experienced(
            replace(
                rollout,
                observations=[*rollout.observations, nothing((rollout.steps, *shape))],
                next_observations=[*rollout.next_observations, nothing((20, *shape))],
            ),
            step,
        )
        monitor.learned()
    monitor.conclude()
    assert not {fact.code for fact in monitor.facts} & {
        "observation_constant",
        "observation_large",
        "observations_small",
    }
