"""The only place where a variant of a configuration decides which class is built.

A plug-in's configuration names the class in its `implementation`.

Every algorithm is built alike: `PPO(config, spec, device, seed, signals, expert)`. `signals` is the `SignalSet` of its
reward signals, `expert` the `DemonstrationBuffer` of its demonstrations (its own, or those of its `behavioral_cloning`
section), or None without any. Those that learn from demonstrations alone have no reward signals:
`Trainer(config, spec, device, seed, expert)`.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import torch

from ludus.collector.spec_checks import UnsupportedSpec
from ludus.config.behavior import CloneConfig, POCAConfig, PPOConfig, SACConfig
from ludus.config.imitation import FromDemonstrations
from ludus.config.rewards import CuriosityConfig, ExtrinsicConfig, GAILConfig, RewardSignals, RNDConfig
from ludus.config.run import TorchSettings
from ludus.config.signal import RewardSignalConfig
from ludus.config.trainer import DemonstratedConfig, ReinforcementConfig
from ludus.demonstrations import Demonstration, DemonstrationError, check_fit
from ludus.plugins import PluginError, load_object
from ludus.protocol.spec import BehaviorSpec
from worker.experience.demonstrations import DemonstrationBuffer, load_demonstrations
from worker.learning.algorithms.algorithm import Algorithm, DemonstratedAlgorithm
from worker.learning.algorithms.bc import Cloning
from worker.learning.algorithms.poca import POCA
from worker.learning.algorithms.ppo import PPO
from worker.learning.algorithms.sac import SAC
from worker.learning.rewards.curiosity import CuriosityReward
from worker.learning.rewards.gail import GAILReward
from worker.learning.rewards.rnd import RNDReward
from worker.learning.rewards.signal import RewardSignal
from worker.learning.rewards.signals import ExtrinsicReward, NamedSignal, SignalSet


class DeviceMissing(ValueError):
    """A configuration names a device that this worker does not have."""

    def __init__(self, key: str, setting: str, gpus: int) -> None:
        has = "1 GPU" if gpus == 1 else f"{gpus} GPUs"
        super().__init__(
            f"torch_settings.{key} is {setting}; this worker has {has}; "
            "name one that it has, set cpu, leave it out, or run on a worker that has it"
        )


class Demonstrations:
    """The demonstrations that a job brought along. Each file is read once, when it is first asked for."""

    def __init__(self, paths: Mapping[str, str], labels: Mapping[str, str] | None = None) -> None:
        """`paths`: where the demonstration with each id lies; `labels`: its name and id in messages."""
        self._paths = paths
        self._labels = labels or {}
        self._known: dict[tuple[str, bool], list[Demonstration]] = {}

    def of(self, section: FromDemonstrations, key: str = "") -> list[Demonstration]:
        """Return the demonstrations that a section of the configuration names, by id, or (a trainer alone) by path.

        Raise `DemonstrationError` if something is missing or damaged. It begins with the key that names it, below the
        section's own, `key`.
        """
        return [demonstration for _, _, demonstration in self._named(section, key)]

    def buffer(
        self, section: FromDemonstrations, spec: BehaviorSpec, device: torch.device, key: str = ""
    ) -> DemonstrationBuffer:
        """Return the demonstrated steps on the device.

        Raise `DemonstrationError` as `of`; where one doesn't fit the behavior, with its name and both shapes.
        """
        for place, name, demonstration in self._named(section, key):
            with _blaming(place):
                check_fit(demonstration.spec, spec, what=f"demonstration {self._labels.get(name, name)}")
        return DemonstrationBuffer(self.of(section, key), spec, device)

    def _named(self, section: FromDemonstrations, key: str) -> Iterator[tuple[str, str, Demonstration]]:
        """Iterate over the demonstrations of a section: their keys, their ids or paths, and themselves."""
        prefix = f"{key}." if key else ""
        files = []
        for index, name in enumerate(section.demonstrations):
            place = f"{prefix}demonstrations[{index}]"
            if name not in self._paths:
                message = f"{place}: the demonstration {name} was not handed to this trainer; upload it again"
                raise DemonstrationError(message)
            files.append((place, name, self._paths[name]))
        if section.demo_path is not None:
            files.append((f"{prefix}demo_path", section.demo_path, section.demo_path))
        for place, name, path in files:
            with _blaming(place):
                demonstrations = self._read(path, legacy_pairing=section.legacy_pairing)
            for demonstration in demonstrations:
                yield place, name, demonstration

    def _read(self, path: str, *, legacy_pairing: bool) -> list[Demonstration]:
        key = (path, legacy_pairing)
        if key not in self._known:
            self._known[key] = load_demonstrations([path], legacy_pairing=legacy_pairing)
        return self._known[key]


@contextmanager
def _blaming(key: str) -> Iterator[None]:
    """Put the key of the configuration that names a demonstration before its error."""
    try:
        yield
    except DemonstrationError as error:
        raise DemonstrationError(f"{key}: {error}") from error


def build_algorithm(
    config: ReinforcementConfig, spec: BehaviorSpec, device: torch.device, seed: int, demonstrations: Demonstrations
) -> Algorithm:
    """Return the algorithm that trains one behavior, new.

    Raise `UnsupportedSpec` where there is no network for its observations or actions, `DemonstrationError` where a
    demonstration does not fit it. Equal arguments give equal weights and equal updates.
    """
    expert = None
    if isinstance(config, FromDemonstrations):
        expert = demonstrations.buffer(config, spec, device)
    elif config.behavioral_cloning is not None:
        expert = demonstrations.buffer(config.behavioral_cloning, spec, device, "behavioral_cloning")
    # A seed of their own: networks of policy and signals would else begin with the same numbers.
    generator = torch.Generator().manual_seed(int(np.random.SeedSequence([seed, 1]).generate_state(1)[0]))
    signals = build_signals(config.reward_signals, spec, device, generator, demonstrations)
    if config.implementation:
        algorithm: Algorithm = load_object(config.implementation)(config, spec, device, seed, signals, expert)
        return algorithm
    match config:
        case PPOConfig():
            return PPO(config, spec, device, seed, signals, expert)
        case SACConfig():
            return SAC(config, spec, device, seed, signals, expert)
        case POCAConfig():
            return POCA(config, spec, device, seed, signals, expert)
        case _:
            raise PluginError(f"{type(config).__qualname__} names no implementation")


def build_demonstrated(
    config: DemonstratedConfig, behavior: str, device: torch.device, seed: int, demonstrations: Demonstrations
) -> tuple[DemonstratedAlgorithm, BehaviorSpec, DemonstrationBuffer]:
    """Return a new algorithm that learns from demonstrations alone, with its spec and its demonstrations.

    The spec is that of the first demonstration; the others must fit it. Raise as `build_algorithm`.
    """
    shown = demonstrations.of(config)
    if not shown:
        raise DemonstrationError(f"behavior {behavior!r} has no demonstration to learn from; name at least one")
    spec = replace(shown[0].spec, name=behavior)
    expert = demonstrations.buffer(config, spec, device)
    algorithm: DemonstratedAlgorithm
    if isinstance(config, CloneConfig):
        algorithm = Cloning(config, spec, expert, device, seed)
    elif config.implementation:
        algorithm = load_object(config.implementation)(config, spec, device, seed, expert)
    else:
        raise PluginError(f"{type(config).__qualname__} names no implementation")
    return algorithm, spec, expert


def build_signals(
    section: RewardSignals,
    spec: BehaviorSpec,
    device: torch.device,
    generator: torch.Generator,
    demonstrations: Demonstrations,
) -> SignalSet:
    """Return a behavior's reward signals, new, in the order of the value heads.

    An `UnsupportedSpec` names the signal: each has network settings of its own, beside the policy's.
    """
    signals = []
    for name, config in section.active():
        key = f"reward_signals.{_key(section, name)}"
        try:
            signal = build_signal(name, key, config, spec, device, generator, demonstrations)
        except UnsupportedSpec as error:
            message = f"{key}.network_settings: {error}"
            raise UnsupportedSpec(spec.name, error.code, message) from error
        signals.append(NamedSignal.of(name, config, signal, device))
    return SignalSet(signals, device)


def build_signal(
    name: str,
    key: str,
    config: RewardSignalConfig,
    spec: BehaviorSpec,
    device: torch.device,
    generator: torch.Generator,
    demonstrations: Demonstrations,
) -> RewardSignal:
    """Return one reward signal, new. `key`: where the behavior's configuration has it."""
    if config.implementation:
        signal: RewardSignal = load_object(config.implementation)(config, spec, device, generator)
        return signal
    match config:
        case GAILConfig():
            expert = demonstrations.buffer(config, spec, device, key)
            return GAILReward(config, spec, device, generator, expert, name)
        case CuriosityConfig():
            return CuriosityReward(config, spec, device, generator)
        case RNDConfig():
            return RNDReward(config, spec, device, generator)
        case ExtrinsicConfig():
            return ExtrinsicReward()
        case _:
            raise PluginError(f"{type(config).__qualname__} names no implementation")


