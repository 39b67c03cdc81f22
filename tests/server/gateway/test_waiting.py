"""Joins that are held while their run is not ready: answered when there is something to say, and once only."""

import asyncio
import itertools
import os
import shutil
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest
from pydantic import SecretStr
from sqlalchemy import event, update

from ludus.protocol import simulation_pb2 as pb
from ludus.protocol.options import COLLECTOR_SERVICE, REASON_METADATA, STATE_METADATA, WAITS_METADATA
from ludus.sdk.join import CollectorEndpoint, JoinClient, Target
from server.gateway.waiting import ANSWER_SECONDS
from server.kit.db.database import Database
from server.kit.listening import GatewaySettings
from server.runs.models import Attempt, Run
from tests.server.gateway.conftest import KEY, TOKEN, GatewayThread, add_run
from tests.waiting import eventually

NODE = Path(__file__).parents[3] / "examples" / "node"
LONG = 600.0
"""More than any test takes."""


@pytest.fixture
def gateway(database: Database) -> Iterator[GatewayThread]:
    settings = GatewaySettings(port=0, token=SecretStr(TOKEN), ticket_key=SecretStr(KEY), hold_seconds=LONG)
    with GatewayThread(settings, database) as thread:
        yield thread


def ask(gateway: GatewayThread, session_id: str, *, run: str = "catch", seconds: float = LONG) -> Any:
    """Begin a join that may be held; return the call, a future."""
    request = pb.JoinRequest(run=run, session_id=session_id, protocol_version=1, max_wait_seconds=seconds)
    return gateway.stub.Join.future(request, metadata=[("authorization", f"Bearer {TOKEN}")], timeout=2 * LONG)


def held(gateway: GatewayThread) -> int:
    return gateway.gateway._waiting.held


def set_run(database: Database, run_id: str, state: str, *addresses: str) -> None:
    endpoints = [{"address": address, "index": index} for index, address in enumerate(addresses)]
    with database.write() as session:
        session.execute(update(Run).where(Run.id == run_id).values(state=state))
        session.execute(update(Attempt).where(Attempt.run_id == run_id).values(endpoints=endpoints))


def answered(gateway: GatewayThread) -> Counter[str]:
    """Count the answers of the gateway to joins, by outcome."""
    counts: Counter[str] = Counter()
    for metric in gateway.gateway.telemetry.calls.collect():
        for sample in metric.samples:
            if sample.name.endswith("_count") and sample.labels["call"] == "join":
                counts[sample.labels["outcome"]] += int(sample.value)
    return counts


