"""Q networks of continuous actions, and, in `TrackedActionValues`, their slowly moving copies, the targets.

Each is a `CriticNetwork` of SAC: observation and action, joined behind the encoders, with some outputs for each reward
signal. Observations come as an actor has encoded them.

Dimensions: `N` networks, `R` rows, `S` signals, `K` outputs of a network for each signal, `C` columns.
"""

import copy

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ludus.collector.spec_checks import UnsupportedSpec
from ludus.config.network import NetworkSettings
from ludus.protocol.spec import BehaviorSpec
from worker.learning.networks.encoder import Encoded
from worker.learning.networks.soft_actor_critic import CriticNetwork, constant


class ActionValues(nn.Module):
    """`count` Q networks with `outputs` for each signal."""

    def __init__(
        self,
        spec: BehaviorSpec,
        settings: NetworkSettings,
        signals: int,
        generator: torch.Generator,
        *,
        count: int,
        outputs: int = 1,
        network: type[CriticNetwork] = CriticNetwork,
    ) -> None:
        """Raise `UnsupportedSpec` for discrete actions, and where there is no network for this behavior."""
        super().__init__()
        if spec.actions.discrete_branches or not spec.actions.continuous_size:
            message = "this trainer learns continuous actions only; announce no branches, or take another trainer_type"
            raise UnsupportedSpec(spec.name, "actions_discrete", message)
        actions = spec.actions.continuous_size
        self._shape = signals, outputs
        self._networks = [network(spec, settings, signals, outputs, generator, actions) for _ in range(count)]
        self.networks = nn.ModuleList(self._networks)

    def encodings(self, encoded: Encoded) -> list[Tensor]:
        """Return what each network's encoders make of observations, (R, I) each: the same for every action."""
        return [network.encoding(encoded) for network in self._networks]

    def q(self, encodings: list[Tensor], actions: Float[Tensor, "R C"]) -> Float[Tensor, "N R S K"]:
        """Return Q of actions."""
        pairs = zip(self._networks, encodings, strict=True)
        return self._by_signal([network(encoding, actions, 1) for network, encoding in pairs])

    def q_of_policy(self, encodings: list[Tensor], actions: Float[Tensor, "R C"]) -> Float[Tensor, "n R S K"]:
        """Return Q of actions that a policy derives from: weights and encodings are constants.

        Fewer `encodings` than networks ask only the first ones.
        """
        with constant(self.networks):
            networks = self._networks[: len(encodings)]
            pairs = zip(networks, encodings, strict=True)
            return self._by_signal([network(encoding.detach(), actions, 1) for network, encoding in pairs])

    def _by_signal(self, outputs: list[Tensor]) -> Float[Tensor, "n R S K"]:
        stacked = torch.stack(outputs)
        return stacked.view(*stacked.shape[:2], *self._shape)


class TrackedActionValues(ActionValues):
    """Q networks and their targets."""

    def __init__(
        self,
        spec: BehaviorSpec,
        settings: NetworkSettings,
        signals: int,
        generator: torch.Generator,
        *,
        count: int,
        outputs: int = 1,
    ) -> None:
        super().__init__(spec, settings, signals, generator, count=count, outputs=outputs)
        self._targets = [copy.deepcopy(network).requires_grad_(requires_grad=False) for network in self._networks]
        self.targets = nn.ModuleList(self._targets)

    @torch.no_grad()
    def target_q(self, encoded: Encoded, actions: Float[Tensor, "R C"]) -> Float[Tensor, "N R S K"]:
        """Return Q of the targets."""
        return self._by_signal([target(target.encoding(encoded), actions, 1) for target in self._targets])

    @torch.no_grad()
    def track(self, tau: float) -> None:
        """Move the targets the part `tau` of their way to the networks."""
        sources = [parameter.detach() for parameter in self.networks.parameters()]
        torch._foreach_lerp_(list(self.targets.parameters()), sources, tau)
