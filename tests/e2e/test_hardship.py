"""Collectors out of reach and simulators that send nonsense: told, and survived where possible."""

import math
import queue
import struct
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, Self

import grpc
import pytest

from ludus.client import Client
from ludus.protocol import simulation_pb2 as pb
from ludus.protocol.simulation_pb2_grpc import SimulationServiceStub
from tests.e2e.stack import LudusUp, Player, cartpole, wait_for_step
from tests.waiting import eventually

pytestmark = [pytest.mark.e2e, pytest.mark.faults, pytest.mark.xdist_group("stack")]


def test_a_simulator_that_asks_for_relay_plays_through_the_gateway(
    stack: LudusUp, client: Client, play: Callable[..., Player]
) -> None:
    run = client.runs.create(cartpole())
    play(run.id)
    wait_for_step(client, run, 600)

    with Session(stack.gateway, run.id, "relayed-one", relay=True) as session:
        assert session.address == "", "there is nowhere else to go"
        assert session.act([0.0] * 4) == 1, "one action for one agent"
        assert session.act([0.1] * 4) == 1

        def recorded() -> list[bool]:
            connected = client.simulators.list(run.id, "connected")
            return [one.relayed for one in connected if one.session_id == "relayed-one"]

        assert eventually(recorded, "the simulator is listed") == [True]

    client.runs.cancel(run.id)
    client.runs.wait(run.id, timeout=60)


def test_nonsense_ends_one_session_by_name_while_the_others_train_on(
    stack: LudusUp, client: Client, play: Callable[..., Player]
) -> None:
    run = client.runs.create(cartpole())
    play(run.id)
    wait_for_step(client, run, 600)

    with Session(stack.gateway, run.id, "nan-sender") as session:
        session.send([math.nan] * 4)
        assert session.receive("close").code == "not_finite"

    def told() -> list[str]:
        events = client.events.list(run.id)
        return [event.message for event in events if event.data.get("code") == "not_finite"]

    eventually(told, "an event says so")
    wait_for_step(client, run, client.runs.get(run.id).step + 600)
    (left,) = client.simulators.list(run.id, "left")
    assert left.leave_code == "not_finite"
    client.runs.cancel(run.id)
    client.runs.wait(run.id, timeout=60)


class Session:
    """A simulator of one agent by hand, as any client in any language would do it."""

    def __init__(self, gateway: str, run: str, session_id: str, *, relay: bool = False) -> None:
        self._stack = ExitStack()
        front = self._stack.enter_context(grpc.insecure_channel(gateway))
        join = pb.JoinRequest(run=run, session_id=session_id, protocol_version=1, relay=relay)
        assignment = SimulationServiceStub(front).Join(join).assignment
        self.address = assignment.address
        channel = front if assignment.relay else self._stack.enter_context(grpc.insecure_channel(assignment.address))
        self._requests: queue.SimpleQueue[pb.ConnectRequest | None] = queue.SimpleQueue()
        self._responses = SimulationServiceStub(channel).Connect(
            iter(self._requests.get, None), metadata=(("ludus-ticket", assignment.ticket),)
        )
        spec = pb.BehaviorSpec(
            name="CartPole",
            observations=[pb.ObservationSpec(shape=[4], dtype=pb.DTYPE_FLOAT32)],
            actions=pb.ActionSpec(discrete_branches=[2]),
        )
        hello = pb.Hello(ticket=assignment.ticket, protocol_version=1, session_id=session_id, behaviors=[spec])
        self._requests.put(pb.ConnectRequest(hello=hello))
        self._step = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._requests.put(None)
        self._stack.close()

    def send(self, observation: list[float]) -> None:
        """Ask for an action."""
        self._step += 1
        tensor = pb.Tensor(dtype=pb.DTYPE_FLOAT32, shape=[1, 4], data=struct.pack("<4f", *observation))
        decisions = pb.DecisionSteps(agent_ids=b"\0" * 4, rewards=b"\0" * 4, observations=[tensor])
        step = pb.Step(step_id=self._step, behaviors=[pb.BehaviorStep(behavior="CartPole", decisions=decisions)])
        self._requests.put(pb.ConnectRequest(step=step))

    def receive(self, what: str) -> Any:
        """Return the next message of a kind."""
        for response in self._responses:
            if response.HasField(what):
                return getattr(response, what)
        raise AssertionError(f"the stream ended without {what}")

    def act(self, observation: list[float]) -> int:
        """Return for how many agents an action came."""
        self.send(observation)
        return len(self.receive("actions").behaviors[0].discrete) // 4