@pytest.mark.long
def test_hundreds_of_held_joins_are_answered_once_as_soon_as_their_run_starts_and_cost_one_query_a_look(
    gateway: GatewayThread, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_id, other = add_run(database, state="QUEUED"), add_run(database, state="QUEUED", name="other")
    looks: list[int] = []
    look = gateway.gateway._waiting._look
    monkeypatch.setattr(gateway.gateway._waiting, "_look", lambda runs: looks.append(len(runs)) or look(runs))
    calls = [ask(gateway, f"sim-{number}") for number in range(300)]
    unready = [ask(gateway, f"other-{number}", run="other") for number in range(20)]
    eventually(lambda: held(gateway) == 320, "all are held")
    eventually(lambda: looks[-2:] == [2, 2], "the gateway looks at both runs again and again")

    set_run(database, run_id, "RUNNING", "worker-1:41000")

    assignments = [call.result(60).assignment for call in calls]
    assert {each.address for each in assignments} == {"worker-1:41000"}
    assert {each.simulator_number for each in assignments} == set(range(300))
    assert answered(gateway) == Counter(ok=300)
    assert dict(calls[0].initial_metadata())[WAITS_METADATA].startswith(b"Run run-catch is QUEUED")
    assert held(gateway) == 20
    set_run(database, other, "CANCELLED")
    for call in unready:
        with pytest.raises(grpc.RpcError):
            call.result(60)
        assert dict(call.trailing_metadata())[STATE_METADATA] == "CANCELLED"
    assert held(gateway) == 0


def test_simulators_that_ask_again_for_a_run_that_waits_cost_the_database_one_question_in_five_seconds(
    gateway: GatewayThread, database: Database
) -> None:
    run_id = add_run(database, state="QUEUED")
    asked: list[float] = []

    def count(_connection: object, _cursor: object, statement: str, *_: object) -> None:
        if "runs.name = " in statement and "simulator_seq" in statement:
            asked.append(time.monotonic())

    readers = gateway.gateway._placement.database._reader
    began = time.monotonic()
    event.listen(readers, "before_cursor_execute", count)
    for number in range(300):
        assert "QUEUED" in ask(gateway, f"sim-{number % 20}", seconds=0.005).result(60).wait.reason
    seconds = time.monotonic() - began
    questions = len(asked)
    set_run(database, run_id, "RUNNING", "worker-1:41000")
    late = [ask(gateway, f"sim-{number}") for number in range(20)]
    assert {call.result(60).assignment.address for call in late} == {"worker-1:41000"}
    event.remove(readers, "before_cursor_execute", count)

    assert 1 <= questions <= 1 + seconds / ANSWER_SECONDS
    assert len(asked) >= questions + 20, "each one that gets a place asks the database"


def test_a_simulator_that_is_not_held_is_told_what_is_so_now(gateway: GatewayThread, database: Database) -> None:
    run_id = add_run(database, state="QUEUED")
    for number in range(10):
        addresses = ["worker-1:41000"] * (number % 2)
        set_run(database, run_id, "RUNNING" if addresses else "QUEUED", *addresses)

        answer = ask(gateway, "sim-1", seconds=0).result(60)

        assert answer.HasField("assignment") is bool(addresses)


def test_a_run_that_starts_does_not_listen_yet_is_waited_for_on(gateway: GatewayThread, database: Database) -> None:
    run_id = add_run(database, state="QUEUED")
    call = ask(gateway, "one")
    eventually(lambda: held(gateway) == 1)

    set_run(database, run_id, "STARTING")
    set_run(database, run_id, "RUNNING", "worker-1:41000")

    assert call.result(60).assignment.address == "worker-1:41000"


def test_a_join_whose_run_does_not_start_is_told_to_ask_again_at_once(
    gateway: GatewayThread, database: Database
) -> None:
    add_run(database, state="QUEUED")

    wait = ask(gateway, "one", seconds=0.2).result(60).wait

    assert "QUEUED" in wait.reason
    assert 0 < wait.retry_after_seconds < 0.5
    assert held(gateway) == 0


def test_a_join_that_does_not_say_that_it_may_be_held_is_answered_at_once(
    gateway: GatewayThread, database: Database
) -> None:
    add_run(database, state="QUEUED")

    call = ask(gateway, "one", seconds=0)

    assert call.result(60).wait.retry_after_seconds == pytest.approx(0.5)
    assert WAITS_METADATA not in dict(call.initial_metadata())


def test_simulators_that_do_not_say_that_they_may_be_held_ask_less_often_the_longer_their_run_waits(
    gateway: GatewayThread, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each sleeps as long as it is told. After a minute they ask every 15 s, and hear of the start so late at most."""
    run_id, _ = add_run(database, state="QUEUED"), add_run(database, state="QUEUED", name="other")
    now = 1000.0
    monkeypatch.setattr(gateway.gateway._waiting, "_clock", lambda: now)

    def pause(number: int, run: str = "catch") -> float:
        return float(ask(gateway, f"sim-{number}", run=run, seconds=0).result(60).wait.retry_after_seconds)

    due = dict.fromkeys(range(4), now)
    asked: dict[int, list[float]] = {number: [] for number in due}
    while now < 1000 + 600:
        number = min(due, key=lambda each: due[each])
        now = due[number]
        asked[number].append(now - 1000)
        told = pause(number)
        due[number] = now + told
        assert told <= max(0.51, (now - 1000) / 3)

    for times in asked.values():
        apart = [later - earlier for earlier, later in itertools.pairwise(times) if earlier > 60]
        assert 15 <= min(apart) <= max(apart) <= 19
        assert len(times) < 20 + 600 / 15
    assert len({times[-1] for times in asked.values()}) == 4, "they do not come back together"
    assert pause(0, "other") == pytest.approx(0.5), "each run has its own wait"
    set_run(database, run_id, "RUNNING", "worker-1:41000")
    assert ask(gateway, "sim-0", seconds=0).result(60).HasField("assignment")
    set_run(database, run_id, "STARTING")
    assert pause(0) == pytest.approx(0.5), "an interrupted run is soon back"
    now += 61
    assert pause(0) == pytest.approx(0.5), "nothing is known of the time in between"
    assert gateway.gateway._waiting._unready.keys() == {run_id}


@pytest.mark.parametrize("seconds", [-1.0, 3601.0, float("nan"), float("inf")])
def test_a_time_that_makes_no_sense_is_refused_with_a_sentence(gateway: GatewayThread, seconds: float) -> None:
    call = ask(gateway, "one", seconds=seconds)

    with pytest.raises(grpc.RpcError, match="max_wait_seconds must be from 0 to 3600"):
        call.result(60)
    assert dict(call.trailing_metadata())[REASON_METADATA] == "bad_join"


def test_a_gateway_that_stops_answers_held_joins_first(gateway: GatewayThread, database: Database) -> None:
    add_run(database, state="QUEUED")
    calls = [ask(gateway, f"sim-{number}") for number in range(50)]
    eventually(lambda: held(gateway) == 50)

    gateway.stop()

    assert all(call.result(60).HasField("wait") for call in calls)


def test_joins_whose_clients_went_away_leave_nothing_behind(gateway: GatewayThread, database: Database) -> None:
    run_id = add_run(database, state="QUEUED")
    calls = [ask(gateway, f"sim-{number}") for number in range(50)]
    eventually(lambda: held(gateway) == 50)

    for call in calls:
        call.cancel()

    eventually(lambda: held(gateway) == 0, "the gateway notices")
    eventually(lambda: gateway.gateway._waiting._looking is None, "it does not look any more")
    assert answered(gateway) == Counter(cancelled=50)
    set_run(database, run_id, "RUNNING", "worker-1:41000")
    assert gateway.join().assignment.simulator_number == 0


def test_a_run_whose_answer_stays_the_same_is_not_asked_about_again_and_again(
    gateway: GatewayThread, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A simulator of a run whose games connect through edge collectors only."""
    run_id = add_run(database, edge="")
    placement, looks, joins = gateway.gateway._placement, [0], [0]
    look, join = placement.progress, placement.join

    def count(counter: list[int], act: Any) -> Any:
        def counted(*arguments: Any, **options: Any) -> Any:
            counter[0] += 1
            return act(*arguments, **options)

        return counted

    monkeypatch.setattr(gateway.gateway._waiting, "_look", count(looks, look))
    monkeypatch.setattr(placement, "join", count(joins, join))
    call = ask(gateway, "one")
    eventually(lambda: held(gateway) == 1)
    with database.write() as session:
        paused = {"state": "PAUSED", "stop_reason": "simulators_lost"}
        no_resume = {"simulators": {"auto_resume": False}}
        session.execute(update(Run).where(Run.id == run_id).values(**paused, config=no_resume))

    eventually(lambda: joins[0] >= 2, "it is asked whether the run goes on with this simulator")
    before = looks[0]
    eventually(lambda: looks[0] >= before + 5)
    assert joins[0] == 2
    call.cancel()


def test_beyond_the_limit_a_join_is_answered_at_once_and_such_simulators_come_back_at_different_times(
    database: Database,
) -> None:
    run_id, other = add_run(database, state="QUEUED"), add_run(database, state="QUEUED", name="other")
    settings = GatewaySettings(
        port=0, token=SecretStr(TOKEN), ticket_key=SecretStr(KEY), hold_seconds=LONG, held_joins=10
    )
    with GatewayThread(settings, database) as gateway:
        calls = [ask(gateway, f"held-{number}") for number in range(10)]
        eventually(lambda: held(gateway) == 10)

        waits = [ask(gateway, f"late-{number}").result(60).wait for number in range(30)]

        assert all("QUEUED" in wait.reason for wait in waits)
        seconds = [wait.retry_after_seconds for wait in waits]
        assert all(0.5 * LONG <= each <= LONG for each in seconds)
        assert max(seconds) - min(seconds) > 0.2 * LONG  # of 30 in a range of 0.5, by chance once in 10^10
        assert held(gateway) == 10
        assert gateway.gateway.telemetry.not_held._value.get() == 30
        ask(gateway, "late", run="other").result(60)
        assert held(gateway) == 10
        with database.read() as session:
            assert all(session.get_one(Run, run).awaited_until for run in (run_id, other)), "held or not, they wait"
        set_run(database, run_id, "RUNNING", "worker-1:41000")
        assert {call.result(60).assignment.address for call in calls} == {"worker-1:41000"}
        assert held(gateway) == 0


def test_an_edge_collector_is_held_until_the_attempt_takes_it(gateway: GatewayThread, database: Database) -> None:
    run_id = add_run(database, edge="")
    method = gateway.channel.unary_unary(
        f"{COLLECTOR_SERVICE}Join",
        request_serializer=pb.JoinRequest.SerializeToString,
        response_deserializer=pb.JoinResponse.FromString,
    )
    request = pb.JoinRequest(run="catch", session_id="edge-1", protocol_version=1, max_wait_seconds=LONG)
    call = method.future(request, metadata=[("authorization", f"Bearer {TOKEN}")], timeout=LONG)
    eventually(lambda: held(gateway) == 1)

    with database.write() as session:
        endpoints = [{"address": "127.0.0.1:7200", "index": -1, "edge": True}]
        session.execute(update(Attempt).where(Attempt.run_id == run_id).values(endpoints=endpoints))

    assert call.result(60).assignment.address == "127.0.0.1:7200"


@pytest.mark.long
def test_a_waiting_simulator_of_the_sdk_asks_once_in_the_time_for_which_it_is_held_and_says_what_it_waits_for(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a hold of 1 s in place of 30: after 3 s the pauses of two requests a second would have led to 6."""
    run_id = add_run(database, state="QUEUED")
    settings = GatewaySettings(port=0, token=SecretStr(TOKEN), ticket_key=SecretStr(KEY), hold_seconds=1)
    said: list[str] = []
    with GatewayThread(settings, database) as gateway, ThreadPoolExecutor(1) as threads:
        target = Target(gateway.address, "catch", token=TOKEN)

        async def find() -> CollectorEndpoint:
            async with JoinClient(target, lambda _, sentence: said.append(sentence), "test") as client:
                found = await client.find()
                assert isinstance(found, CollectorEndpoint)
                await found.close()
                return found

        began = time.monotonic()
        found: Future[CollectorEndpoint] = threads.submit(asyncio.run, find())
        eventually(lambda: said, "it says what it waits for before it is answered")
        assert "QUEUED" in said[0]
        eventually(lambda: answered(gateway)["ok"] >= 3, "it has asked four times")
        waited = time.monotonic() - began
        assert waited >= 3 * 0.75
        set_run(database, run_id, "RUNNING", gateway.address)

        assert found.result(60).assignment.run_id == run_id
        assert len(said) == 1
        assert answered(gateway)["ok"] <= 1 + (time.monotonic() - began) / 0.75


@pytest.mark.node
def test_the_javascript_example_is_held_and_says_what_it_waits_for(gateway: GatewayThread, database: Database) -> None:
    run_id = add_run(database, state="QUEUED")
    node = shutil.which("node")
    assert node is not None
    environment = {key: value for key, value in os.environ.items() if not key.lower().endswith("_proxy")}
    command = [node, "catch.js", "--run", "catch", "--server", gateway.address, "--token", TOKEN]

    with subprocess.Popen(command, cwd=NODE, env=environment, stdout=subprocess.PIPE, text=True) as simulator:
        try:
            assert simulator.stdout is not None
            assert "QUEUED" in simulator.stdout.readline(), "it says so while it is held"
            assert held(gateway) == 1
            set_run(database, run_id, "CANCELLED")
            assert simulator.wait(60) == 1
        finally:
            simulator.kill()

    assert answered(gateway) == Counter(run_ended=1)


def test_a_simulator_of_the_sdk_that_stops_while_it_waits_ends_its_call(
    gateway: GatewayThread, database: Database
) -> None:
    add_run(database, state="QUEUED")

    async def give_up() -> None:
        async with JoinClient(Target(gateway.address, "catch", token=TOKEN), lambda *_: None, "test") as client:
            waiting = asyncio.create_task(client.find())
            await asyncio.to_thread(eventually, lambda: held(gateway) == 1)
            waiting.cancel()
            await asyncio.to_thread(eventually, lambda: held(gateway) == 0, "the gateway holds nothing")
            await asyncio.wait([waiting])

    asyncio.run(give_up())
