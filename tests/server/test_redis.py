"""Celery on a real Redis: what its users report as traps does not happen here."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
import redis

from server.kit.db.database import Database
from server.kit.db.migrate import upgrade_database
from server.kit.errors import BrokerUnavailable
from server.kit.queue import WakeUpQueue, make_celery
from server.kit.settings import Settings
from tests.chaos.servers import Cable, Redis
from tests.e2e.stack import LUDUS, environment
from tests.factories import make_run, read_run
from tests.server.malformed import malformed_messages
from tests.waiting import eventually, never

pytestmark = [pytest.mark.redis]

SLOW = """
import sys, time
from server.kit.queue import TaskName, make_celery
from server.kit.settings import Settings
celery = make_celery(Settings(home=sys.argv[1], queue={"broker_url": sys.argv[2]}))
celery.conf.broker_transport_options["visibility_timeout"] = 1

@celery.task(name=TaskName.TRAIN)
def train(run_id):
    with open(f"{sys.argv[1]}/heard", "a") as file:
        file.write(f"{run_id}\\n")
    time.sleep(float(run_id))

celery.worker_main(["worker", "--pool=prefork", "--concurrency=1", "--without-gossip", "--without-mingle",
                    "--without-heartbeat", "--loglevel=ERROR"])
"""


@pytest.fixture
def server() -> Iterator[Redis]:
    running = Redis()
    running.start()
    yield running
    running.crash()


@pytest.fixture
def wake_up(server: Redis, tmp_path: Path) -> WakeUpQueue:
    return WakeUpQueue(make_celery(Settings(home=tmp_path, queue={"broker_url": server.url})))  # type: ignore[arg-type]


def test_a_task_that_outlasts_the_visibility_time_out_is_not_delivered_again_nor_the_next_one_fetched_ahead(
    server: Redis, wake_up: WakeUpQueue, tmp_path: Path
) -> None:
    heard = tmp_path / "heard"
    worker = subprocess.Popen([sys.executable, "-c", SLOW, str(tmp_path), server.url])
    try:
        wake_up.wake("15")  # kombu looks for what is overdue every 10 s
        eventually(heard.exists, "the message is heard")
        wake_up.wake("0")
        never(lambda: wake_up.pending() != 1, "a worker holds a message that it can't work on", 2)
        client = redis.Redis(port=server.port)
        assert all(key.startswith(b"ludus:") for key in client.scan_iter() if b"kombu" not in key)
        client.close()
        eventually(lambda: "0" in heard.read_text().split(), "the next one", 30)
    finally:
        worker.terminate()
        worker.wait(30)

    assert heard.read_text().split() == ["15", "0"]


def test_a_worker_whose_connection_is_forgotten_starts_anew_and_takes_the_run(server: Redis, tmp_path: Path) -> None:
    cable = Cable(("127.0.0.2", server.port), ("127.0.0.1", server.port))
    cable.mend()
    url = f"redis://127.0.0.2:{server.port}/0"
    settings = Settings(home=tmp_path, queue={"broker_url": url})  # type: ignore[arg-type]
    database = Database.from_settings(settings.database)
    upgrade_database(database)
    log = (tmp_path / "worker.log").open("wb")
    extra = {"LUDUS_HOME": str(tmp_path), "LUDUS_QUEUE__BROKER_URL": url, "LUDUS_WORKER__STALL_SECONDS": "3"}
    worker = subprocess.Popen([*LUDUS, "worker"], env=environment(**extra), stdout=log, stderr=log, cwd=tmp_path)
    wake_up = WakeUpQueue(make_celery(settings))
    try:
        eventually(lambda: _somebody_listens(server), "the worker listens", 60)
        cable.block()  # what is open stays open, and nothing comes through any more
        run = make_run(database)
        for _ in range(3):  # the first one is given to the connection that nobody hears
            wake_up.wake(run.id)
        eventually(lambda: read_run(database, run.id).attempt > 0, "the run is claimed", 90)
        assert worker.poll() is None, "it is the same process"
    finally:
        worker.terminate()
        worker.wait(90)
        log.close()
        cable.cut()
        database.close()
    assert b"queue_stalled" in (tmp_path / "worker.log").read_bytes()


@pytest.fixture
def listening(server: Redis, tmp_path: Path) -> "Iterator[subprocess.Popen[bytes]]":
    """A worker that listens to the server, with its log in a file."""
    settings = {"LUDUS_HOME": str(tmp_path), "LUDUS_QUEUE__BROKER_URL": server.url}
    subprocess.run([*LUDUS, "migrate"], env=environment(**settings), check=True, cwd=tmp_path)
    with (tmp_path / "worker.log").open("wb") as log:
        worker = subprocess.Popen([*LUDUS, "worker"], env=environment(**settings), stdout=log, stderr=log, cwd=tmp_path)
        try:
            eventually(lambda: _somebody_listens(server), "the worker listens", 60)
            yield worker
            assert worker.poll() is None, "it is the same process"
        finally:
            worker.terminate()
            worker.wait(90)


def taken(tmp_path: Path, wake_up: WakeUpQueue) -> None:
    """Queue a run, and wait until a worker has taken it."""
    database = Database.from_settings(Settings(home=tmp_path).database)
    run = make_run(database)
    wake_up.wake(run.id)
    eventually(lambda: read_run(database, run.id).attempt > 0, "the run is claimed", 90)
    database.close()


@pytest.mark.long
@pytest.mark.timeout(300)
@pytest.mark.usefixtures("listening")
def test_a_worker_outlives_every_message_that_is_none(server: Redis, wake_up: WakeUpQueue, tmp_path: Path) -> None:
    with redis.Redis(port=server.port) as client:
        for message in malformed_messages():
            client.lpush("ludus:ludus", message)
        eventually(lambda: wake_up.pending() == 0, "all are read", 60)
        taken(tmp_path, wake_up)
    log = (tmp_path / "worker.log").read_text()
    assert log.count('"message_discarded"') == len(malformed_messages()), log
    assert "Traceback" not in log
    assert len(log) < 100_000, "nothing is repeated in the log"


@pytest.mark.long
@pytest.mark.timeout(300)
@pytest.mark.usefixtures("listening")
def test_a_redis_that_takes_no_writes_for_a_while_ends_nothing(
    server: Redis, wake_up: WakeUpQueue, tmp_path: Path
) -> None:
    """A failover: it is a replica for a moment. Wake-ups are lost, and the watchdogs wait."""
    with redis.Redis(port=server.port) as client:
        client.replicaof("127.0.0.1", "1")
        wake_up.wake("run_1")  # a line in the log
        with suppress(BrokerUnavailable):
            WakeUpQueue(make_celery(Settings(home=tmp_path, queue={"broker_url": server.url}))).pending()  # type: ignore[arg-type]
        never(lambda: _somebody_listens(server), "the worker listens", 3)
        client.replicaof("NO", "ONE")
    taken(tmp_path, wake_up)


def _somebody_listens(server: Redis) -> bool:
    """Tell whether a client waits for messages."""
    client = redis.Redis(port=server.port)
    try:
        return any(each["cmd"] == "brpop" for each in client.client_list())
    finally:
        client.close()
