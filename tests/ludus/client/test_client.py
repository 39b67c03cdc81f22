import inspect
import signal
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from operator import attrgetter
from pathlib import Path

import httpx2
import numpy as np
import pytest

from ludus.client import Busy, Client, NotSendable, ProblemAnswer, ServerUnreachable
from ludus.client.transport import Resource, as_json
from ludus.protocol.credentials import Credential, credential
from ludus.schemas import Event
from tests.server.app.world import CARTPOLE, World, build_services, open_world, server_process, serving


def test_events_are_read_and_followed(client: Client, world: World) -> None:
    run = client.runs.create(CARTPOLE)
    threading.Timer(0.3, lambda: world.claim(run.id).start().finish()).start()

    followed = list(client.events.follow(run.id))

    assert [event.seq for event in followed] == list(range(1, len(followed) + 1))
    assert followed[-1].type == "run_succeeded"
    assert list(client.events.list(run.id)) == followed
    assert list(client.events.follow(run.id, after=followed[-1].seq)) == []


def test_metrics_checkpoints_logs_attempts_simulators_and_workers_are_typed(
    client: Client, world: World, tmp_path: Path
) -> None:
    trainer = world.claim(client.runs.create(CARTPOLE).id).start()
    trainer.measure("Environment/Cumulative Reward", [1.0, 3.0])
    trainer.save(100, {"CartPole.onnx": b"model"}, tmp_path)
    trainer.write_log("trainer.log", b"hello\n", tmp_path)
    trainer.ledger.simulators.connected("one", number=0, collector=0)
    trainer.ledger.simulators.plays("one", ["CartPole"], 2)
    run = trainer.run_id

    [series] = client.metrics.series(run, "Environment/Cumulative Reward")
    [checkpoint] = client.checkpoints.list(run)
    [log] = client.logs.list(run)
    [simulator] = client.simulators.list(run, state="connected")

    [listed] = client.simulators.list_all(f"run_id = {run}")

    assert (listed.run_id, listed.run_name, listed.session_id) == (run, run, "one")
    assert client.metrics.list(run)[0].value == 3.0
    assert (series.steps, series.values, series.total) == ((100, 200), (1.0, 3.0), 2)
    assert checkpoint == client.checkpoints.get(run)
    assert checkpoint.files[0].name == "CartPole.onnx"
    assert client.logs.read(run, log.attempt, log.name, tail=3).text == "lo\n"
    assert simulator.behaviors == ("CartPole",)
    assert client.runs.attempts(run)[0].worker_id == "host/1/1"
    assert client.workers.list() == []


@pytest.mark.parametrize("server", ["not a url", "http://[::1", "ftp://127.0.0.1"])
def test_an_address_that_is_none_is_said_in_a_sentence(server: str) -> None:
    with pytest.raises(ServerUnreachable), Client(server) as client:
        client.runs.get("x")


@pytest.mark.parametrize("content", [b"<html>It works!</html>", b'{"error": "x"}', b"[]", b"7"])
@pytest.mark.parametrize("status", [200, 404, 502])
def test_another_server_is_not_taken_for_ours(status: int, content: bytes) -> None:
    transport = httpx2.MockTransport(lambda _request: httpx2.Response(status, content=content))

    with Client("http://127.0.0.1", transport=transport) as client, pytest.raises(ServerUnreachable):
        client.runs.get("x")


def test_a_refused_token_is_said_with_where_it_came_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LUDUS_TOKEN", raising=False)

    def refused(token: str | None = None) -> str:
        with Client(world.server, token) as client, pytest.raises(ProblemAnswer) as caught:
            client.runs.get("x")
        return str(caught.value)

    with open_world(tmp_path, token="sesame") as world:
        assert refused().endswith("None was given: set LUDUS_TOKEN.")
        monkeypatch.setenv("LUDUS_TOKEN", "wrong")
        assert refused().endswith("It was shown the token in LUDUS_TOKEN.")
        monkeypatch.setenv("LUDUS_TOKEN", "sesame")
        assert refused("wrong").endswith("It was shown the token that was given.")


