"""Signs of divergence: when they are told, when they are over, when they end a run. Numbers are worked out by hand."""

import json
import math
from typing import Any

import numpy as np
import pytest
import torch
from pydantic import TypeAdapter
from torch import Tensor

from ludus.protocol.spec import ActionSpec, BehaviorSpec, ObservationSpec
from server.config.behavior import BehaviorConfig, ReinforcementConfig
from tests.worker.test_variants import demonstrate
from worker.trainer.divergence import CALM, DivergenceMonitor, LimitCrossed, whole_lengths

DEMONSTRATION = {"demonstrations": ["dem_" + "0" * 26]}
CONFIG: TypeAdapter[ReinforcementConfig] = TypeAdapter(BehaviorConfig)


class Watched:
    """A behavior's health, with its configuration and what is told of it."""

    def __init__(self, *, branches: tuple[int, ...] = (), continuous: int = 0, **config: Any) -> None:
        self.config = CONFIG.validate_python(config)
        self.told: list[tuple[str, str, dict[str, Any]]] = []
        spec = BehaviorSpec("Walker", (ObservationSpec((1,)),), ActionSpec(continuous, branches))
        self.monitor = DivergenceMonitor(spec, lambda *event: self.told.append(event))
        self.step = 0

    def update(self, *, masks: Tensor | None = None, **measured: float) -> None:
        """Let an update measure something: `entropy`, `branch_1`, `continuous`, `kl`."""
        self.step += 100
        names = {"entropy": "Policy/Entropy", "continuous": "Policy/Continuous Entropy", "kl": "Policy/Approximate KL"}
        metrics = {
            names.get(key, f"Policy/{key.replace('_', ' ').title()} Entropy"): value for key, value in measured.items()
        }
        self.monitor.updated(self.config, metrics, masks, 4 if masks is None else len(masks), self.step)

    @property
    def events(self) -> list[str]:
        return [name for name, _, _ in self.told]


def entropy_of(sigma: float) -> float:
    """Return the differential entropy of a normal distribution."""
    return 0.5 * math.log(2 * math.pi * math.e * sigma**2)


@pytest.mark.parametrize("trainer", ["ppo", "poca", "sac"])
def test_an_entropy_that_is_gone_is_told_once_with_its_numbers(trainer: str) -> None:
    walker = Watched(branches=(4,), trainer_type=trainer)

    walker.update(entropy=1.3)
    walker.update(entropy=1.8e-32)
    for _ in range(50):
        walker.update(entropy=1.8e-32)

    ((name, message, data),) = walker.told
    assert name == "entropy_collapsed"
    assert message.startswith("Walker, step 200: the entropy of branch 0 is 1.8e-32 of 1.39 possible nats")
    assert ("`init_entcoef`" if trainer == "sac" else "`beta`") in message
    assert (data["behavior"], data["measure"], data["step"]) == ("Walker", "branch 0", 200)
    assert data["value"] == pytest.approx(1.8e-32 / math.log(4))
    (last_word,) = walker.monitor.summary()
    assert last_word.startswith("Walker: the entropy of branch 0 is 1.8e-32 of 1.39 possible nats, a share of 1.3e-32")
    assert last_word.endswith("too little since step 200")


def test_a_policy_that_is_nearly_sure_is_no_sign() -> None:
    walker = Watched(branches=(2,))

    walker.update(entropy=0.001)  # a share of 0.0014: one action in some 8,000 is another one

    assert walker.told == []
    assert walker.monitor.summary() == []


def test_each_branch_counts_by_its_own_choices() -> None:
    walker = Watched(branches=(2, 1, 16))

    walker.update(entropy=2.0, branch_0=0.6, branch_1=0.0, branch_2=2e-4)  # 2e-4 of ln 16 = 2.77: a share of 7e-5

    assert [data["measure"] for _, _, data in walker.told] == ["branch 2"]


def test_choices_that_are_masked_away_are_no_lost_entropy() -> None:
    walker = Watched(branches=(3, 2))
    masks = torch.tensor([[1, 1, 1, 1, 0], [1, 0, 0, 1, 0]]).bool()  # branch 0: ln 3 / 2 on average; branch 1: nothing

    walker.update(masks=masks, entropy=0.5, branch_0=0.5, branch_1=0.0)
    assert walker.told == []

    walker.update(masks=masks, entropy=5e-5, branch_0=5e-5, branch_1=0.0)  # 5e-5 of 0.549
    assert [data["measure"] for _, _, data in walker.told] == ["branch 0"]
    assert "of 0.549 possible nats" in walker.told[0][1]


@pytest.mark.parametrize("trainer", ["ppo", "poca", "sac"])
def test_an_entropy_below_zero_is_no_sign_where_actions_are_continuous(trainer: str) -> None:
    walker = Watched(continuous=2, trainer_type=trainer)
    assert entropy_of(0.01) < -3

    walker.update(entropy=entropy_of(0.01))
    assert walker.told == []
    walker.update(entropy=entropy_of(5e-4))

    ((name, message, data),) = walker.told
    assert name == "entropy_collapsed"
    assert "the standard deviation of the continuous actions is 0.0005, below 0.001" in message
    assert data["value"] == pytest.approx(5e-4)


def test_sacs_smallest_sigma_is_a_sign() -> None:
    walker = Watched(continuous=1, trainer_type="sac")

    walker.update(entropy=entropy_of(math.exp(-20)))

    assert walker.events == ["entropy_collapsed"]


