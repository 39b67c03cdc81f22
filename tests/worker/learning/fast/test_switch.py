"""Which algorithms take their gradients by hand."""

import pytest

from ludus.collector.layout import ActorLayout
from ludus.config.network import NetworkSettings
from tests.worker.rollouts import make_spec
from worker.learning.fast.switch import autograd_only, covers


@pytest.mark.parametrize(
    ("observations", "network"),
    [((3, (1, 20, 20)), {}), ((3, (4, 5)), {}), ((3,), {"memory": {"memory_size": 8, "sequence_length": 4}})],
    ids=["picture", "entities", "memory"],
)
def test_other_networks_are_autograds(
    observations: tuple[int | tuple[int, ...], ...], network: dict[str, object]
) -> None:
    assert not covers(
        ActorLayout.of(make_spec(observations=observations, continuous=1), NetworkSettings.model_validate(network)),
    )


def test_the_switch_turns_derivatives_by_hand_off() -> None:
    layout = ActorLayout.of(make_spec(observations=(3,), continuous=1), NetworkSettings())

    assert covers(layout)
    with autograd_only():
        assert not covers(layout)
    assert covers(layout)
