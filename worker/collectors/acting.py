"""Which policy a collector acts with. Imports torch only for behaviors that need it.

Plain actors, squashed ones too, act in numpy (`networks.policy`); pictures, entities, memories and hypernetworks in
torch (`networks.torch_policy`), and those alone on a GPU, if one is named: for a dozen rows of two small layers the way
there and back would take longer than the work.
"""

from collections.abc import Mapping
from typing import Any

from ludus.collector.layout import ActorLayout
from ludus.collector.policy import ActingPolicy, Policy
from ludus.collector.stacked import StackedActing, StackedPolicies
from ludus.protocol.spec import BehaviorSpec


def make_policy(
    spec: BehaviorSpec, network_settings: Mapping[str, Any], squashed: bool = False, device: str = "cpu"
) -> Policy:
    """Return the policy of a behavior, without weights. Raise `UnsupportedSpec` where there is no network for it.

    `squashed` is true where SAC learns: its actions pass through tanh. `device` is where torch computes.
    """
    if ActorLayout.of(spec, network_settings, squashed=squashed).plain:
        return ActingPolicy(spec, network_settings, squashed=squashed)
    from worker.learning.networks.torch_policy import TorchPolicy  # noqa: PLC0415  (2 s and 200 MB that most collectors save)

    return TorchPolicy(spec, network_settings, squashed=squashed, device=device)


def make_stacked(
    spec: BehaviorSpec, network_settings: Mapping[str, Any], squashed: bool = False, device: str = "cpu"
) -> StackedPolicies:
    """Return what answers for several policies of a behavior at once, without weights; the rest as `make_policy`."""
    if ActorLayout.of(spec, network_settings, squashed=squashed).plain:
        return StackedActing(spec, network_settings, squashed=squashed)
    from worker.learning.networks.torch_policy import StackedTorch  # noqa: PLC0415  (2 s and 200 MB that most collectors save)

    return StackedTorch(spec, network_settings, squashed=squashed, device=device)
