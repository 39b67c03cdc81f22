"""Signs of divergence: when they begin, when they are over, when they end a run. Numbers are worked out by hand."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import TypeAdapter
from torch import Tensor

from ludus.config.behavior import BehaviorConfig
from ludus.config.trainer import ReinforcementConfig
from ludus.protocol.spec import ActionSpec, BehaviorSpec, ObservationSpec
from ludus.sdk import Actions, StepBuilder
from tests.worker.trainer.conftest import StartTrainer
from tests.worker.trainer.test_demonstrated import Echo
from worker.trainer.health.divergence import CALM, Divergence, LimitCrossed

CONFIG: TypeAdapter[ReinforcementConfig] = TypeAdapter(BehaviorConfig)


class Watched:
    """The signs of a behavior, with its configuration."""

    def __init__(self, *, branches: tuple[int, ...] = (), continuous: int = 0, **config: Any) -> None:
        self.config = CONFIG.validate_python(config)
        spec = BehaviorSpec("Walker", (ObservationSpec((1,)),), ActionSpec(continuous, branches))
        self.divergence = Divergence(spec)
        self.step = 0

    def update(self, *, masks: Tensor | None = None, **measured: float) -> None:
        """Let an update measure something: `entropy`, `branch_1`, `continuous`, `kl`."""
        self.step += 100
        names = {"entropy": "Policy/Entropy", "continuous": "Policy/Continuous Entropy", "kl": "Policy/Approximate KL"}
        metrics = {
            names.get(key, f"Policy/{key.replace('_', ' ').title()} Entropy"): value for key, value in measured.items()
        }
        self.divergence.updated(self.config, metrics, masks, 4 if masks is None else len(masks), self.step)

    @property
    def signs(self) -> dict[str, int]:
        """The signs that hold, with the steps at which they began."""
        return {name: sign.since for name, sign in self.divergence.signs.items() if sign.since is not None}


def entropy_of(sigma: float) -> float:
    """Return the differential entropy of a normal distribution."""
    return 0.5 * math.log(2 * math.pi * math.e * sigma**2)


@pytest.mark.parametrize("trainer", ["ppo", "poca", "sac"])
def test_an_entropy_that_is_gone_is_a_sign_from_its_first_update_on(trainer: str) -> None:
    walker = Watched(branches=(4,), trainer_type=trainer)

    walker.update(entropy=1.3)
    for _ in range(50):
        walker.update(entropy=1.8e-32)

    assert walker.signs == {"branch 0": 200}
    sign = walker.divergence.lost["branch 0"]
    assert sign.value == pytest.approx(1.8e-32 / math.log(4))
    assert sign.latest == "the entropy of branch 0 is 1.8e-32 of 1.39 possible nats, a share of 1.3e-32"


def test_a_policy_that_is_nearly_sure_is_no_sign() -> None:
    walker = Watched(branches=(2,))

    walker.update(entropy=0.001)  # a share of 0.0014: one action in some 8,000 is another one

    assert walker.signs == {}


def test_each_branch_counts_by_its_own_choices() -> None:
    walker = Watched(branches=(2, 1, 16))

    walker.update(entropy=2.0, branch_0=0.6, branch_1=0.0, branch_2=2e-4)  # 2e-4 of ln 16 = 2.77: a share of 7e-5

    assert [*walker.signs] == ["branch 2"]


def test_choices_that_are_masked_away_are_no_lost_entropy() -> None:
    walker = Watched(branches=(3, 2))
    masks = torch.tensor([[1, 1, 1, 1, 0], [1, 0, 0, 1, 0]]).bool()  # branch 0: ln 3 / 2 on average; branch 1: nothing

    walker.update(masks=masks, entropy=0.5, branch_0=0.5, branch_1=0.0)
    assert walker.signs == {}

    walker.update(masks=masks, entropy=5e-5, branch_0=5e-5, branch_1=0.0)  # 5e-5 of 0.549
    assert [*walker.signs] == ["branch 0"]
    assert "of 0.549 possible nats" in walker.divergence.lost["branch 0"].latest


@pytest.mark.parametrize("trainer", ["ppo", "poca", "sac"])
def test_an_entropy_below_zero_is_no_sign_where_actions_are_continuous(trainer: str) -> None:
    walker = Watched(continuous=2, trainer_type=trainer)
    assert entropy_of(0.01) < -3

    walker.update(entropy=entropy_of(0.01))
    assert walker.signs == {}
    walker.update(entropy=entropy_of(5e-4))

    sign = walker.divergence.lost["sigma"]
    assert sign.latest == "the standard deviation of the continuous actions is 0.0005"
    assert sign.value == pytest.approx(5e-4)


def test_sacs_smallest_sigma_is_a_sign() -> None:
    walker = Watched(continuous=1, trainer_type="sac")

    walker.update(entropy=entropy_of(math.exp(-20)))

    assert [*walker.signs] == ["sigma"]


def test_hybrid_actions_are_judged_by_both_kinds() -> None:
    ppo, sac = (Watched(continuous=1, branches=(2,), trainer_type=kind) for kind in ("ppo", "sac"))

    ppo.update(entropy=-9.0, continuous=entropy_of(1e-5), branch_0=1e-9)
    sac.update(entropy=-9.0, continuous=entropy_of(1e-5), discrete=1e-9)  # SAC's name for its only branch

    for walker in (ppo, sac):
        assert [*walker.signs] == ["branch 0", "sigma"]


def test_a_kl_that_explodes_is_a_sign_until_enough_updates_were_calm() -> None:
    walker = Watched(branches=(2,))

    for kl in (0.01, 35.0, 0.5, 60.0, *[0.01] * (CALM - 1), 2.0):
        walker.update(entropy=0.5, kl=kl)
    assert walker.signs == {"KL": 200}
    assert walker.divergence.signs["KL"].latest == "Policy/Approximate KL is 2 nats"

    for kl in [0.01] * CALM:
        walker.update(entropy=0.5, kl=kl)
    assert walker.signs == {}
    assert walker.divergence.signs["KL"].began == 200

    walker.update(entropy=0.5, kl=3.0)
    assert walker.signs == {"KL": walker.step}


def test_an_entropy_that_comes_back_is_no_sign_any_more() -> None:
    walker = Watched(branches=(2,))

    walker.update(entropy=1e-9)
    for _ in range(CALM):
        walker.update(entropy=0.5)

    assert walker.signs == {}


def test_nothing_ends_a_run_by_default() -> None:
    walker = Watched(branches=(2,), continuous=1)

    for _ in range(100):
        walker.update(entropy=-900.0, continuous=-900.0, branch_0=0.0, kl=1e20)

    assert sorted(walker.signs) == ["KL", "branch 0", "sigma"]


@pytest.mark.parametrize(
    ("limit", "measured", "words"),
    [
        ({"stop_entropy_below": 0.01}, {"entropy": 1.0, "branch_0": 1e-9}, "the entropy of branch 0 is 1e-09 of"),
        ({"stop_sigma_below": 0.01}, {"entropy": 1.0, "continuous": -9.0}, "the standard deviation of the continuous"),
        ({"stop_kl_above": 0.1}, {"entropy": 1.0, "kl": 0.2}, "Policy/Approximate KL is 0.2 nats, above the limit of"),
    ],
)
def test_a_limit_ends_the_run_after_three_updates_in_a_row(
    limit: dict[str, float], measured: dict[str, float], words: str
) -> None:
    walker = Watched(branches=(2,), continuous=1, divergence=limit)
    good = {"entropy": 1.0, "branch_0": 0.5, "continuous": 1.0, "kl": 0.01}

    walker.update(**good | measured)
    walker.update(**good | measured)
    walker.update(**good)
    walker.update(**good | measured)
    walker.update(**good | measured)
    with pytest.raises(LimitCrossed, match="for 3 updates in a row") as caught:
        walker.update(**good | measured)

    assert words in str(caught.value)


def test_warnings_can_be_turned_off_one_by_one() -> None:
    silent = {"warn_entropy_below": None, "warn_sigma_below": None, "warn_kl_above": None}
    walker = Watched(branches=(2,), continuous=1, divergence=silent)

    walker.update(entropy=-9.0, branch_0=0.0, continuous=-99.0, kl=1e9)

    assert walker.signs == {}


def test_a_resumed_run_goes_on_with_its_signs_and_counts() -> None:
    first = Watched(branches=(2,), divergence={"stop_entropy_below": 1e-6})
    first.update(entropy=1e-9)
    first.update(entropy=1e-9)
    second = Watched(branches=(2,), divergence={"stop_entropy_below": 1e-6})
    second.divergence.load_state_dict(json.loads(json.dumps(first.divergence.state_dict())))

    assert second.signs == first.signs
    with pytest.raises(LimitCrossed):
        second.update(entropy=1e-9)


SECTION = {
    "hyperparameters": {"batch_size": 32, "buffer_size": 128, "learning_rate_schedule": "constant"},
    "network_settings": {"hidden_units": 16, "num_layers": 1},
    "time_horizon": 16,
    "max_steps": 2560,
}


class Tempting(Echo):
    """Pays for the first choice whatever is seen."""

    def step(self, builder: StepBuilder, actions: Actions) -> None:
        reward = 1.0 - float(next(iter(actions)).discrete[0])
        self._left -= 1
        if self._left == 0:
            builder.end_episode(agent=0, observation=[0.0], reward=reward)
            self._left, reward = 5, 0.0
        self._ask(builder, reward)


FAST = SECTION["hyperparameters"] | {"learning_rate": 1.0, "beta": 0.0}  # type: ignore[operator]


def test_a_limit_ends_the_run_as_diverged_and_keeps_the_policy(start: StartTrainer) -> None:
    limit = {"stop_entropy_below": 0.5}
    section = {**SECTION, "hyperparameters": FAST, "divergence": limit, "max_steps": 100_000}
    messages = start({"seed": 1, "behaviors": {"Echo": section}}).played_by(Tempting())

    assert (messages[-1]["outcome"], messages[-1]["reason"]) == ("failed", "diverged")
    assert "below the limit of 0.5 for 3 updates in a row" in messages[-1]["detail"]
    (written,) = [message for message in messages if message["type"] == "checkpoint_written"]
    assert (Path(written["folder"]) / "Echo.onnx").exists()
    assert "update_rolled_back" not in {message.get("name") for message in messages}
