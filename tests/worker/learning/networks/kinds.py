"""One behavior for each kind of network, and what each sees."""

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ludus.collector.layout import NetworkGraph
from ludus.config.network import NetworkSettings
from ludus.protocol.spec import BehaviorSpec
from tests.worker.rollouts import make_spec, random_masks, random_observation
from worker.learning.networks.actor import Actor
from worker.onnx.graph import acting_graph


class Kind(NamedTuple):
    """A network: the behavior, its settings, and the head of the actor."""

    spec: BehaviorSpec
    settings: dict[str, Any]
    head: str = "gaussian"

    @property
    def network(self) -> NetworkSettings:
        return NetworkSettings.model_validate({"hidden_units": 16, "num_layers": 2, **self.settings})


BOTH = {"continuous": 2, "branches": (3, 2)}
PICTURE, ENTITIES = (3, 40, 37), (5, 3)
MEMORY = {"memory": {"memory_size": 12}}


def privileged(*names: str) -> dict[str, Any]:
    """Settings under which only the critic sees these observations."""
    return {"privileged_observations": list(names)}


EVERYTHING = make_spec(observations=(4, PICTURE, ENTITIES, 2, (4, 6)), goal=3, **BOTH)

PLAIN = {
    "continuous": Kind(make_spec(observations=(3, 2), continuous=2), {"normalize": True}),
    "discrete": Kind(make_spec(observations=(3, 2), branches=(3, 2)), {"normalize": True}),
    "hybrid": Kind(make_spec(observations=(3, 2), **BOTH), {"activation": "tanh"}),
    "one layer": Kind(make_spec(**BOTH), {"num_layers": 1, "activation": "relu"}),
    "goal not conditioning": Kind(make_spec(observations=(3, 2), goal=1, **BOTH), {"goal_conditioning_type": "none"}),
    "vector and nothing": Kind(make_spec(observations=(0, 3), **BOTH), {"normalize": True}),
    "goal of nothing": Kind(make_spec(observations=(3, 0), goal=1, **BOTH), {}),
    "nothing": Kind(make_spec(observations=(0,), **BOTH), {"normalize": True}),
    "privileged": Kind(make_spec(observations=(3, 2), **BOTH), {"normalize": True, **privileged("vector 0")}),
    "picture privileged": Kind(make_spec(observations=(PICTURE, 3, 2), **BOTH), privileged("image 0", "vector 2")),
    "squashed": Kind(make_spec(observations=(3, 2), continuous=2), {"normalize": True}, head="squashed"),
    "squashed hybrid": Kind(make_spec(observations=(3, 2), **BOTH), {}, head="squashed"),
    "squashed discrete": Kind(make_spec(branches=(3, 2)), {}, head="squashed"),
    "epsilon greedy": Kind(make_spec(observations=(3, 2), branches=(3, 2)), {"normalize": True}, "epsilon_greedy"),
    "noisy": Kind(make_spec(observations=(3, 2), continuous=2), {"normalize": True}, "gaussian_noise"),
}
NORMED = {
    "layer norm": Kind(make_spec(observations=(3, 2), **BOTH), {"hidden_type": "layer_norm", "normalize": True}),
    "layer norm, one layer": Kind(make_spec(**BOTH), {"hidden_type": "layer_norm", "num_layers": 1}),
    "simba": Kind(
        make_spec(observations=(3, 2), continuous=2),
        {"hidden_type": "simba", "normalize": True, "activation": "relu"},
        head="squashed",
    ),
    "simba, epsilon greedy": Kind(make_spec(branches=(3, 2)), {"hidden_type": "simba"}, "epsilon_greedy"),
}
OTHERS = {
    **NORMED,
    "layer norm and memory": Kind(make_spec(observations=(3, 2), **BOTH), {"hidden_type": "layer_norm", **MEMORY}),
    "simba and memory": Kind(make_spec(observations=(3, 2), **BOTH), {"hidden_type": "simba", **MEMORY}),
    "picture, layer norm": Kind(make_spec(observations=(PICTURE, 3), **BOTH), {"hidden_type": "layer_norm"}),
    "picture, simba": Kind(make_spec(observations=(PICTURE, 3), **BOTH), {"hidden_type": "simba", "normalize": True}),
    **{
        f"picture {encoder}": Kind(make_spec(observations=(shape,), branches=(3,)), {"vis_encode_type": encoder})
        for encoder, shape in {
            "fully_connected": (3, 7, 5),
            "match3": (4, 8, 9),
            "simple": PICTURE,
            "nature_cnn": PICTURE,
            "resnet": (1, 16, 20),
        }.items()
    },
    "entities": Kind(make_spec(observations=(ENTITIES,), **BOTH), {}),
    "entities and vector": Kind(make_spec(observations=(ENTITIES, 4), **BOTH), {"normalize": True}),
    "entities of nothing": Kind(make_spec(observations=((3, 0), 4), **BOTH), {}),
    "picture and nothing": Kind(make_spec(observations=(PICTURE, 0), **BOTH), {"normalize": True}),
    "entities and nothing": Kind(make_spec(observations=(ENTITIES, 0), **BOTH), {}),
    "goal": Kind(make_spec(observations=(3, 2), goal=1, **BOTH), {"normalize": True}),
    "goal, one layer": Kind(make_spec(observations=(3, 2), goal=0, **BOTH), {"num_layers": 1, "activation": "tanh"}),
    "goal picture": Kind(make_spec(observations=(3, PICTURE), goal=1, **BOTH), {}),
    "memory": Kind(make_spec(observations=(3, 2), **BOTH), {"normalize": True, **MEMORY}),
    "memory, squashed": Kind(make_spec(continuous=2), MEMORY, head="squashed"),
    "memory, epsilon greedy": Kind(make_spec(branches=(9, 8)), {"normalize": True, **MEMORY}, "epsilon_greedy"),
    "picture, noisy": Kind(make_spec(observations=(PICTURE,), continuous=2), {}, "gaussian_noise"),
    "picture, epsilon greedy": Kind(make_spec(observations=(PICTURE,), branches=(3,)), {}, "epsilon_greedy"),
    "everything": Kind(EVERYTHING, {"normalize": True, **MEMORY}),
    "everything, some privileged": Kind(
        EVERYTHING, {"normalize": True, **MEMORY, **privileged("vector 0", "image 1", "entities 2")}
    ),
    "everything, goal privileged": Kind(EVERYTHING, {"normalize": True, **privileged("vector 3", "entities 4")}),
    "everything, squashed": Kind(EVERYTHING, {"normalize": True, **MEMORY}, head="squashed"),
}
KINDS = {**PLAIN, **OTHERS}


