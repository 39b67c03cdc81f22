"""Makes the policies that a collector acts with, in numpy."""

from functools import partial

from ludus.collector.layout import ActorLayout
from ludus.collector.policy import ActingPolicy, NetworkPolicy, Policy
from ludus.collector.stacked import StackedActing, StackedNetworks, StackedPolicies
from ludus.config.network import NetworkSettings
from ludus.protocol.spec import BehaviorSpec


class PolicyFactory:
    """Makes policies without weights.

    `head` is the kind of the last layer (`ludus.collector.heads`). `device` is where torch computes; numpy
    ignores it. Both methods raise `UnsupportedSpec` where there is no network for the behavior.
    """

    def policy(
        self, spec: BehaviorSpec, network_settings: NetworkSettings, head: str = "gaussian", device: str = "cpu"
    ) -> Policy:
        """Make the policy of a behavior."""
        del device
        kind = ActingPolicy if ActorLayout.of(spec, network_settings, head=head).plain else NetworkPolicy
        return kind(spec, network_settings, head=head)

    def stacked(
        self, spec: BehaviorSpec, network_settings: NetworkSettings, head: str = "gaussian", device: str = "cpu"
    ) -> StackedPolicies:
        """Make several policies of one behavior, which answer a batch together."""
        del device
        if ActorLayout.of(spec, network_settings, head=head).plain:
            return StackedActing(spec, network_settings, head=head)
        return StackedNetworks(partial(NetworkPolicy, spec, network_settings, head=head))
