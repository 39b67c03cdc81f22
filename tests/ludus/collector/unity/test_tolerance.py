"""Messages that ML-Agents 1.1.0 trains with are taken as it takes them; a game's mistake is told, and ends nothing.

docs/unity-protocol.md has the comparison, check by check.
"""

from typing import Any

import numpy as np
import pytest

from ludus.collector.unity.decoding import InfoReader
from ludus.protocol.batches import BehaviorBatch
from ludus.protocol.codes import CloseCode, ProtocolError
from ludus.protocol.mlagents import agent_pb2 as agent
from tests.ludus.collector.unity.messages import brain, compressed, infos_of, numbers, reader_of


@pytest.mark.parametrize("first", ["png", "floats"])
def test_agents_of_one_behavior_may_differ_in_compression(first: str) -> None:
    pixels = np.random.default_rng(1).integers(0, 256, (4, 5, 3), np.uint8)
    plain = numbers(pixels.transpose(2, 0, 1) / 255, properties=(1, 2, 2))
    both = [compressed(pixels), plain] if first == "png" else [plain, compressed(pixels)]
    sent = [agent.AgentInfoProto(id=index, observations=[each]) for index, each in enumerate(both)]

    batch = reader_of(sent).read(infos_of(sent))

    assert batch.decisions is not None
    (column,) = batch.decisions.observations
    assert column.dtype == (np.uint8 if first == "png" else np.float32)
    expected = pixels.transpose(2, 0, 1) / (1 if first == "png" else 255)
    np.testing.assert_allclose(column, [expected] * 2, rtol=0, atol=1e-6)


def test_pictures_that_are_bytes_take_no_numbers_beyond_them() -> None:
    sent = [
        agent.AgentInfoProto(id=1, observations=[compressed(np.zeros((4, 5, 3), np.uint8))]),
        agent.AgentInfoProto(id=2, observations=[numbers(np.full((3, 4, 5), 7.0), properties=(1, 2, 2))]),
    ]

    with pytest.raises(ProtocolError, match=r"observation 0: it has numbers beyond 0 to 1") as raised:
        reader_of(sent).read(infos_of(sent))
    assert raised.value.code is CloseCode.OBSERVATION_SHAPE


@pytest.mark.parametrize(
    ("shape", "properties", "turned"),
    [
        ((4, 5, 3), (), (3, 4, 5)),  # packages that did not describe dimensions
        ((3, 4, 5), (), (3, 4, 5)),  # as ML-Agents 1.1.0 takes it
        ((3, 4, 5), (0, 0, 0), (3, 4, 5)),
        ((4, 5, 6), (2, 2, 1), (6, 4, 5)),
    ],
)
def test_channels_come_first_wherever_they_were(
    shape: tuple[int, ...], properties: tuple[int, ...], turned: tuple[int, ...]
) -> None:
    pixels = np.arange(2 * np.prod(shape), dtype=np.float32).reshape(2, *shape)
    sent = [
        agent.AgentInfoProto(id=index, observations=[numbers(pixels[index], properties=properties)]) for index in (0, 1)
    ]

    batch = reader_of(sent).read(infos_of(sent))

    assert batch.decisions is not None
    expected = pixels if turned == shape else pixels.transpose(0, 3, 1, 2)
    np.testing.assert_array_equal(batch.decisions.observations[0], expected)


@pytest.mark.parametrize(("shape", "properties"), [((0,), (1,)), ((3, 0), (4, 1))])
def test_sensors_of_no_numbers_keep_their_place(shape: tuple[int, ...], properties: tuple[int, ...]) -> None:
    sent = [
        agent.AgentInfoProto(id=each, observations=[numbers(np.zeros(shape), properties=properties), numbers([each])])
        for each in (1, 2)
    ]

    reader = reader_of(sent)
    batch = reader.read(infos_of(sent))

    assert [spec.shape for spec in reader.spec.observations] == [shape, (1,)]
    assert batch.decisions is not None
    assert [column.shape for column in batch.decisions.observations] == [(2, *shape), (2, 1)]
    assert batch.decisions.observations[1].tolist() == [[1.0], [2.0]]


def test_a_sensor_of_no_numbers_that_suddenly_has_some_is_named() -> None:
    empty = [agent.AgentInfoProto(observations=[numbers(np.zeros(0))])]
    full = [agent.AgentInfoProto(observations=[numbers([1.0])])]

    with pytest.raises(ProtocolError, match=r"it has shape \(1,\), the first time it had \(0,\)"):
        reader_of(empty).read(infos_of(full))


