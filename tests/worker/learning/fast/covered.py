"""Behaviors and networks whose gradients are taken by hand."""

from dataclasses import dataclass

from hypothesis import strategies as st

from ludus.protocol.spec import BehaviorSpec
from tests.worker.rollouts import make_spec
from worker.learning.fast.dense import ACTIVATION_GRADIENTS

TWO_SIGNALS = {"extrinsic": {"gamma": 0.9}, "rnd": {"gamma": 0.8, "network_settings": {"hidden_units": 8}}}


@dataclass
class Setting:
    """A behavior and a network that the switch covers."""

    spec: BehaviorSpec
    network: dict[str, object]
    masked: bool
    signals: int
    seed: int


@st.composite
def covered(draw: st.DrawFn) -> Setting:
    """Any mixture of columns, branches and masks; any depth, width and activation of an MLP; one or two signals."""
    columns = draw(st.integers(0, 3))
    branches = tuple(draw(st.lists(st.integers(1, 4), min_size=0 if columns else 1, max_size=3)))
    observations = tuple(draw(st.lists(st.integers(1, 4), min_size=1, max_size=2)))
    network = {
        "hidden_units": draw(st.integers(1, 9)),
        "num_layers": draw(st.integers(1, 3)),
        "activation": draw(st.sampled_from(sorted(ACTIVATION_GRADIENTS))),
        "normalize": draw(st.booleans()),
    }
    spec = make_spec(observations=observations, continuous=columns, branches=branches)
    return Setting(spec, network, draw(st.booleans()), draw(st.integers(1, 2)), draw(st.integers(0, 2**16)))
