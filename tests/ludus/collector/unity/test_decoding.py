"""Agents of players become columns: the same numbers as protobuf's own, whatever the encoding leaves out."""

import random
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ludus.collector.unity.decoding import InfoReader
from ludus.protocol.codes import CloseCode, ProtocolError
from ludus.protocol.mlagents import agent_pb2 as agent
from ludus.protocol.mlagents import shallow_pb2 as shallow
from ludus.protocol.spec import DimensionProperty, ObservationType
from tests.ludus.collector.unity.messages import NAME, brain, infos_of, numbers, reader_of, silent

FLOATS = st.floats(-1e6, 1e6, width=32)


@st.composite
def agents(draw: st.DrawFn) -> list[Any]:
    """Agents with two sensors; every field takes its default now and then, and is absent then."""
    count = draw(st.integers(1, 6))
    ids = draw(st.lists(st.integers(0, 2**31 - 1), min_size=count, max_size=count, unique=True))
    grouped = draw(st.booleans())
    return [
        agent.AgentInfoProto(
            id=each,
            reward=draw(st.sampled_from([0.0, 0.5, -1.0])),
            done=draw(st.booleans()),
            max_step_reached=draw(st.booleans()),
            observations=[
                numbers(draw(st.lists(FLOATS, min_size=3, max_size=3)), name="ray"),
                numbers([[draw(FLOATS)], [draw(FLOATS)]], properties=(4, 1)),
            ],
            group_id=draw(st.integers(0, 3)) if grouped else 0,
            group_reward=draw(st.sampled_from([0.0, 2.0])) if grouped else 0.0,
        )
        for each in ids
    ]


@given(agents())
def test_columns_hold_what_protobuf_reads_one_by_one(sent: list[Any]) -> None:
    batch = reader_of(sent).read(infos_of(sent))

    for part, expected in (
        (batch.decisions, [info for info in sent if not info.done]),
        (batch.terminals, [info for info in sent if info.done]),
    ):
        if part is None:
            assert not expected
            continue
        assert part.agent_ids.tolist() == [info.id for info in expected]
        assert part.rewards.tolist() == [info.reward for info in expected]
        for index, shape in enumerate([(3,), (2, 1)]):
            wanted = [
                np.array(info.observations[index].float_data.data, np.float32).reshape(shape) for info in expected
            ]
            np.testing.assert_array_equal(part.observations[index], wanted)
        groups = np.zeros(len(expected)) if part.group_ids is None else part.group_ids
        assert groups.tolist() == [info.group_id for info in expected]
        if part.group_ids is not None:
            assert part.group_rewards is not None
            assert part.group_rewards.tolist() == [info.group_reward for info in expected]
    if batch.terminals is not None:
        assert batch.terminals.truncated.tolist() == [info.max_step_reached for info in sent if info.done]


def test_the_spec_is_that_of_the_announcement_and_the_first_agent() -> None:
    first = agent.AgentInfoProto(
        observations=[
            numbers(np.zeros((3, 4, 5)), properties=(1, 2, 2), name="camera"),
            numbers(np.zeros((6, 2)), properties=(4, 1)),
            numbers([0.0], goal=True),
        ]
    )

    spec = reader_of([first], brain(continuous=1, branches=(3, 2))).spec

    assert spec.name == NAME
    assert [item.shape for item in spec.observations] == [(3, 4, 5), (6, 2), (1,)]
    assert spec.observations[0].name == "camera"
    assert spec.observations[1].dimension_properties == (DimensionProperty.VARIABLE_SIZE, DimensionProperty.NONE)
    assert spec.observations[2].type is ObservationType.GOAL_SIGNAL
    assert (spec.actions.continuous_size, spec.actions.discrete_branches) == (1, (3, 2))


def test_fields_in_another_order_are_read_all_the_same() -> None:
    straight = numbers([1.0, 2.0], name="v").SerializeToString()
    data = straight.index(b"\x22")
    name = straight.index(b"\x42", data)
    turned = straight[name:] + straight[data:name] + straight[:data]
    assert agent.ObservationProto.FromString(turned) == agent.ObservationProto.FromString(straight)
    sent = [shallow.Info(id=0, observations=[straight]), shallow.Info(id=1, observations=[turned])]

    batch = InfoReader.of(brain(), sent[0], silent).read(sent)

    assert batch.decisions is not None
    np.testing.assert_array_equal(batch.decisions.observations[0], [[1.0, 2.0]] * 2)


