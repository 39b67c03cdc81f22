"""An algorithm whose numbers change on the way learns on as one that was built with them and took over its state."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ludus.config.run import RunConfig
from ludus.demonstrations import write
from server.config.amendment import amend
from tests.worker.test_variants import CPU, DEMONSTRATION, Cell, demonstrate, differences, play
from worker.learning.build import Demonstrations, build_algorithm
from worker.trainer import checkpoint

NEW_OF_PPO: dict[str, Any] = {
    "learning_rate": 3e-3,
    "learning_rate_schedule": "constant",
    "beta": 0.1,
    "beta_schedule": "constant",
    "epsilon": 0.4,
    "epsilon_schedule": "constant",
    "lambd": 0.5,
    "num_epoch": 2,
    "max_grad_norm": 0.1,
    "clip_value_loss": True,
    "vtrace": True,
    "decoupled_objective": True,
    "max_policy_lag": 5,
    "target_kl": 10.0,
}
NEW: dict[str, dict[str, Any]] = {
    "ppo": NEW_OF_PPO,
    "poca": NEW_OF_PPO,
    "sac": {"learning_rate": 3e-3, "learning_rate_schedule": "linear", "tau": 0.5, "reset_interval": 1000},
}
"""Other values of everything that may change."""


@pytest.mark.parametrize("signal", ["extrinsic", "bc"])
@pytest.mark.parametrize("trainer", sorted(NEW))
def test_new_numbers_act_from_the_next_update_on(trainer: str, signal: str, tmp_path: Path) -> None:
    cell = Cell(trainer, signal, "continuous", "vector", "plain")
    write(demonstrate(cell.spec), tmp_path / "shown.npz")
    shown = Demonstrations({DEMONSTRATION["demonstrations"][0]: str(tmp_path / "shown.npz")})
    behavior = cell.config.model_copy(update={"max_steps": 1000})
    run = RunConfig(behaviors={cell.spec.behavior: behavior})
    assert {f"hyperparameters.{key}" for key in NEW[trainer]} | {"hyperparameters.critic_learning_rate"} >= {
        key for key in behavior.amendable if key.startswith("hyperparameters.")
    }, "every key that may change is tried"
    amended, changes = amend(run, {cell.spec.behavior: {"hyperparameters": NEW[trainer], "max_steps": 100}})
    assert len(changes) == len(NEW[trainer]) + 1
    section: Any = amended.behaviors[cell.spec.behavior]
    old: Any = run.behaviors[cell.spec.behavior]
    live, unchanged = (build_algorithm(old, cell.spec, CPU, 1, shown) for _ in range(2))
    for algorithm in (live, unchanged):
        algorithm.update(play(cell, 1), 24)
    checkpoint.save(tmp_path, live.state_dict())
    rebuilt = build_algorithm(section, cell.spec, CPU, 2, shown)
    rebuilt.load_state_dict(checkpoint.load(tmp_path))

    live.reconfigure(section)
    measured = [algorithm.update(play(cell, 2), 48) for algorithm in (live, rebuilt, unchanged)]

    assert measured[0] == measured[1]
    assert differences(live, rebuilt) == 0
    assert differences(live, unchanged) > 0, "negative control: they do act"


def test_a_linear_schedule_is_drawn_anew_from_the_beginning() -> None:
    cell = Cell("ppo", "extrinsic", "continuous", "vector", "plain")
    behavior = cell.config.model_copy(update={"max_steps": 1000})
    run = RunConfig(behaviors={"Walker": behavior})
    algorithm: Any = build_algorithm(run.behaviors["Walker"], cell.spec, CPU, 1, Demonstrations({}))  # type: ignore[arg-type]
    assert algorithm.rates(500).learning_rate == pytest.approx(1.5e-4)

    longer, _ = amend(run, {"Walker": {"max_steps": 2000}})
    algorithm.reconfigure(longer.behaviors["Walker"])
    assert algorithm.rates(500).learning_rate == pytest.approx(2.25e-4), "3/4 of the way is left, not half"
    assert algorithm.rates(2000).learning_rate == pytest.approx(1e-10)

    slower, _ = amend(longer, {"Walker": {"hyperparameters": {"learning_rate": 1e-4}}})
    algorithm.reconfigure(slower.behaviors["Walker"])
    assert algorithm.rates(500).learning_rate == pytest.approx(0.75e-4), "the line begins at the new value"
    assert np.isclose(algorithm.rates(0).learning_rate, 1e-4)
