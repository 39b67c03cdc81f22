"""Makes the policies of a worker's collectors. Imports torch only where a GPU is named.

On a CPU they act in numpy, as edge collectors do: so a run ends with the same bits wherever its games are. On a GPU, if
the configuration names one, pictures, entities, memories and hypernetworks act in torch
(`worker.learning.networks.torch_policy`); dense actors do not: for a dozen rows of two small layers the copies to the
GPU and back would take longer than the work.
"""

from functools import partial
from typing import Final

from ludus.collector.acting import PolicyFactory
from ludus.collector.layout import ActorLayout
from ludus.collector.policy import Policy
from ludus.collector.stacked import StackedNetworks, StackedPolicies
from ludus.config.network import NetworkSettings
from ludus.protocol.spec import BehaviorSpec


class WorkerPolicyFactory(PolicyFactory):
    """Makes policies in numpy, and in torch for a GPU."""

    def policy(
        self, spec: BehaviorSpec, network_settings: NetworkSettings, head: str = "gaussian", device: str = "cpu"
    ) -> Policy:
        """Make the policy of a behavior."""
        if device == "cpu" or ActorLayout.of(spec, network_settings, head=head).plain:
            return super().policy(spec, network_settings, head)
        # The import takes 2 s and 200 MB, which most collectors save.
        from worker.learning.networks.torch_policy import TorchPolicy  # noqa: PLC0415

        return TorchPolicy(spec, network_settings, head=head, device=device)

    def stacked(
        self, spec: BehaviorSpec, network_settings: NetworkSettings, head: str = "gaussian", device: str = "cpu"
    ) -> StackedPolicies:
        """Make several policies of one behavior, which answer a batch together."""
        if device == "cpu" or ActorLayout.of(spec, network_settings, head=head).plain:
            return super().stacked(spec, network_settings, head)
        from worker.learning.networks.torch_policy import TorchPolicy  # noqa: PLC0415  as above

        return StackedNetworks(partial(TorchPolicy, spec, network_settings, head=head, device=device))


POLICIES: Final = WorkerPolicyFactory()