class TestMasks:
    def read(self, *masks: list[bool]) -> list[list[int]] | None:
        sent = [
            agent.AgentInfoProto(id=each, observations=[numbers([0.0])], action_mask=mask)
            for each, mask in enumerate(masks)
        ]
        batch = reader_of(sent, brain(continuous=0, branches=(3, 2))).read(infos_of(sent))
        assert batch.decisions is not None
        return None if batch.decisions.action_masks is None else batch.decisions.action_masks.tolist()

    def test_true_means_forbidden_there_and_zero_here(self) -> None:
        assert self.read([True, False, False, False, True]) == [[0, 1, 1, 1, 0]]

    def test_an_empty_mask_allows_everything(self) -> None:
        assert self.read([], []) is None
        assert self.read([], [True, False, False, False, False]) == [[1] * 5, [0, 1, 1, 1, 1]]

    def test_a_mask_of_a_wrong_length_allows_everything_as_in_ml_agents(self) -> None:
        assert self.read([True, True]) == [[1] * 5]

    def test_a_branch_that_is_forbidden_whole_is_free_as_in_ml_agents(self) -> None:
        assert self.read([True, False, False, True, True]) == [[0, 1, 1, 1, 1]]


class TestBadInput:
    """Each mistake is named, with behavior and agent."""

    def error(self, sent: list[Any]) -> ProtocolError:
        reader = reader_of([agent.AgentInfoProto(observations=[numbers([0.0, 0.0], name="v")])])
        with pytest.raises(ProtocolError) as raised:
            reader.read(infos_of(sent))
        assert NAME in raised.value.message
        return raised.value

    def test_nan_in_an_observation(self) -> None:
        good = agent.AgentInfoProto(id=1, observations=[numbers([1.0, 2.0], name="v")])
        bad = agent.AgentInfoProto(id=2, observations=[numbers([1.0, float("nan")], name="v")])

        error = self.error([good, bad])

        assert error.code is CloseCode.NOT_FINITE
        assert "observation 0 (v) of agent 2" in error.message

    def test_an_infinite_reward(self) -> None:
        bad = agent.AgentInfoProto(id=5, reward=float("inf"), observations=[numbers([1.0, 2.0], name="v")])

        error = self.error([bad])

        assert error.code is CloseCode.NOT_FINITE
        assert "rewards: that of agent 5 is inf" in error.message

    def test_another_shape(self) -> None:
        error = self.error([agent.AgentInfoProto(observations=[numbers([1.0, 2.0, 3.0], name="v")])])

        assert error.code is CloseCode.OBSERVATION_SHAPE
        assert "it has shape (3,), the first time it had (2,)" in error.message

    def test_fewer_numbers_than_the_shape_needs(self) -> None:
        short = numbers([1.0, 2.0], name="v")
        del short.float_data.data[1]

        assert (
            "it has 1 numbers, its shape (2,) needs 2"
            in self.error([agent.AgentInfoProto(observations=[short])]).message
        )

    def test_another_number_of_sensors(self) -> None:
        error = self.error([agent.AgentInfoProto(id=3)])

        assert error.code is CloseCode.OBSERVATION_COUNT
        assert "agent 3 has 0 observations, the first one had 1" in error.message

    def test_an_announcement_without_actions(self) -> None:
        with pytest.raises(ProtocolError, match="it has no actions") as raised:
            reader_of([agent.AgentInfoProto(observations=[numbers([0.0])])], brain(continuous=0))
        assert raised.value.code is CloseCode.BAD_SPEC


@given(seed=st.integers(0, 2**32 - 1))
def test_damaged_messages_are_refused_or_read_and_never_anything_else(seed: int) -> None:
    rng = random.Random(seed)
    sent = [
        agent.AgentInfoProto(
            id=each, reward=1.0, observations=[numbers([1.0, 2.0], name="v")], action_mask=[True, False]
        )
        for each in range(3)
    ]
    reader = reader_of(sent, brain(branches=(2,)))
    infos = []
    for info in infos_of(sent):
        rows = [bytearray(row) for row in info.observations]
        for row in rows:
            for _ in range(rng.randint(0, 3)):
                row[rng.randrange(len(row))] = rng.randrange(256)
        infos.append(shallow.Info(id=info.id, observations=[bytes(row) for row in rows], action_mask=rng.randbytes(2)))

    try:
        batch = reader.read(infos)
    except ProtocolError:
        return
    assert batch.decisions is not None
    assert batch.decisions.observations[0].shape == (3, 2)
    assert np.isfinite(batch.decisions.observations[0]).all()