def test_a_server_that_is_not_ready_says_so(client: Client) -> None:
    assert client.ready()
    assert client.version()
    problem = {"code": "not_ready", "detail": "no", "status": 503}
    transport = httpx2.MockTransport(lambda _request: httpx2.Response(503, json=problem))
    with Client("http://127.0.0.1", transport=transport) as other:
        assert not other.ready()
        with pytest.raises(Busy):
            other.runs.get("x")


class Bystanders:
    """One who follows the events of a run, and one who waits for its end."""

    def __init__(self, client: Client, run: str) -> None:
        self.events: list[Event] = []
        self.waited: list[str] = []
        self._client = client
        self._run = run
        self._first = threading.Event()
        self._threads = [threading.Thread(target=each, daemon=True) for each in (self._follow, self._wait)]
        for thread in self._threads:
            thread.start()
        assert self._first.wait(60)
        time.sleep(0.3)  # allow: sleep, because that the other one asks, too, shows nowhere

    def _follow(self) -> None:
        for event in self._client.events.follow(self._run):
            self.events.append(event)
            self._first.set()

    def _wait(self) -> None:
        self.waited.append(self._client.runs.wait(self._run, timeout=60).state)

    def check(self) -> None:
        for thread in self._threads:
            thread.join(60)
        assert [event.type for event in self.events] == ["run_created", "run_cancelled"]
        assert self.waited == ["CANCELLED"]


@pytest.mark.long
def test_a_killed_server_loses_no_event_and_no_waiter(tmp_path: Path) -> None:
    with server_process(tmp_path) as server, Client(server.server) as client:
        run = client.runs.create(CARTPOLE)
        bystanders = Bystanders(client, run.id)

        server.end(signal.SIGKILL)
        server.start()
        client.runs.cancel(run.id)

        bystanders.check()


def test_a_server_that_is_started_again_loses_no_event_and_no_waiter(tmp_path: Path) -> None:
    with serving(build_services(tmp_path)) as address:
        client = Client(address)
        run = client.runs.create(CARTPOLE)
        bystanders = Bystanders(client, run.id)

    with client, serving(build_services(tmp_path), int(address.rpartition(":")[2])):
        client.runs.cancel(run.id)

        bystanders.check()


@pytest.mark.long
def test_a_terminated_server_ends_at_once_though_somebody_watches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ludus.client.backoff.RETRY_SECONDS", 0.5)
    with server_process(tmp_path) as server, Client(server.server) as client:
        run = client.runs.create(CARTPOLE)
        first = threading.Event()

        def follow() -> None:
            with suppress(ServerUnreachable):
                for _ in Client(server.server).events.follow(run.id):
                    first.set()

        follower = threading.Thread(target=follow)
        follower.start()
        assert first.wait(60)

        before = time.monotonic()
        code = server.end(signal.SIGTERM)
        seconds = time.monotonic() - before
        server.listening.close()
        follower.join(60)

        assert seconds < 4
        assert code in {0, -signal.SIGTERM}


def test_patience_has_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ludus.client.backoff.RETRY_SECONDS", 0.5)

    with Client("http://127.0.0.1:9") as client:
        with pytest.raises(ServerUnreachable):
            client.runs.wait("x")
        with pytest.raises(ServerUnreachable):
            list(client.events.follow("x"))


def test_a_number_that_json_cannot_hold_is_refused_by_its_path_before_anything_is_sent(client: Client) -> None:
    wanted = {"A": {"hyperparameters": {"betas": [0.9, float("inf")]}}}

    with pytest.raises(NotSendable, match=r"behaviors\.A\.hyperparameters\.betas\[1\] is inf"):
        client.runs.change("run_unknown", wanted)


@pytest.mark.parametrize(
    ("value", "sent"),
    {
        "a number of numpy": (np.int64(3), 3),
        "a truth of numpy": (np.bool_(True), True),
        "an array": (np.array([[0.5, 1.0]]), [[0.5, 1.0]]),
        "a tuple": ((1, "a", None), [1, "a", None]),
        "a key that is a number": ({1: np.float32(0.5)}, {"1": 0.5}),
    }.values(),
)
def test_numbers_and_arrays_of_numpy_are_sent_as_json_has_them(value: object, sent: object) -> None:
    assert as_json({"overrides": {"x": value}}) == {"overrides": {"x": sent}}