def test_numbers_count_and_not_the_shape_that_a_message_gives_them() -> None:
    sent = [
        agent.AgentInfoProto(observations=[numbers([1.0, 2.0, 3.0, 4.0])]),
        agent.AgentInfoProto(id=1, observations=[numbers([[5.0, 6.0], [7.0, 8.0]])]),
    ]

    batch = reader_of(sent).read(infos_of(sent))

    assert batch.decisions is not None
    assert batch.decisions.observations[0].tolist() == [[1.0, 2.0, 3.0, 4.0], [5.0, 6.0, 7.0, 8.0]]


def test_a_long_name_of_a_sensor_is_cut() -> None:
    sent = [agent.AgentInfoProto(observations=[numbers([1.0], name="ä" * 150)])]

    assert reader_of(sent).spec.observations[0].name == "ä" * 100


def test_branches_count_as_they_have_sizes() -> None:
    announced = brain(continuous=0, branches=(3, 2))
    announced.action_spec.num_discrete_actions = 7

    reader = reader_of([agent.AgentInfoProto(observations=[numbers([1.0])])], announced)

    assert reader.spec.actions.discrete_branches == (3, 2)


class TestMistakesOfGamesThatTrain:
    """As with ML-Agents; unlike there, with a word. Each code is told once, by the session."""

    def read(self, sent: list[Any]) -> tuple[InfoReader, BehaviorBatch, dict[str, str]]:
        told: dict[str, str] = {}
        reader = reader_of([agent.AgentInfoProto(observations=[numbers([0.0])])], tell=told.__setitem__)
        return reader, reader.read(infos_of(sent)), told

    def test_an_agent_that_ended_several_times_ended_once_and_the_last_time_counts(self) -> None:
        ended = [
            agent.AgentInfoProto(id=3, done=True, reward=reward, observations=[numbers([reward])])
            for reward in (1.0, 0.0, 0.5)
        ]

        _, batch, told = self.read([*ended, agent.AgentInfoProto(id=3, observations=[numbers([2.0])])])

        assert batch.terminals is not None
        assert batch.terminals.agent_ids.tolist() == [3]
        assert (batch.terminals.rewards.tolist(), batch.terminals.observations[0].tolist()) == ([0.5], [[0.5]])
        assert batch.decisions is not None
        assert (batch.decisions.agent_ids.tolist(), batch.decisions.observations[0].tolist()) == ([3], [[2.0]])
        assert told == {
            "duplicate_agent": "behavior 'Walker?team=0': agent 3 ended, by EndEpisode for instance, 3 times in one "
            "step; as with ML-Agents only the last time counts, with its reward alone"
        }

    def test_an_agent_that_asks_several_times_gets_its_one_answer_each_time(self) -> None:
        asking = [agent.AgentInfoProto(id=each, observations=[numbers([each])]) for each in (3, 4, 3)]

        reader, batch, told = self.read(asking)

        assert batch.decisions is not None
        assert batch.decisions.agent_ids.tolist() == [3, 4]
        assert reader.rows == [0, 1, 0]
        assert "agent 3 asked for actions 2 times" in told["duplicate_agent"]

        assert reader.read(infos_of(asking[:2])).decisions is not None
        assert reader.rows is None

    def test_surplus_observations_are_not_read(self) -> None:
        _, batch, told = self.read([agent.AgentInfoProto(id=3, observations=[numbers([1.0]), numbers([2.0])])])

        assert batch.decisions is not None
        assert [column.tolist() for column in batch.decisions.observations] == [[[1.0]]]
        assert "agent 3 has 2 observations, the first one had 1" in told["observation_count"]

    def test_a_negative_group_is_none(self) -> None:
        sent = [agent.AgentInfoProto(id=each, group_id=each - 1, observations=[numbers([1.0])]) for each in (0, 1, 2)]

        _, batch, told = self.read(sent)

        assert batch.decisions is not None
        assert batch.decisions.group_ids is not None
        assert (batch.decisions.group_ids.tolist(), told) == ([0, 0, 1], {})

    def test_a_reward_of_a_group_counts_for_an_agent_that_has_left_it(self) -> None:
        _, batch, told = self.read([agent.AgentInfoProto(group_reward=2.0, observations=[numbers([1.0])])])

        assert batch.decisions is not None
        assert batch.decisions.group_rewards is not None
        assert (batch.decisions.group_rewards.tolist(), told) == ([2.0], {})
