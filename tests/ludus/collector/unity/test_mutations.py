"""Whatever bytes a player sends: its collector lives, keeps its size, and serves the others."""

import math
from collections.abc import Iterator

import psutil
import pytest
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st

from ludus.collector.messages import SimulatorLeft
from ludus.protocol.mlagents import agent_pb2, unity_pb2
from ludus.protocol.options import SESSION_ID_METADATA
from tests.examples import examples
from tests.ludus.collector.stack import Learner, learner
from tests.ludus.collector.unity.messages import brain, message, numbers
from tests.ludus.collector.unity.players import Participant, number_of
from tests.ludus.collector.unity.raw import GOODBYE, SECOND_CALL, Raw, agents, introduction
from tests.unity.descriptions import Behavior
from tests.unity.side_channels import STATS
from tests.waiting import eventually
from worker.collectors.events import CollectorDied

EXAMPLES = examples(200)
CALLS = 6
"""Mutated calls of each example, at most."""
GROWTH = 24 << 20
"""Bytes that a collector may grow by."""
BEHAVIOR = "Fuzzed?team=0"


@pytest.fixture(scope="module")
def trainer() -> Iterator[Learner]:
    # Times are short for those who share a connection, and are in each other's way.
    patience = {"step_timeout": 2.0, "second_call_timeout": 2.0, "late_agents_grace": 0.1}
    with learner(size=96, max_message_bytes=1 << 20, **patience) as running:
        running.configured = {"Fuzzed", "Bystander"}
        yield running


def memory_of(trainer: Learner) -> int:
    (collector,) = trainer.pool.children.of_host
    assert collector.process is not None
    return int(psutil.Process(collector.process.pid).memory_info().rss)


def _agents() -> unity_pb2.UnityMessageProto:
    infos = [
        agent_pb2.AgentInfoProto(
            id=1, done=True, max_step_reached=True, reward=1.0, observations=[numbers([1.0, 2.0])]
        ),
        agent_pb2.AgentInfoProto(
            id=1, action_mask=[True, False, False], group_id=2, group_reward=0.5, observations=[numbers([3.0, 4.0])]
        ),
        agent_pb2.AgentInfoProto(id=2, reward=math.pi, observations=[numbers([5.0, 6.0])]),
    ]
    stat = b"\x01\0\0\0s\0\0\x80\x3f\0\0\0\0"
    channels = STATS.bytes_le + len(stat).to_bytes(4, "little") + stat
    found: unity_pb2.UnityMessageProto = message({BEHAVIOR: infos}, [brain(BEHAVIOR, 1, [3])], channels)
    return found


WHOLE = [each.SerializeToString() for each in (introduction(), SECOND_CALL, _agents(), agents(7), GOODBYE)]


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    """A whole message with some bytes changed, cut out, doubled or put in; sometimes none."""
    data = bytearray(draw(st.sampled_from(WHOLE)))
    for _ in range(draw(st.integers(0, 4))):
        start = draw(st.integers(0, len(data)))
        stop = min(start + draw(st.integers(0, 8)), len(data))
        match draw(st.sampled_from(("change", "cut", "double", "insert", "end"))):
            case "change" if start < len(data):
                data[start] = draw(st.integers(0, 255))
            case "cut":
                del data[start:stop]
            case "double":
                data[start:start] = data[start:stop]
            case "insert":
                data[start:start] = draw(st.binary(max_size=8))
            case "end":
                del data[start:]
    return bytes(data)


@pytest.mark.long
def test_damaged_messages_neither_end_nor_grow_a_collector_nor_disturb_others(trainer: Learner) -> None:
    bystander = Participant.at(trainer, [Behavior("Bystander?team=0", agents=2, continuous=1)], pace=0.001)
    eventually(lambda: bystander.agent_steps > 0)
    first = Raw(trainer, (SESSION_ID_METADATA, "fuzzed"))
    first.shake_hands()
    assert first.call(_agents()).header.status == 200
    sizes: list[int] = []
    sent = 0
    progress: list[int] = []

    @seed(11)
    @settings(max_examples=EXAMPLES, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(st.booleans(), st.lists(damaged(), min_size=1, max_size=CALLS))
    def send(named: bool, calls: list[bytes]) -> None:
        nonlocal sent
        raw = first if named else Raw(trainer)
        raw.shake_hands()
        for call in calls:
            if not named and call == WHOLE[0]:
                continue  # it is another player's, who waits for the first one's next call
            reply = raw.call(call)
            sent += 1
            if reply.header.status != 200:
                if not named:
                    break  # on such a connection others may be in its way
                raw.shake_hands()
        if not named:
            raw.close()
        sizes.append(memory_of(trainer))
        progress.append(bystander.agent_steps)

    send()
    first.close()

    assert sent > EXAMPLES, "beside the handshakes"
    assert not trainer.heard(CollectorDied)
    assert not any(notice.code == "internal_error" for notice in trainer.heard(SimulatorLeft)), trainer.events[-20:]
    # The first hundreds fill pools and caches.
    assert memory_of(trainer) - sizes[len(sizes) // 3] < GROWTH
    third = len(progress) // 3
    assert progress[third] < progress[2 * third] < progress[-1], "the other player went on all the time"
    number = number_of(bystander.leave())
    assert [notice.code for notice in trainer.heard(SimulatorLeft) if notice.number == number] in ([], ["left"])