def _key(section: RewardSignals, name: str) -> str:
    """Return where the configuration has a signal: `gail_2` is the second entry of a list."""
    if not isinstance(section.gail, list) or not name.startswith("gail"):
        return name
    return f"gail[{int(name.removeprefix('gail_')) - 1 if '_' in name else 0}]"


def count_gpus() -> int:
    """Return how many GPUs this process can compute on: none where torch or the driver lacks CUDA."""
    return torch.cuda.device_count() if torch.cuda.is_available() else 0


def choose_device(settings: TorchSettings, gpus: int) -> torch.device:
    """Return the device that learns: the one named, else the first GPU if there is one, else the CPU.

    Raise `DeviceMissing` where a worker with so many `gpus` does not have it.
    """
    if settings.device is None:
        return torch.device("cuda" if gpus else "cpu")
    return _existing("device", settings.device, gpus)


def choose_collector_device(settings: TorchSettings, gpus: int) -> torch.device:
    """Return the device on which collectors act: the one named, else the CPU. Raise `DeviceMissing`.

    It is checked here: a collector that died of a missing device would be started again and again.
    """
    return _existing("collector_device", settings.collector_device or "cpu", gpus)


def _existing(key: str, setting: str, gpus: int) -> torch.device:
    kind, _, index = setting.partition(":")
    if kind == "cuda" and int(index or 0) >= gpus:  # torch.device("cuda:999").index is -25
        raise DeviceMissing(key, setting, gpus)
    return torch.device(setting)