def test_hybrid_actions_are_judged_by_both_kinds() -> None:
    ppo, sac = (Watched(continuous=1, branches=(2,), trainer_type=kind) for kind in ("ppo", "sac"))

    ppo.update(entropy=-9.0, continuous=entropy_of(1e-5), branch_0=1e-9)
    sac.update(entropy=-9.0, continuous=entropy_of(1e-5), discrete=1e-9)  # SAC's name for its only branch

    for walker in (ppo, sac):
        assert [data["measure"] for _, _, data in walker.told] == ["branch 0", "sigma"]


def test_a_kl_that_explodes_is_told_once_per_occurrence() -> None:
    walker = Watched(branches=(2,))

    for kl in (0.01, 35.0, 0.5, 60.0, *[0.01] * (CALM - 1), 2.0):
        walker.update(entropy=0.5, kl=kl)
    assert walker.events == ["kl_exploded"]
    assert "step 200: Policy/Approximate KL is 35 nats, above 1" in walker.told[0][1]

    for kl in (*[0.01] * CALM, 3.0):
        walker.update(entropy=0.5, kl=kl)
    assert walker.events == ["kl_exploded", "kl_exploded"]
    assert walker.monitor.summary() == [
        "Walker: Policy/Approximate KL is 3 nats, the latest of 4 updates that moved the policy too far"
    ]


def test_an_entropy_that_comes_back_is_not_mentioned_at_the_end() -> None:
    walker = Watched(branches=(2,))

    walker.update(entropy=1e-9)
    for _ in range(CALM):
        walker.update(entropy=0.5)

    assert walker.events == ["entropy_collapsed"]
    assert walker.monitor.summary() == []


def test_nothing_ends_a_run_by_default() -> None:
    walker = Watched(branches=(2,), continuous=1)

    for _ in range(100):
        walker.update(entropy=-900.0, continuous=-900.0, branch_0=0.0, kl=1e20)

    assert sorted(walker.events) == ["entropy_collapsed", "entropy_collapsed", "kl_exploded"]


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

    assert walker.told == []


def test_a_resumed_run_repeats_no_warning_and_goes_on_counting() -> None:
    first = Watched(branches=(2,), divergence={"stop_entropy_below": 1e-6})
    first.update(entropy=1e-9)
    first.update(entropy=1e-9)
    second = Watched(branches=(2,), divergence={"stop_entropy_below": 1e-6})
    second.monitor.load_state_dict(json.loads(json.dumps(first.monitor.state_dict())))
    second.step = first.step

    assert second.monitor.summary() == first.monitor.summary()
    with pytest.raises(LimitCrossed):
        second.update(entropy=1e-9)
    assert second.told == []


# episodes of different length -------------------------------------------------------------------------------------


def gail(**more: Any) -> dict[str, Any]:
    return {"reward_signals": {"extrinsic": {}, "gail": {**DEMONSTRATION, **more}}}


def test_gail_on_episodes_of_different_length_is_told_once() -> None:
    walker = Watched(branches=(2,), **gail())

    walker.monitor.episodes_ended(walker.config, np.array([21, 21]))
    assert walker.told == []
    walker.monitor.episodes_ended(walker.config, np.array([21, 35, 50]))
    walker.monitor.episodes_ended(walker.config, np.array([7]))

    ((name, message, data),) = walker.told
    assert name == "gail_variable_horizon"
    assert message.startswith("Walker: episodes differ in length (21 and 35 decisions")
    assert "`ignore_done: true`" in message
    assert data == {"behavior": "Walker", "lengths": [21, 35]}


def test_demonstrations_of_another_length_than_the_games_episodes_count_too() -> None:
    walker = Watched(branches=(2,), **gail())
    shown = demonstrate(BehaviorSpec("Walker", (ObservationSpec((1,)),), ActionSpec(0, (2,))), steps=20)

    walker.monitor.episodes_ended(walker.config, whole_lengths(shown))  # two episodes of 10
    assert walker.told == []
    walker.monitor.episodes_ended(walker.config, np.array([200]))

    assert walker.events == ["gail_variable_horizon"]


def test_parts_of_demonstrated_episodes_say_nothing_of_their_length() -> None:
    spec = BehaviorSpec("Walker", (ObservationSpec((1,)),), ActionSpec(0, (2,)))

    assert whole_lengths(demonstrate(spec, steps=17)).tolist() == [10]  # the recording stopped in the second one


@pytest.mark.parametrize(
    "signals", [gail(ignore_done=True), {"reward_signals": {"extrinsic": {}, "curiosity": {}}}, {}]
)
def test_episodes_may_differ_where_no_gail_ends_with_them(signals: dict[str, Any]) -> None:
    walker = Watched(branches=(2,), **signals)

    walker.monitor.episodes_ended(walker.config, np.array([3, 4, 5]))

    assert walker.told == []


def test_a_resumed_run_does_not_repeat_that_episodes_differ() -> None:
    first, second = Watched(branches=(2,), **gail()), Watched(branches=(2,), **gail())
    first.monitor.episodes_ended(first.config, np.array([3, 4]))
    second.monitor.load_state_dict(json.loads(json.dumps(first.monitor.state_dict())))

    second.monitor.episodes_ended(second.config, np.array([3, 4]))

    assert second.told == []
