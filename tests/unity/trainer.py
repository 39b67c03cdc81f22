"""The other end of the Unity protocol for the player's own tests, written from the facts: a trainer without learning.

It answers whoever calls, one conversation per session id or else per connection, and keeps every transcript.
"""

import threading
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Self

import grpc

from ludus.protocol.mlagents import agent_pb2, unity_pb2
from ludus.protocol.options import EXCHANGE, SESSION_ID_METADATA
from tests.unity.communicator import Transcript
from tests.unity.descriptions import CAPABILITIES

Policy = Callable[[str, agent_pb2.AgentInfoProto], tuple[list[float], list[int]]]
"""From the behavior's name and an info to continuous and discrete actions."""

OK = 200
GOODBYE = 400


class Conversation:
    """What one player said and heard."""

    def __init__(self) -> None:
        self.transcript: Transcript = []
        self.replies = 0


class Trainer:
    """Serves on a free port. Replies are numbered as the player's messages: the second ends the handshake."""

    def __init__(
        self,
        policy: Policy,
        *,
        seed: int = 7,
        communication: str = "1.5.0",
        capabilities: Collection[str] = tuple(CAPABILITIES),
        side_channels: Mapping[int, bytes] | None = None,
        resets: Collection[int] = (),
        without_actions: Collection[int] = (),
        ends_at: int | None = None,
        holds_at: int | None = None,
        too_few: bool = False,
    ) -> None:
        self.peers: list[str] = []
        """Of the connections, in the order of their first calls."""
        self.conversations: dict[str, Conversation] = {}
        self.holding = threading.Event()
        """Set when the reply `holds_at` is being held."""
        self.release = threading.Event()
        """Set it to let that reply go."""
        self._policy = policy
        self._seed = seed
        self._communication = communication
        self._capabilities = capabilities
        self._side_channels = side_channels or {}
        self._resets = resets
        self._without_actions = without_actions
        self._ends_at = ends_at
        self._holds_at = holds_at
        self._too_few = too_few
        self._server = grpc.server(ThreadPoolExecutor(8), options=[("grpc.so_reuseport", 0)])
        service, method = EXCHANGE.strip("/").split("/")
        handler = grpc.unary_unary_rpc_method_handler(
            self._exchange,
            request_deserializer=unity_pb2.UnityMessageProto.FromString,
            response_serializer=unity_pb2.UnityMessageProto.SerializeToString,
        )
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, {method: handler}),))
        self.port = self._server.add_insecure_port("localhost:0")

    def __enter__(self) -> Self:
        self._server.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.release.set()
        self._server.stop(None).wait()

    @property
    def transcript(self) -> Transcript:
        """Of the only conversation."""
        (conversation,) = self.conversations.values()
        return conversation.transcript

    def sent(self) -> list[unity_pb2.UnityMessageProto]:
        """Return what the only player sent, from its first message with agents on."""
        return [message for direction, message in self.transcript if direction == "sent"][2:]

    def _exchange(
        self, message: unity_pb2.UnityMessageProto, context: grpc.ServicerContext
    ) -> unity_pb2.UnityMessageProto:
        if context.peer() not in self.peers:
            self.peers.append(context.peer())
        metadata = dict(context.invocation_metadata())
        whose = str(metadata.get(SESSION_ID_METADATA, context.peer()))
        conversation = self.conversations.setdefault(whose, Conversation())
        conversation.transcript.append(("sent", message))
        conversation.replies += 1
        if conversation.replies == self._holds_at:
            self.holding.set()
            self.release.wait()
        reply = self._reply(conversation.replies, message)
        conversation.transcript.append(("received", reply))
        return reply

    def _reply(self, number: int, message: unity_pb2.UnityMessageProto) -> unity_pb2.UnityMessageProto:
        reply = unity_pb2.UnityMessageProto()
        if message.header.status != OK or number == self._ends_at:
            reply.header.status = GOODBYE
            return reply
        reply.header.status = OK
        if number == 1:
            welcome = reply.unity_input.rl_initialization_input
            welcome.seed, welcome.num_areas = self._seed, 1
            welcome.communication_version, welcome.package_version = self._communication, "1.1.0"
            for capability in self._capabilities:
                setattr(welcome.capabilities, capability, True)
            return reply
        answer = reply.unity_input.rl_input
        answer.side_channel = self._side_channels.get(number, b"")
        if number == 2 or number in self._resets:
            answer.command = unity_pb2.RESET
        elif number not in self._without_actions:
            self._act(message, answer)
        return reply

    def _act(self, message: unity_pb2.UnityMessageProto, answer: unity_pb2.UnityRLInputProto) -> None:
        for name, infos in message.unity_output.rl_output.agentInfos.items():
            for info in infos.value:
                if not info.done:
                    continuous, discrete = self._policy(name, info)
                    answer.agent_actions[name].value.add(
                        continuous_actions=continuous,
                        discrete_actions=discrete,
                        vector_actions_deprecated=[*continuous, *discrete],
                    )
            if self._too_few:
                del answer.agent_actions[name].value[-1]
