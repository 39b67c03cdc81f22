import signal
import socket
import threading
import time
from contextlib import suppress
from pathlib import Path

import httpx
import pytest

from ludus.client import (
    Busy,
    Client,
    DownloadDamaged,
    NotFinite,
    NotFound,
    ProblemAnswer,
    ServerUnreachable,
    StoredConfig,
    WaitTimedOut,
)
from ludus.schemas import Event
from tests.ludus.api_world import server_process
from tests.server.app.world import CARTPOLE, World, build_services, open_world, serving


def test_a_run_is_created_found_listed_and_stopped(client: Client) -> None:
    created = client.create_run(CARTPOLE, name="mine", tags=["b", "a"], overrides={"seed": 5})

    assert (created.state, created.seed, created.tags) == ("QUEUED", 5, ("a", "b"))
    assert created.created_at.tzinfo is not None
    assert client.get_run("mine") == created
    [listed] = client.list_runs(filter='name = "mine"')
    assert (listed.id, listed.config) == (created.id, None)
    assert client.stop("mine").state == "SUCCEEDED"
    assert client.wait("mine", timeout=5).stop_reason == "user"


def test_a_list_fetches_pages_as_needed_and_stops_at_its_limit(client: Client, world: World) -> None:
    for _ in range(5):
        client.create_run(CARTPOLE, tags=["paged"])

    assert len(list(client.list_runs(filter="tag = paged"))) == 5
    assert len(list(client.list_runs(filter="tag = paged", limit=3))) == 3


def test_a_plan_queues_nothing(client: Client) -> None:
    plan = client.plan_run("behaviors: {Planned: {}}", name="planned")

    assert plan.config["behaviors"]["Planned"]["max_steps"] == 500000
    with pytest.raises(NotFound) as caught:
        client.get_run("planned")
    assert caught.value.code == "run_not_found"


def test_all_mistakes_arrive_with_their_paths(client: Client) -> None:
    with pytest.raises(ProblemAnswer) as caught:
        client.create_run({"behaviors": {"X": {"max_stepz": 1, "time_horizon": "long"}}})

    assert caught.value.code == "invalid_config"
    assert {item.path for item in caught.value.errors} == {"behaviors.X.max_stepz", "behaviors.X.time_horizon"}


def test_one_key_is_one_run(client: Client) -> None:
    first = client.create_run(CARTPOLE, idempotency_key="the-same")
    second = client.create_run(CARTPOLE, idempotency_key="the-same")

    assert first.id == second.id


def test_a_wait_times_out_with_the_run_as_it_is(client: Client) -> None:
    run = client.create_run(CARTPOLE)

    with pytest.raises(WaitTimedOut) as caught:
        client.wait(run.id, timeout=0.3)

    assert caught.value.run.state == "QUEUED"


def test_a_wait_for_a_state_ends_there(client: Client, world: World) -> None:
    run = client.create_run(CARTPOLE)
    threading.Timer(0.2, world.claim(run.id).start).start()

    assert client.wait(run.id, ["RUNNING"], timeout=10).state == "RUNNING"


def test_events_are_read_and_followed(client: Client, world: World) -> None:
    run = client.create_run(CARTPOLE)
    threading.Timer(0.3, lambda: world.claim(run.id).start().finish()).start()

    followed = list(client.follow_events(run.id))

    assert [event.seq for event in followed] == list(range(1, len(followed) + 1))
    assert followed[-1].type == "run_succeeded"
    assert list(client.list_events(run.id)) == followed
    assert list(client.follow_events(run.id, after=followed[-1].seq)) == []


def test_metrics_checkpoints_logs_attempts_simulators_and_workers_are_typed(
    client: Client, world: World, tmp_path: Path
) -> None:
    trainer = world.claim(client.create_run(CARTPOLE).id).start()
    trainer.measure("Environment/Cumulative Reward", [1.0, 3.0])
    trainer.save(100, {"CartPole.onnx": b"model"}, tmp_path)
    trainer.write_log("trainer.log", b"hello\n", tmp_path)
    trainer.ledger.simulator_connected("one", number=0, collector=0)
    trainer.ledger.simulator_plays("one", ["CartPole"], 2)
    run = trainer.run_id

    [series] = client.series(run, "Environment/Cumulative Reward")
    [checkpoint] = client.checkpoints(run)
    [log] = client.logs(run)
    [simulator] = client.simulators(run, state="connected")

    assert client.metrics(run)[0].value == 3.0
    assert (series.steps, series.values, series.total) == ((100, 200), (1.0, 3.0), 2)
    assert checkpoint == client.get_checkpoint(run)
    assert checkpoint.files[0].name == "CartPole.onnx"
    assert client.read_log(run, log.epoch, log.name, tail=3).text == "lo\n"
    assert simulator.behaviors == ("CartPole",)
    assert client.attempts(run)[0].worker_id == "host/1/1"
    assert client.workers() == []


