"""Every variant of the configuration can be built, and what does not fit is refused by name."""

from pathlib import Path
from typing import Any

import pytest
import torch

from ludus.collector.spec_checks import UnsupportedSpec
from ludus.config.behavior import TRAINERS, CloneConfig
from ludus.config.imitation import FromDemonstrations
from ludus.config.plugins.crossq import CrossQConfig
from ludus.config.plugins.td3 import TD3Config
from ludus.config.plugins.tqc import TQCConfig
from ludus.config.rewards import GAILConfig, RewardSignals
from ludus.config.run import TorchSettings
from ludus.demonstrations import DemonstrationError, write
from tests.worker.rollouts import make_config, make_spec
from tests.worker.test_variants import demonstrate
from worker.learning.algorithms.algorithm import Compilable
from worker.learning.build import (
    Demonstrations,
    DeviceMissing,
    build_algorithm,
    build_demonstrated,
    build_signals,
    choose_collector_device,
    choose_device,
    count_gpus,
)
from worker.learning.fast.adam import FlatAdam
from worker.trainer.initialization import NETWORKS

CPU = torch.device("cpu")
DEMONSTRATION = "dem_" + "0" * 26
NONE = Demonstrations({})
SPEC = make_spec(branches=(2,))


@pytest.fixture
def expert(tmp_path: Path) -> Demonstrations:
    """One demonstration of a behavior that sees four numbers and has one branch of two choices."""
    write(demonstrate(make_spec(branches=(2,))), tmp_path / "shown.npz")
    return Demonstrations({DEMONSTRATION: str(tmp_path / "shown.npz")})


def test_every_trainer_is_built_from_its_defaults() -> None:
    continuous_only = {CrossQConfig, TD3Config, TQCConfig}
    built = {
        type(build_algorithm(trainer(), make_spec(continuous=1) if trainer in continuous_only else SPEC, CPU, 1, NONE))
        for trainer in learners()
    }

    assert len(built) == len(learners()) == len(TRAINERS) - 3  # the others need demonstrations


def learners() -> list[Any]:
    """Return the trainers that need no demonstrations."""
    return [trainer for trainer in TRAINERS.values() if not issubclass(trainer, FromDemonstrations)]


def test_signals_are_built_in_the_order_of_the_value_heads(expert: Demonstrations) -> None:
    gail = {"demonstrations": [DEMONSTRATION], "gamma": 0.5}
    section = RewardSignals.model_validate(
        {"novelty": {}, "rnd": {}, "gail": [gail, gail], "curiosity": {}, "extrinsic": {}}
    )

    signals = build_signals(section, make_spec(branches=(2,)), CPU, torch.Generator(), expert)

    assert signals.names == ("extrinsic", "curiosity", "gail", "gail_2", "rnd", "novelty")
    assert signals.gamma.tolist() == pytest.approx([0.99, 0.99, 0.5, 0.5, 0.99, 0.99])


def test_policy_and_signals_begin_with_numbers_of_their_own() -> None:
    config = make_config()
    with_rnd = config.model_copy(update={"reward_signals": RewardSignals.model_validate({"extrinsic": {}, "rnd": {}})})
    spec = make_spec(branches=(2,))

    alone, beside = (build_algorithm(one, spec, CPU, 1, NONE).flat_weights() for one in (config, with_rnd))

    assert (alone == beside).all(), "the policy's first weights don't depend on the signals"


def test_unsupported_behavior_is_refused() -> None:
    with pytest.raises(UnsupportedSpec, match="announce at least one continuous action"):
        build_algorithm(make_config(), make_spec(), CPU, 1, NONE)


