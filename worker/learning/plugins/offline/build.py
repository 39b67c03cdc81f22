"""Builds the algorithm that a configuration names."""

import torch

from ludus.config.plugins.offline import FinetuneConfig, OfflineConfig
from ludus.protocol.spec import BehaviorSpec
from worker.experience.demonstrations import DemonstrationBuffer
from worker.learning.plugins.offline.iql import IQL
from worker.learning.plugins.offline.rebrac import ReBRAC
from worker.learning.rewards.signals import ExtrinsicReward, NamedSignal, SignalSet


def build_offline(
    config: OfflineConfig, spec: BehaviorSpec, device: torch.device, seed: int, expert: DemonstrationBuffer
) -> IQL | ReBRAC:
    """Return the algorithm that learns from demonstrations alone.

    Raise `UnsupportedSpec` where there is no network for this behavior, `DemonstrationError` for demonstrations that
    nothing can be learned from.
    """
    extrinsic = config.reward_signals.extrinsic
    assert extrinsic is not None, "the configuration demands it"
    signals = SignalSet([NamedSignal("extrinsic", extrinsic.strength, extrinsic.gamma, ExtrinsicReward())], device)
    return (IQL if config.algorithm == "iql" else ReBRAC)(config, spec, device, seed, signals, expert)


def build_finetune(
    config: FinetuneConfig,
    spec: BehaviorSpec,
    device: torch.device,
    seed: int,
    signals: SignalSet,
    expert: DemonstrationBuffer,
) -> IQL | ReBRAC:
    """Return the algorithm that learns from demonstrations and simulators. Raise as `build_offline`."""
    return (IQL if config.algorithm == "iql" else ReBRAC)(config, spec, device, seed, signals, expert)