def make_actor(kind: Kind, seed: int = 1) -> Actor:
    """An actor that has moved away from its start: every bias and statistic counts."""
    generator = torch.Generator().manual_seed(seed)
    actor = Actor(kind.spec, kind.network, generator, head=kind.head)
    with torch.no_grad():
        for parameter in actor.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.1)
    for name, values in actor.head_parameters().items():
        if name == "epsilon":
            values.fill_(0.3)
        if name == "noise_log_sigma":
            values.fill_(-3.0)  # so small that no action is clipped
    observations, _ = see(kind.spec, 50, seed)
    actor.body.update_normalizer(observations)
    return actor


def see(spec: BehaviorSpec, rows: int, seed: int = 2) -> tuple[list[Tensor], Tensor]:
    """Observations, pictures as bytes and some entities padding, and action masks."""
    rng = np.random.default_rng(seed)
    observations = [torch.from_numpy(random_observation(item, rows, rng)) for item in spec.observations]
    return observations, torch.from_numpy(random_masks(rng, rows, spec.actions.discrete_branches))


def remember(actor: Actor, rows: int, seed: int = 3) -> Tensor | None:
    """Memories before a step; None where there are none."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(rows, actor.memory_size, generator=generator) if actor.memory_size else None


def graph_of(spec: BehaviorSpec, settings: NetworkSettings, head: str = "gaussian") -> NetworkGraph | None:
    """The graph that a learner of the behavior sends to its collectors."""
    return acting_graph(Actor(spec, settings, torch.Generator(), head=head))
