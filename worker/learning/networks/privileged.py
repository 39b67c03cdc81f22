"""Observations that only the critic sees: `network_settings.privileged_observations` (asymmetric actor-critic, Pinto et
al. 2017, https://arxiv.org/abs/1710.06542).

The critic is used in training alone, so that it may know what the policy never will. What is encoded for both has the
actor's parts first, then the privileged ones, with statistics of their own:

    vectors, pictures, entities of the actor | vectors, pictures, entities of the critic alone

An actor reads the parts that it has encoders for, and these come first: it cannot meet the others. `joined` makes of
all of them what the critic's encoders read. Where nothing is privileged there is nothing behind the bar, and `joined`
returns what it got.
"""

from itertools import accumulate, pairwise

import torch

from ludus.collector.layout import BodyLayout, privileged_observations
from ludus.collector.spec_checks import ObservationKind
from ludus.config.network import NetworkSettings
from ludus.protocol.spec import BehaviorSpec, ObservationSpec
from worker.learning.networks.body import ObservationInputs
from worker.learning.networks.encoder import Encoded

_ORDER = (ObservationKind.VECTOR, ObservationKind.VISUAL, ObservationKind.ENTITIES)


class PrivilegedInputs(ObservationInputs):
    """The inputs of a critic beside those that it shares with its actor."""

    def __init__(self, spec: BehaviorSpec, settings: NetworkSettings) -> None:
        """Raise `UnsupportedSpec` as `privileged_observations`."""
        unseen = privileged_observations(spec, settings)
        actor = BodyLayout.of(spec.observations, settings, spec.name, unseen=unseen)
        super().__init__(BodyLayout.of(spec.observations, settings, spec.name, unseen=actor.seen))
        indices = (*actor.seen, *self.layout.seen)
        self.critic_observations: tuple[ObservationSpec, ...] = tuple(spec.observations[index] for index in indices)
        """All that the critic sees, in the order of `joined`."""
        ends = [0, *accumulate(_parts(layout, kind) for layout in (actor, self.layout) for kind in _ORDER)]
        self._slices = [slice(*pair) for pair in pairwise(ends)]
        """The actor's vectors, pictures and entities among all parts, then the critic's."""

    def joined(self, encoded: Encoded) -> Encoded:
        """Return the inputs of the critic's encoders, of everything that is encoded."""
        if not self.layout.seen:
            return encoded
        parts = [encoded[part] for part in self._slices]
        vectors, visuals, entities = (parts[kind] + parts[kind + len(_ORDER)] for kind in range(len(_ORDER)))
        return [*([torch.cat(vectors, 1)] if vectors else []), *visuals, *entities]


def _parts(layout: BodyLayout, kind: ObservationKind) -> int:
    """Return how many parts of an `Encoded` observations of a kind make: all vectors are one."""
    count = len(layout.of_kind(kind))
    return min(count, 1) if kind is ObservationKind.VECTOR else count
