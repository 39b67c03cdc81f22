"""Tickets that a collector asks simulators for."""

import os
import signal
import socket
import time

import pytest

from ludus.collector.messages import (
    SimulatorLeft,
)
from ludus.protocol.tickets import TicketClaims, sign
from tests.ludus.collector.stack import SPEC, Learner, Simulator, learner
from tests.worker.collectors.playing import pids_of
from worker.collectors.events import CollectorListening

KEY = b"k" * 32


def make_ticket(simulator: Simulator, **changes: object) -> str:
    claims = {
        "run_id": "run-1",
        "attempt": 1,
        "session_id": simulator.session_id,
        "number": 41,
        "expires_at": time.time() + 60,
        **changes,
    }
    return sign(KEY, TicketClaims(**claims))  # type: ignore[arg-type]  # by name


@pytest.fixture(scope="module")
def guarded() -> object:
    with learner(ticket_key=KEY) as trainer:
        yield trainer


def test_a_ticket_opens_a_session_under_its_number(guarded: Learner) -> None:
    simulator = Simulator(guarded.endpoints[0].address)

    welcome = simulator.hello(SPEC, ticket=make_ticket(simulator)).welcome

    assert (welcome.simulator_number, welcome.seed) == (41, 48)
    simulator.leave()


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"expires_at": time.time() - 1}, "ticket_expired"),
        ({"run_id": "run-2"}, "ticket_expired"),
        ({"attempt": 2}, "ticket_expired"),
        ({"session_id": "someone-else"}, "bad_ticket"),
        ({"endpoint": "127.0.0.1:1"}, "ticket_expired"),
        ({"generation": 1}, "ticket_expired"),
    ],
)
def test_a_ticket_for_something_else_is_refused(guarded: Learner, changes: dict[str, object], code: str) -> None:
    simulator = Simulator(guarded.endpoints[0].address)

    simulator.send(simulator.make_hello(SPEC, ticket=make_ticket(simulator, **changes)))

    assert simulator.closed().code == code
    left = guarded.wait_for(SimulatorLeft, lambda notice: notice.session_id == simulator.session_id)
    assert (left.code, left.number) == (code, -1)
    simulator.leave()


@pytest.mark.parametrize("ended", [True, False])
def test_a_ticket_opens_one_session_and_a_copy_of_it_none(guarded: Learner, ended: bool) -> None:
    simulator = Simulator(guarded.endpoints[0].address)
    ticket = make_ticket(simulator, endpoint=guarded.endpoints[0].address)
    simulator.hello(SPEC, ticket=ticket)
    if ended:
        simulator.leave()
        guarded.wait_for(SimulatorLeft, lambda notice: notice.session_id == simulator.session_id)
    thief = Simulator(guarded.endpoints[0].address)
    thief.session_id = simulator.session_id

    thief.send(thief.make_hello(SPEC, ticket=ticket))

    assert thief.closed().code == "ticket_expired"
    thief.leave()
    if not ended:  # it plays on
        simulator.leave()
        left = guarded.wait_for(SimulatorLeft, lambda notice: notice.number == 41)
        assert left.code not in {"replaced", "ticket_expired"}


def test_a_copy_of_a_ticket_opens_no_session_at_the_collectors_successor() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with learner(ticket_key=KEY, port_range=(port, port)) as trainer:
        first = trainer.endpoints[0]
        simulator = Simulator(first.address)
        ticket = make_ticket(simulator, endpoint=first.address, generation=first.generation)
        simulator.hello(SPEC, ticket=ticket)
        os.kill(pids_of(trainer.pool)[0], signal.SIGKILL)
        second = trainer.wait_for(CollectorListening).endpoint
        assert (second.address, second.generation) == (first.address, first.generation + 1)
        simulator.leave()
        thief = Simulator(second.address)
        thief.session_id = simulator.session_id

        thief.send(thief.make_hello(SPEC, ticket=ticket))

        assert thief.closed().code == "ticket_expired"
        fresh = make_ticket(simulator, endpoint=second.address, generation=second.generation)
        again = Simulator(second.address)
        again.session_id = simulator.session_id
        again.hello(SPEC, ticket=fresh)
        again.leave()
        thief.leave()


@pytest.mark.parametrize("ticket", ["", "garbage", "1.e30.AAAA"])
def test_a_session_without_a_genuine_ticket_is_refused(guarded: Learner, ticket: str) -> None:
    simulator = Simulator(guarded.endpoints[0].address)

    simulator.send(simulator.make_hello(SPEC, ticket=ticket))

    assert simulator.closed().code == "bad_ticket"
    simulator.leave()