def test_configurations_are_stored_compared_and_used(client: Client) -> None:
    first = client.create_config("stored", "# mine\nbehaviors: {CartPole: {}}\n", description="a")
    second = client.create_config("stored", CARTPOLE)

    assert (first.version, second.version) == (1, 2)
    assert client.get_config("stored", 1).source.startswith("# mine")
    assert [each.version for each in client.list_config_versions("stored")] == [2, 1]
    assert [each.name for each in client.list_configs()] == ["stored"]
    [change] = client.diff_configs("stored", 1, 2).changes
    assert (change.path, change.old, change.new) == ("behaviors.CartPole.max_steps", 500000, 10000)
    run = client.create_run(StoredConfig("stored", 1))
    assert (run.config_name, run.config_version) == ("stored", 1)


def test_a_download_is_verified_and_all_or_nothing(client: Client, world: World, tmp_path: Path) -> None:
    content = bytes(range(256)) * 2000
    trainer = world.claim(client.create_run(CARTPOLE).id).start()
    checkpoint = trainer.save(100, {"CartPole.onnx": content}, tmp_path)
    target = tmp_path / "models" / "CartPole.onnx"

    client.download(trainer.run_id, "latest", "CartPole.onnx", target)
    assert target.read_bytes() == content

    stored = world.services.settings.storage.root / f"runs/{trainer.run_id}/1/checkpoints/100/CartPole.onnx"
    stored.write_bytes(b"\xff" + content[1:])
    with pytest.raises(DownloadDamaged):
        client.download(trainer.run_id, checkpoint, "CartPole.onnx", target)
    with pytest.raises(NotFound):
        client.download(trainer.run_id, checkpoint, "Other.onnx", target)

    assert target.read_bytes() == content
    assert list(target.parent.iterdir()) == [target]


def test_a_server_that_is_not_there_is_said_in_a_sentence() -> None:
    with Client("http://127.0.0.1:9") as client, pytest.raises(ServerUnreachable, match="ludus up"):
        client.get_run("x")


@pytest.mark.parametrize("server", ["not a url", "http://[::1", "ftp://127.0.0.1"])
def test_an_address_that_is_none_is_said_in_a_sentence(server: str) -> None:
    with pytest.raises(ServerUnreachable), Client(server) as client:
        client.get_run("x")


@pytest.mark.parametrize("content", [b"<html>It works!</html>", b'{"error": "x"}', b"[]", b"7"])
@pytest.mark.parametrize("status", [200, 404, 502])
def test_another_server_is_not_taken_for_ours(status: int, content: bytes) -> None:
    transport = httpx.MockTransport(lambda _request: httpx.Response(status, content=content))

    with Client("http://127.0.0.1", transport=transport) as client, pytest.raises(ServerUnreachable):
        client.get_run("x")


def test_a_wrong_token_is_a_problem(tmp_path: Path) -> None:
    with open_world(tmp_path, token="sesame") as world:
        with Client(world.server, "wrong") as client, pytest.raises(ProblemAnswer) as caught:
            client.get_run("x")
        assert caught.value.code == "unauthenticated"
        with Client(world.server, "sesame") as client:
            assert list(client.list_runs()) == []


def test_a_refused_token_is_said_with_where_it_came_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LUDUS_TOKEN", raising=False)

    def refused(token: str | None = None) -> str:
        with Client(world.server, token) as client, pytest.raises(ProblemAnswer) as caught:
            client.get_run("x")
        return str(caught.value)

    with open_world(tmp_path, token="sesame") as world:
        assert refused().endswith("None was given: set LUDUS_TOKEN.")
        monkeypatch.setenv("LUDUS_TOKEN", "wrong")
        assert refused().endswith("It was shown the token in LUDUS_TOKEN.")
        monkeypatch.setenv("LUDUS_TOKEN", "sesame")
        assert refused("wrong").endswith("It was shown the token that was given.")