@pytest.mark.parametrize(
    ("signals", "where"),
    [
        ({"curiosity": {}}, "curiosity"),
        ({"rnd": {}}, "rnd"),
        ({"gail": {}}, "gail"),
        ({"gail": [{"network_settings": {"vis_encode_type": "match3"}}, {}]}, r"gail\[1\]"),
    ],
    ids=["curiosity", "rnd", "gail", "gail_2"],
)
def test_what_a_signals_own_network_cannot_see_is_refused_with_its_place(
    tmp_path: Path, signals: dict[str, Any], where: str
) -> None:
    spec = make_spec(observations=((3, 16, 16),), branches=(2,))
    write(demonstrate(spec), tmp_path / "shown.npz")
    expert = Demonstrations({DEMONSTRATION: str(tmp_path / "shown.npz")})
    gails = signals.get("gail", [])
    for gail in gails if isinstance(gails, list) else [gails]:
        gail["demonstrations"] = [DEMONSTRATION]
    config = make_config(network={"vis_encode_type": "match3"})
    config = config.model_copy(update={"reward_signals": RewardSignals.model_validate({"extrinsic": {}, **signals})})

    place = rf"^behavior 'Walker': reward_signals\.{where}\.network_settings: observation 0 .* 'simple' needs .* 20"
    with pytest.raises(UnsupportedSpec, match=place) as caught:
        build_algorithm(config, spec, CPU, 1, expert)
    assert (caught.value.behavior, caught.value.code) == ("Walker", "observation_too_small")


def test_a_signals_own_goal_conditioning_is_refused_with_its_place() -> None:
    spec = make_spec(observations=(4, (3, 2)), branches=(2,), goal=1)
    config = make_config(network={"goal_conditioning_type": "none"})
    section = {"extrinsic": {}, "curiosity": {"network_settings": {"goal_conditioning_type": "hyper"}}}
    config = config.model_copy(update={"reward_signals": RewardSignals.model_validate(section)})

    with pytest.raises(
        UnsupportedSpec, match=r"'Walker': reward_signals\.curiosity\.network_settings: .*variable length"
    ):
        build_algorithm(config, spec, CPU, 1, NONE)


@pytest.mark.parametrize("section", ["gail", "behavioral_cloning"])
def test_a_demonstration_that_does_not_fit_is_refused_by_its_id_with_both_shapes(
    expert: Demonstrations, section: str
) -> None:
    named = {"demonstrations": [DEMONSTRATION]}
    config = make_config()
    if section == "gail":
        signals = RewardSignals(gail=GAILConfig.model_validate(named))
        config = config.model_copy(update={"reward_signals": signals})
    else:
        config = type(config).model_validate({**config.model_dump(), "behavioral_cloning": named})

    key = rf"(reward_signals\.)?{section}\.demonstrations\[0\]"
    with pytest.raises(
        DemonstrationError, match=rf"^{key}: .*demonstration {DEMONSTRATION} .*\(4,\).*'Walker'.*\(7,\)"
    ):
        build_algorithm(config, make_spec(observations=(7,), branches=(2,)), CPU, 1, expert)


def test_a_demonstration_that_was_not_handed_over_is_named() -> None:
    config = CloneConfig.model_validate({"demonstrations": [DEMONSTRATION]})

    with pytest.raises(DemonstrationError, match=rf"^demonstrations\[0\]: .*{DEMONSTRATION}"):
        build_demonstrated(config, "Walker", CPU, 1, NONE)


def test_the_error_of_a_demonstration_names_the_signal_of_several_that_it_is_for(
    expert: Demonstrations, tmp_path: Path
) -> None:
    damaged = tmp_path / "damaged.demo"
    damaged.write_bytes(b"hello")
    gails = [{"demonstrations": [DEMONSTRATION]}, {"demonstrations": [DEMONSTRATION], "demo_path": str(damaged)}]
    config = make_config().model_copy(update={"reward_signals": RewardSignals.model_validate({"gail": gails})})

    key = r"reward_signals\.gail\[1\]\.demo_path"
    with pytest.raises(
        DemonstrationError, match=rf"^{key}: .*damaged\.demo, byte 0: it is no recording.*copy it again"
    ):
        build_algorithm(config, make_spec(branches=(2,)), CPU, 1, expert)


