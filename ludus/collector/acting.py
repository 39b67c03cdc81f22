"""Makes the policies that a collector acts with. This one makes those of dense layers, which act in numpy."""

from collections.abc import Mapping
from typing import Any

from ludus.collector.layout import ActorLayout, UnsupportedSpec
from ludus.collector.policy import ActingPolicy, Policy
from ludus.collector.stacked import StackedActing, StackedPolicies
from ludus.protocol.spec import BehaviorSpec


class PolicyFactory:
    """Makes policies without weights.

    `squashed` is true where SAC learns, because its actions pass through tanh. `device` is where torch computes; numpy
    ignores it. Both methods raise `UnsupportedSpec` where there is no network for the behavior.
    """

    def policy(
        self, spec: BehaviorSpec, network_settings: Mapping[str, Any], squashed: bool = False, device: str = "cpu"
    ) -> Policy:
        """Make the policy of a behavior."""
        del device
        _check(spec, network_settings, squashed)
        return ActingPolicy(spec, network_settings, squashed=squashed)

    def stacked(
        self, spec: BehaviorSpec, network_settings: Mapping[str, Any], squashed: bool = False, device: str = "cpu"
    ) -> StackedPolicies:
        """Make several policies of one behavior, which answer a batch together."""
        del device
        _check(spec, network_settings, squashed)
        return StackedActing(spec, network_settings, squashed=squashed)


def _check(spec: BehaviorSpec, network_settings: Mapping[str, Any], squashed: bool) -> None:
    if not ActorLayout.of(spec, network_settings, squashed=squashed).plain:
        raise UnsupportedSpec(spec.name, "torch_missing", "its network needs torch, and this collector runs without it")