def test_a_follower_whose_token_is_revoked_is_told_and_does_not_come_back(tmp_path: Path) -> None:
    with open_world(tmp_path, token="boss") as world, Client(world.server, "boss") as boss:
        run = boss.create_run(CARTPOLE)
        token = boss.create_token("follower", ["read"])
        with Client(world.server, token.token) as client:
            events = client.follow_events(run.id)
            assert next(events).type == "run_created"
            boss.revoke_token(token.id)

            with pytest.raises(ProblemAnswer, match="revoked") as caught:
                next(events)

    assert (caught.value.status, caught.value.code) == (401, "token_refused")


def test_a_server_that_is_not_ready_says_so(client: Client) -> None:
    assert client.ready()
    assert client.version()
    problem = {"code": "not_ready", "detail": "no", "status": 503}
    transport = httpx.MockTransport(lambda _request: httpx.Response(503, json=problem))
    with Client("http://127.0.0.1", transport=transport) as other:
        assert not other.ready()
        with pytest.raises(Busy):
            other.get_run("x")


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
        time.sleep(0.3)  # the other one asks, too

    def _follow(self) -> None:
        for event in self._client.follow_events(self._run):
            self.events.append(event)
            self._first.set()

    def _wait(self) -> None:
        self.waited.append(self._client.wait(self._run, timeout=60).state)

    def check(self) -> None:
        for thread in self._threads:
            thread.join(60)
        assert [event.type for event in self.events] == ["run_created", "run_cancelled"]
        assert self.waited == ["CANCELLED"]


@pytest.mark.long
def test_a_killed_server_loses_no_event_and_no_waiter(tmp_path: Path) -> None:
    with server_process(tmp_path) as server, Client(server.server) as client:
        run = client.create_run(CARTPOLE)
        bystanders = Bystanders(client, run.id)

        server.end(signal.SIGKILL)
        server.start()
        client.cancel(run.id)

        bystanders.check()


def test_a_server_that_is_started_again_loses_no_event_and_no_waiter(tmp_path: Path) -> None:
    with serving(build_services(tmp_path)) as address:
        client = Client(address)
        run = client.create_run(CARTPOLE)
        bystanders = Bystanders(client, run.id)

    with client, serving(build_services(tmp_path), int(address.rpartition(":")[2])):
        client.cancel(run.id)

        bystanders.check()


def test_a_terminated_server_ends_at_once_though_somebody_watches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ludus.client.patience.PATIENCE_SECONDS", 0.5)
    with server_process(tmp_path) as server, Client(server.server) as client:
        run = client.create_run(CARTPOLE)
        first = threading.Event()

        def follow() -> None:
            with suppress(ServerUnreachable):
                for _ in Client(server.server).follow_events(run.id):
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
    monkeypatch.setattr("ludus.client.patience.PATIENCE_SECONDS", 0.5)

    with Client("http://127.0.0.1:9") as client:
        with pytest.raises(ServerUnreachable):
            client.wait("x", timeout=20)
        with pytest.raises(ServerUnreachable):
            list(client.follow_events("x"))


CURRICULUM = {
    **CARTPOLE,
    "environment_parameters": {
        "pole": {
            "curriculum": [
                {"name": "short", "value": 1, "completion_criteria": {"behavior": "CartPole", "threshold": 100}},
                {"name": "long", "value": 2},
            ]
        }
    },
}


def test_lessons_are_seen_and_changed(client: Client) -> None:
    run = client.create_run(CURRICULUM)

    (pole,) = client.environment_parameters(run.id).parameters
    assert (pole.name, pole.lesson, pole.lessons, pole.lesson_name, pole.value) == ("pole", 1, 2, "short", 1.0)
    client.set_lesson(run.id, "pole", "long")
    sampler = {"sampler_type": "uniform", "sampler_parameters": {"seed": 1}}
    asked = client.set_parameter(run.id, "pole", sampler)

    assert asked.pending[0].change == {"lesson": 2}
    assert asked.pending[1].change["value"]["sampler_type"] == "uniform"
    with pytest.raises(ProblemAnswer) as caught:
        client.set_lesson(run.id, "pole", 3)
    assert (caught.value.code, caught.value.errors[0].path) == ("invalid_edit", "parameters.pole.lesson")


def test_a_number_that_json_cannot_hold_is_refused_by_its_path_before_anything_is_sent(client: Client) -> None:
    wanted = {"A": {"hyperparameters": {"betas": [0.9, float("inf")]}}}

    with pytest.raises(NotFinite, match=r"behaviors\.A\.hyperparameters\.betas\[1\] is inf"):
        client.change_run("run_unknown", wanted)


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
