"""Which algorithms take their gradients by hand."""

import pytest

from ludus.collector.layout import ActorLayout
from ludus.config.network import NetworkSettings
from tests.worker.rollouts import make_spec
from worker.learning.fast.switch import Case, autograd_only, covers


@pytest.mark.parametrize("case", Case)
@pytest.mark.parametrize(
    ("observations", "network"),
    [((3, (1, 20, 20)), {}), ((3, (4, 5)), {}), ((3,), {"memory": {"memory_size": 8, "sequence_length": 4}})],
    ids=["picture", "entities", "memory"],
)
def test_other_networks_are_autograds(
    case: Case, observations: tuple[int | tuple[int, ...], ...], network: dict[str, object]
) -> None:
    assert not covers(
        case,
        ActorLayout.of(make_spec(observations=observations, continuous=1), NetworkSettings.model_validate(network)),
    )


@pytest.mark.parametrize("case", Case)
def test_the_switch_turns_every_case_off(case: Case) -> None:
    layout = ActorLayout.of(make_spec(observations=(3,), continuous=1), NetworkSettings())

    assert covers(case, layout)
    with autograd_only():
        assert not covers(case, layout)
    assert covers(case, layout)