@pytest.mark.parametrize(
    ("value", "problem"), [(Path("a.yaml"), r"config\.x is a \w*Path"), (np.array([np.nan]), r"config\.x\[0\] is nan")]
)
def test_a_value_that_json_has_no_form_for_is_refused_by_its_path(client: Client, value: object, problem: str) -> None:
    with pytest.raises(NotSendable, match=problem):
        client.runs.create({"x": value})


def test_what_no_header_can_carry_is_refused_in_a_sentence_without_the_text(client: Client) -> None:
    with pytest.raises(NotSendable, match="the idempotency key has the character 'ä'"):
        client.runs.create(CARTPOLE, idempotency_key="käse")
    with pytest.raises(ProblemAnswer, match="Idempotency-Key must be 1 to 255"):
        client.runs.create(CARTPOLE, idempotency_key="")
    with pytest.raises(NotSendable, match="the project has the character 'ü'"):
        Client(project="für")
    with pytest.raises(NotSendable, match=r"the token that was given has the character '\\n'") as refused:
        Client(token="sec\nret")
    assert "sec" not in str(refused.value)


def test_the_blanks_around_a_pasted_token_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LUDUS_TOKEN", " secret\r\n")
    assert credential(None, ("LUDUS_TOKEN",)) == Credential("secret", "in LUDUS_TOKEN")
    monkeypatch.setenv("LUDUS_TOKEN", " ")
    assert credential(None, ("LUDUS_TOKEN",)) is None


def test_who_writes_http_to_a_server_of_tls_or_another_protocol_is_told_so() -> None:
    def hang_up(server: socket.socket) -> None:
        server.accept()[0].close()

    with socket.create_server(("127.0.0.1", 0)) as rude:
        thread = threading.Thread(target=hang_up, args=(rude,))
        thread.start()
        server = f"http://127.0.0.1:{rude.getsockname()[1]}"
        with Client(server) as client, pytest.raises(ServerUnreachable, match="if it speaks TLS, write https://"):
            client.ready()
        thread.join()


def test_who_writes_https_to_a_server_without_tls_is_told_so(world: World) -> None:
    server = world.server.replace("http:", "https:")
    with Client(server) as client, pytest.raises(ServerUnreachable, match="it speaks no TLS: write http://"):
        client.ready()


NAMED = {
    "run",
    "run_id",
    "experiment",
    "ladder",
    "demonstration",
    "webhook",
    "worker",
    "token_id",
    "checkpoint",
    "name",
}
NOT_IN_THE_PATH = {"create", "start", "selected"}


def methods_of_one() -> Iterator[str]:
    """Name the methods that ask for one resource by the name that is their first argument."""
    for kind, resource in vars(Client("http://127.0.0.1:9")).items():
        if isinstance(resource, Resource):
            for name, method in inspect.getmembers(resource, inspect.ismethod):
                first = next(iter(inspect.signature(method).parameters), "")
                if not name.startswith("_") and first in NAMED and (name not in NOT_IN_THE_PATH or kind == "configs"):
                    yield f"{kind}.{name}"


@pytest.mark.parametrize("method", [*methods_of_one()])
@pytest.mark.parametrize("name", ["", ".."])
def test_a_name_that_would_be_the_path_of_something_else_is_not_sent(client: Client, method: str, name: str) -> None:
    call = attrgetter(method)(client)
    others = list(inspect.signature(call).parameters.values())[1:]
    asked = [parameter for parameter in others if parameter.default is parameter.empty]
    positional = ["x" for parameter in asked if parameter.kind is not inspect.Parameter.KEYWORD_ONLY]
    keywords = {parameter.name: "x" for parameter in asked if parameter.kind is inspect.Parameter.KEYWORD_ONLY}

    with pytest.raises(NotSendable, match="which names nothing"):
        for _ in call(name, *positional, **keywords):
            pass
