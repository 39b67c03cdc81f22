"""Replies are what protobuf would make of them."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ludus.collector.unity.encoding import CLOSING_REPLY, ActionEncoder, reset_reply, step_reply
from ludus.protocol.mlagents import unity_pb2 as unity
from ludus.protocol.spec import ActionSpec


@given(
    rows=st.integers(1, 5),
    continuous=st.integers(0, 3),
    branches=st.lists(st.sampled_from([1, 2, 128, 129, 300, 20_000]), max_size=3),
    seed=st.integers(0, 1000),
)
def test_actions_arrive_in_the_fields_of_today_and_in_the_deprecated_one(
    rows: int, continuous: int, branches: list[int], seed: int
) -> None:
    rng = np.random.default_rng(seed)
    moves = rng.uniform(-1, 1, (rows, continuous)).astype(np.float32)
    choices = np.stack([rng.integers(0, size, rows) for size in branches], 1) if branches else np.zeros((rows, 0))
    encoder = ActionEncoder("Walker?team=0", ActionSpec(continuous, tuple(branches)))

    reply = unity.UnityMessageProto.FromString(step_reply([encoder.encode(moves, choices.astype(np.int32))]))

    assert reply.header.status == 200
    assert reply.unity_input.rl_input.command == unity.STEP
    actions = reply.unity_input.rl_input.agent_actions["Walker?team=0"].value
    assert len(actions) == rows
    for index, action in enumerate(actions):
        assert list(action.continuous_actions) == moves[index].tolist()
        assert list(action.discrete_actions) == choices[index].tolist()
        assert list(action.vector_actions_deprecated) == [*moves[index].tolist(), *map(float, choices[index])]


@pytest.mark.parametrize(("continuous", "branches"), [(2, ()), (0, (3, 2)), (2, (4,))])
def test_the_bytes_are_protobufs_own(continuous: int, branches: tuple[int, ...]) -> None:
    moves = np.linspace(-1, 1, 3 * continuous, dtype=np.float32).reshape(3, continuous)
    choices = np.ones((3, len(branches)), np.int32)
    expected = unity.UnityMessageProto(header=unity.HeaderProto(status=200))
    for index in range(3):
        action = expected.unity_input.rl_input.agent_actions["A"].value.add()
        action.vector_actions_deprecated.extend([*moves[index].tolist(), *choices[index].tolist()])
        action.continuous_actions.extend(moves[index].tolist())
        action.discrete_actions.extend(choices[index].tolist())

    reply = step_reply([ActionEncoder("A", ActionSpec(continuous, branches)).encode(moves, choices)])

    assert reply == expected.SerializeToString()


def test_several_behaviors_have_an_entry_each() -> None:
    one, two = ActionEncoder("A", ActionSpec(1)), ActionEncoder("B?team=1", ActionSpec(0, (2,)))
    nothing = np.zeros((1, 0), np.float32)
    entries = [
        one.encode(np.ones((2, 1), np.float32), np.zeros((2, 0), np.int32)),
        two.encode(nothing, np.ones((1, 1), np.int32)),
    ]

    actions = unity.UnityMessageProto.FromString(step_reply(entries)).unity_input.rl_input.agent_actions

    assert {name: len(part.value) for name, part in actions.items()} == {"A": 2, "B?team=1": 1}


def test_resets_carry_side_channels_and_no_actions() -> None:
    reply = unity.UnityMessageProto.FromString(reset_reply(b"frames"))

    assert reply.header.status == 200
    assert reply.unity_input.rl_input.command == unity.RESET
    assert reply.unity_input.rl_input.side_channel == b"frames"
    assert not reply.unity_input.rl_input.agent_actions


def test_the_end_is_status_400_and_nothing_else() -> None:
    assert unity.UnityMessageProto.FromString(CLOSING_REPLY) == unity.UnityMessageProto(
        header=unity.HeaderProto(status=400)
    )


def test_a_field_that_is_added_to_the_messages_must_be_encoded_by_hand_too() -> None:
    rl_input = unity.UnityInputProto.DESCRIPTOR.fields_by_name["rl_input"].message_type
    entry = rl_input.fields_by_name["agent_actions"].message_type
    actions = entry.fields_by_name["value"].message_type
    action = actions.fields_by_name["value"].message_type
    fields = {kind.name: {field.name for field in kind.fields} for kind in (rl_input, actions, action)}

    # `value` of an action is the value estimate, which players ignore. Add a new field to the encoders, and here.
    assert fields == {
        "UnityRLInputProto": {"agent_actions", "command", "side_channel"},
        "ListAgentActionProto": {"value"},
        "AgentActionProto": {"vector_actions_deprecated", "value", "continuous_actions", "discrete_actions"},
    }
