"""Makes the policies of a worker's collectors. Imports torch only where a GPU is named.

On a CPU they act as edge collectors do: so a run ends with the same bits wherever its games are. On a GPU, if the
configuration names one, pictures, entities, memories and hypernetworks act in torch
(`worker.learning.networks.torch_policy`); plain actors do not: for a dozen rows of two small layers the copies to the
GPU and back would take longer than the work.
"""

from typing import Final

from ludus.collector.layout import ActorLayout, NetworkGraph
from ludus.collector.policy import Network, PolicyFactory
from ludus.config.network import NetworkSettings
from ludus.protocol.spec import BehaviorSpec


class WorkerPolicyFactory(PolicyFactory):
    """Makes policies as everywhere, and in torch for a GPU."""

    def policy(
        self,
        spec: BehaviorSpec,
        network_settings: NetworkSettings,
        head: str = "gaussian",
        device: str = "cpu",
        graph: NetworkGraph | None = None,
    ) -> Network:
        """Make the policy of a behavior."""
        if device == "cpu" or ActorLayout.of(spec, network_settings, head=head).plain:
            return super().policy(spec, network_settings, head, device, graph)
        # The import takes 2 s and 200 MB, which most collectors save.
        from worker.learning.networks.torch_policy import TorchPolicy  # noqa: PLC0415

        return TorchPolicy(spec, network_settings, head=head, device=device)


POLICIES: Final = WorkerPolicyFactory()
