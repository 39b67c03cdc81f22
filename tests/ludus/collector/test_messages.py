"""Messages between learner and collector: each arrives as it was sent, or is refused."""

import json

import pytest

from ludus.collector import commands
from ludus.collector.arena import Arena
from ludus.collector.channel import Frame
from ludus.collector.messages import Kind, Message, read
from ludus.config.network import MemorySettings, NetworkSettings
from tests.worker.rollouts import make_spec

NETWORK = NetworkSettings(hidden_units=8, activation="tanh", memory=MemorySettings(memory_size=6))


@pytest.fixture
def admission() -> commands.Admit:
    """The description of an evaluated policy with a memory."""
    evaluated = (commands.NetworkSpec(NETWORK, "squashed"), commands.NetworkSpec(NetworkSettings(), "gaussian"))
    policy = commands.PolicySpec(NETWORK, weights_size=10, time_horizon=64, evaluated=evaluated)
    layout = Arena.create(make_spec(continuous=1), 8).layout
    return commands.Admit(runner=1, arena=layout, policy=policy, weight_buffers=2, low_blocks=3)


def arrived(payload: bytes) -> Message:
    return read(Frame(Kind.MESSAGE, payload))


def test_network_settings_travel_with_the_policies_that_they_describe(admission: commands.Admit) -> None:
    assert arrived(admission.pack()) == admission


def test_network_settings_are_readable_text_in_the_form_of_a_configuration(admission: commands.Admit) -> None:
    fields = json.loads(admission.pack().partition(b"\n")[2])

    assert fields["policy"]["network_settings"] == NETWORK.model_dump(mode="json")


@pytest.mark.parametrize("change", [{"width": 8}, {"activation": "gelu"}, {"hidden_units": 0}], ids=str)
def test_settings_that_this_collector_does_not_know_are_refused(
    admission: commands.Admit, change: dict[str, object]
) -> None:
    name, _, text = admission.pack().partition(b"\n")
    fields = json.loads(text)
    fields["policy"]["network_settings"] |= change

    with pytest.raises(ValueError, match=next(iter(change))):
        arrived(name + b"\n" + json.dumps(fields).encode())
