"""Makes the policies that a collector acts with. This one makes those of dense layers, which act in numpy."""

from collections.abc import Mapping
from typing import Any

from ludus.collector.layout import ActorLayout, UnsupportedSpec
from ludus.collector.policy import ActingPolicy, Policy
from ludus.collector.stacked import StackedActing, StackedPolicies
from ludus.protocol.spec import BehaviorSpec


class PolicyFactory:
    """Makes policies without weights.

    `head` is the kind of the last layer (`ludus.collector.heads`). `device` is where torch computes; numpy
    ignores it. Both methods raise `UnsupportedSpec` where there is no network for the behavior.
    """

    def policy(
        self, spec: BehaviorSpec, network_settings: Mapping[str, Any], head: str = "gaussian", device: str = "cpu"
    ) -> Policy:
        """Make the policy of a behavior."""
        del device
        _check(spec, network_settings, head)
        return ActingPolicy(spec, network_settings, head=head)

    def stacked(
        self, spec: BehaviorSpec, network_settings: Mapping[str, Any], head: str = "gaussian", device: str = "cpu"
    ) -> StackedPolicies:
        """Make several policies of one behavior, which answer a batch together."""
        del device
        _check(spec, network_settings, head)
        return StackedActing(spec, network_settings, head=head)


def _check(spec: BehaviorSpec, network_settings: Mapping[str, Any], head: str) -> None:
    if not ActorLayout.of(spec, network_settings, head=head).plain:
        raise UnsupportedSpec(spec.name, "torch_missing", "its network needs torch, and this collector runs without it")
