"""Calls by hand: what no player says, and what a test must time itself."""

from typing import Any

import grpc

from ludus.protocol import simulation_pb2 as sim
from ludus.protocol.mlagents import agent_pb2, unity_pb2
from ludus.protocol.options import CLOSE_METADATA, EXCHANGE
from tests.ludus.collector.stack import Learner
from tests.ludus.collector.unity.messages import brain, message, numbers
from tests.ludus.collector.unity.players import SEED, port_of

Message = unity_pb2.UnityMessageProto
SECOND_CALL = Message(header=unity_pb2.HeaderProto(status=200))
GOODBYE = Message(header=unity_pb2.HeaderProto(status=400))


class Pending:
    """A call that waits for its reply."""

    def __init__(self, future: Any) -> None:
        self._future = future

    @property
    def done(self) -> bool:
        """Whether the reply is there."""
        return bool(self._future.done())

    def reply(self) -> Message:
        """Wait for it."""
        return Message.FromString(self._future.result())

    def close(self) -> sim.Close:
        """Return the last words that came with it."""
        metadata = dict(self._future.trailing_metadata() or ())
        return sim.Close.FromString(metadata.get(CLOSE_METADATA, b""))


class Raw:
    """A connection of a player that says whatever a test wants."""

    def __init__(self, trainer: Learner, *metadata: tuple[str, str]) -> None:
        self._channel = grpc.insecure_channel(
            f"localhost:{port_of(trainer)}",
            [("grpc.use_local_subchannel_pool", 1), ("grpc.max_send_message_length", -1)],
        )
        self._exchange: Any = self._channel.unary_unary(EXCHANGE)  # type: ignore[call-arg]  # bytes, as they are
        self._metadata = metadata
        self.close_code = ""
        """Of the last reply, if it was the end."""
        self.reason = ""

    def later(self, content: Message | bytes) -> Pending:
        """Make a call and don't wait."""
        data = content if isinstance(content, bytes) else content.SerializeToString()
        return Pending(self._exchange.future(data, metadata=self._metadata, timeout=15))

    def call(self, content: Message | bytes) -> Message:
        """Make a call and wait for the reply."""
        pending = self.later(content)
        reply = pending.reply()
        close = pending.close()
        self.close_code, self.reason = close.code, close.reason
        return reply

    def shake_hands(self) -> int:
        """Introduce a player, make the second call, and return the simulator's number."""
        seed = self.call(introduction()).unity_input.rl_initialization_input.seed
        assert self.call(SECOND_CALL).unity_input.rl_input.command == unity_pb2.RESET
        return int(seed) - SEED

    def close(self) -> None:
        """Cut the connection."""
        self._channel.close()


def introduction(version: str = "1.5.0") -> Message:
    """Return a player's first call."""
    return Message(
        header=unity_pb2.HeaderProto(status=200),
        unity_output=unity_pb2.UnityOutputProto(
            rl_initialization_output=unity_pb2.UnityRLInitializationOutputProto(
                name="AcademySingleton", communication_version=version, package_version="3.0.0"
            )
        ),
    )


def agents(*ids: int, behavior: str = "Raw?team=0", announced: bool = True, side_channel: bytes = b"") -> Message:
    """Return a call in which agents ask for a decision."""
    infos = [agent_pb2.AgentInfoProto(id=each, observations=[numbers([1.0, 2.0])]) for each in ids]
    brains = [brain(behavior, continuous=1)] if announced else []
    found: Message = message({behavior: infos}, brains, side_channel)
    return found
