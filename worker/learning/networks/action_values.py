"""Q networks of continuous actions; in `TrackedActionValues` with slowly moving copies, the targets; in
`SquashedActorCritic` with a policy that maximises rewards and entropy, as SAC's does.

Each is a `CriticNetwork` of SAC: observation and action, joined behind the encoders, with some outputs for each reward
signal. Observations come as an actor has encoded them.

Dimensions: `N` networks, `R` rows, `S` signals, `K` outputs of a network for each signal, `C` columns.
"""

import copy
import math
from collections.abc import Callable
from typing import Generic, TypeVar

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ludus.collector.spec_checks import UnsupportedSpec
from ludus.config.hyperparameters import EntropyHyperparameters
from ludus.config.network import NetworkSettings
from ludus.config.trainer import OffPolicyConfig
from ludus.protocol.spec import BehaviorSpec
from worker.learning.functional.squashed import Squashed, draw_squashed
from worker.learning.networks.actor import Actor
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


Critics = TypeVar("Critics", bound=ActionValues)


class SquashedActorCritic(Generic[Critics]):
    """A policy of squashed continuous actions, its critics, and its entropy coefficient."""

    def __init__(
        self,
        config: OffPolicyConfig,
        spec: BehaviorSpec,
        device: torch.device,
        generator: torch.Generator,
        build_critics: Callable[[], Critics],
    ) -> None:
        """Raise `UnsupportedSpec` where there is no network for this behavior."""
        hyper = config.hyperparameters
        assert isinstance(hyper, EntropyHyperparameters), "the trainer's own"
        self.actor = Actor(spec, config.network_settings, generator, head=config.head).to(device)
        self.critics = build_critics().to(device)
        self.columns = spec.actions.continuous_size
        self.log_coefficient = nn.Parameter(torch.tensor(math.log(hyper.init_entcoef), device=device))
        """The logarithm of alpha."""

    def parameters(self) -> list[Tensor]:
        """Return all parameters, those of targets and the running statistics of critics included."""
        critics = self.critics
        return [*self.actor.parameters(), *critics.parameters(), *critics.buffers(), self.log_coefficient]

    def act(self, encoded: Encoded, noise: Callable[[int, int], Float[Tensor, "R C"] | None]) -> Squashed:
        """Draw an action for each row; `noise` returns standard normal noise of so many columns and rows."""
        head, _ = self.actor(encoded)
        drawn = noise(self.columns, len(head))
        assert drawn is not None, "there are columns"
        return draw_squashed(head[:, : self.columns], head[:, self.columns :], drawn)

    def bonus(self, squashed: Squashed) -> Float[Tensor, "R 1"]:
        """Return what the entropy of actions is worth: minus alpha times their log-probability."""
        return -(self.log_coefficient.detach().exp() * squashed.log_prob).unsqueeze(1)

    def coefficient_loss(self, squashed: Squashed, weight: Float[Tensor, " R"]) -> Float[Tensor, ""]:
        """Return what log alpha descends: it falls while the entropy is above its target, -C nats."""
        entropy = -torch.sum(squashed.log_prob.detach() * weight)
        return self.log_coefficient * (entropy + self.columns)
