"""A monitor takes whatever a game may show and ask for: it names findings, and never ends a run by itself."""

from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter

from ludus.config.behavior import BehaviorConfig, ReinforcementConfig
from ludus.protocol.spec import BehaviorSpec
from tests.worker.rollouts import make_spec, random_rollout
from worker.trainer.checkpoint import load, save
from worker.trainer.health.monitor import HealthMonitor

CONFIG: TypeAdapter[ReinforcementConfig] = TypeAdapter(BehaviorConfig)
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
        monitor.episode(float(rollout.rewards.sum()), rollout.steps)
        monitor.learned()
    again = HealthMonitor(config, spec)
    with TemporaryDirectory() as folder:
        save(Path(folder), monitor.state_dict())
        again.load_state_dict(load(Path(folder)))
    again.conclude()
    monitor.conclude()
    assert again.facts == monitor.facts


@pytest.mark.parametrize("shape", [(0,), (0, 4), (3, 0, 0)])
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