def test_recordings_are_paired_as_ml_agents_did_where_that_is_asked_for(tmp_path: Path) -> None:
    """A record holds what was done before it: correctly read, the first state goes with the second record's action."""
    demonstration = demonstrate(make_spec(branches=(2,)))
    write(demonstration, tmp_path / "shown.demo")
    expert = Demonstrations({DEMONSTRATION: str(tmp_path / "shown.demo")})

    rows = {}
    for legacy in (False, True):
        config = CloneConfig.model_validate({"demonstrations": [DEMONSTRATION], "legacy_pairing": legacy})
        rows[legacy] = build_demonstrated(config, "Walker", CPU, 1, expert)[2].transitions.discrete[:, 0].tolist()

    acted = demonstration.discrete[:, 0].tolist()
    assert rows[False] == acted
    assert rows[True][:2] == [0, acted[0]], "nothing yet, then what was done at the first state"


def test_a_clone_sees_and_does_what_was_shown(expert: Demonstrations) -> None:
    config = CloneConfig.model_validate({"demonstrations": [DEMONSTRATION]})

    algorithm, spec, buffer = build_demonstrated(config, "Runner", CPU, 1, expert)

    assert (spec.name, spec.actions) == ("Runner", make_spec(branches=(2,)).actions)
    assert buffer.steps == 20
    assert algorithm.actor.layout.discrete_branches == (2,)


def test_ppo_can_be_compiled() -> None:
    assert isinstance(build_algorithm(make_config(), make_spec(branches=(2,)), CPU, 1, NONE), Compilable)


@pytest.mark.parametrize(
    ("setting", "gpus", "device"),
    [
        ("cpu", 0, "cpu"),
        ("cpu", 2, "cpu"),
        ("cuda", 1, "cuda"),
        ("cuda:1", 2, "cuda:1"),
        (None, 0, "cpu"),
        (None, 2, "cuda"),
    ],
)
def test_a_named_device_is_taken_else_a_gpu_where_there_is_one(setting: str | None, gpus: int, device: str) -> None:
    assert choose_device(TorchSettings(device=setting), gpus) == torch.device(device)


@pytest.mark.parametrize(("setting", "device"), [(None, "cpu"), ("cpu", "cpu"), ("cuda:1", "cuda:1")])
def test_collectors_act_on_the_cpu_unless_a_device_is_named(setting: str | None, device: str) -> None:
    assert choose_collector_device(TorchSettings(collector_device=setting), 2) == torch.device(device)


@pytest.mark.parametrize(
    ("setting", "gpus", "has"),
    [("cuda", 0, "0 GPUs"), ("cuda:1", 1, "1 GPU;"), ("cuda:7", 2, "2 GPUs"), ("cuda:999", 2, "2 GPUs")],
)
def test_a_device_that_the_worker_lacks_is_refused_with_what_it_has(setting: str, gpus: int, has: str) -> None:
    with pytest.raises(DeviceMissing, match=f"torch_settings.device is {setting}; this worker has {has}"):
        choose_device(TorchSettings(device=setting), gpus)
    with pytest.raises(DeviceMissing, match=f"torch_settings.collector_device is {setting}; this worker has {has}"):
        choose_collector_device(TorchSettings(collector_device=setting), gpus)


def test_gpus_that_are_counted_can_be_used() -> None:
    for index in range(count_gpus()):
        assert torch.ones(1, device=f"cuda:{index}").item() == 1.0
    assert count_gpus() > 0 or not torch.cuda.is_available()


@pytest.mark.parametrize("trainer", learners(), ids=lambda trainer: trainer.model_fields["trainer_type"].default)
def test_a_run_that_begins_with_a_checkpoint_gets_every_network_and_optimizer(trainer: Any) -> None:
    spec = make_spec(continuous=1) if trainer in {CrossQConfig, TD3Config, TQCConfig} else SPEC

    parts = build_algorithm(trainer(), spec, CPU, 1, NONE)._state._stored

    learned = {
        name for name, part in parts.items() if isinstance(part, FlatAdam | torch.nn.Module | torch.nn.Parameter)
    }
    assert learned <= {*NETWORKS}
    assert len(learned) >= 2
