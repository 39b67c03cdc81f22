"""The wake-up: each ring is heard by one worker, once, and losing the broker is no disaster."""

import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import zip_longest
from pathlib import Path

import pytest

from server.kit.errors import BrokerUnavailable
from server.kit.queue import FolderChannel, FolderTransport, TaskName, WakeUpQueue, make_celery
from server.kit.settings import Settings
from tests.server.malformed import malformed_messages
from tests.waiting import eventually

ROOT = Path(__file__).parents[3]


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(home=tmp_path)


@contextmanager
def consumers(home: Path, count: int, *kinds: str) -> Iterator[list[Path]]:
    """Run real Celery workers, each with slots of one of the kinds; yields the files in which it writes what it got."""
    outputs = [home / f"heard-{number}" for number in range(count)]
    processes = [
        subprocess.Popen([sys.executable, "-m", "tests.server.consumer", str(home), str(output), *own], cwd=ROOT)
        for output, own in zip_longest(outputs, [[kind] for kind in kinds], fillvalue=())
    ]
    try:
        yield outputs
    finally:
        for process in processes:
            process.terminate()
        for process in processes:
            process.wait(20)


def heard(outputs: list[Path]) -> list[str]:
    return [line for output in outputs if output.exists() for line in output.read_text().splitlines()]


def wait_for(outputs: list[Path], count: int, seconds: float) -> list[str]:
    eventually(lambda: len(heard(outputs)) >= count, f"{count} rings are heard", seconds)
    return heard(outputs)


@pytest.mark.long
def test_messages_for_a_kind_are_heard_by_slots_of_it_alone_and_those_for_all_by_any(settings: Settings) -> None:
    doorbell = WakeUpQueue(make_celery(settings))
    with consumers(settings.home, 2, "a", "b") as (of_a, of_b):
        for number in range(10):
            doorbell.wake(f"a-{number}", "a")
            doorbell.wake(f"b-{number}", "b")
            doorbell.wake(f"any-{number}")
        doorbell.wake("c", "c")
        wait_for([of_a, of_b], 30, 60)

    for path, other in ((of_a, "b-"), (of_b, "a-")):
        assert not any(run_id.startswith(other) for run_id in heard([path]))
    assert Counter(run_id.partition("-")[0] for run_id in heard([of_a, of_b])) == {"a": 10, "b": 10, "any": 10}
    assert [doorbell.pending(kind) for kind in (None, "a", "b", "c")] == [0, 0, 0, 1]


@pytest.mark.long
@pytest.mark.parametrize(("listening", "count"), [(2, 500), (4, 3000)])
def test_consumers_hear_every_ring_once(settings: Settings, listening: int, count: int) -> None:
    doorbell = WakeUpQueue(make_celery(settings))
    rings = [f"run_{number}" for number in range(count)]
    with consumers(settings.home, listening) as outputs:
        for ring in rings:
            doorbell.wake(ring)
        wait_for(outputs, len(rings), 90)
        eventually(lambda: doorbell.pending() == 0, "every ring is taken; consumers end with what they have taken")

    counts = Counter(heard(outputs))
    assert counts == Counter(rings)
    assert doorbell.pending() == 0


@pytest.mark.long
def test_rings_wait_in_order_for_a_worker_and_an_idle_one_hears_them_soon(settings: Settings) -> None:
    """Polling every 50 ms; a generous bound, because the machine may be busy."""
    doorbell = WakeUpQueue(make_celery(settings))
    assert doorbell.pending() == 0

    for number in range(3):
        doorbell.wake(str(number))

    assert doorbell.pending() == 3
    with consumers(settings.home, 1) as outputs:
        assert wait_for(outputs, 3, 30) == ["0", "1", "2"]
        delays = []
        for number in range(3, 8):
            begun = time.monotonic()
            doorbell.wake(str(number))
            wait_for(outputs, number + 1, 10)
            delays.append(time.monotonic() - begun)

    assert sorted(delays)[2] < 0.5


def test_messages_never_leave_the_folders_file_system(settings: Settings) -> None:
    """Half a message, or one on its way to a reader, lies inside the folder of messages itself."""
    celery = make_celery(settings)
    with celery.connection_for_write() as connection:
        channel = connection.default_channel
        assert isinstance(channel, FolderChannel)
        assert channel._aside.parent == channel._folder == settings.queue.folder


def test_a_message_carries_the_runs_id_and_nothing_else(settings: Settings) -> None:
    celery = make_celery(settings)
    WakeUpQueue(celery).wake("run_1")
    with celery.connection_for_read() as connection, connection.SimpleQueue("ludus") as queue:
        message = queue.get_nowait()

    assert message.headers["task"] == TaskName.TRAIN
    assert message.payload[:2] == [[], {"run_id": "run_1"}]


def test_messages_are_acknowledged_early_and_never_fetched_ahead(tmp_path: Path) -> None:
    conf = make_celery(
        Settings(home=tmp_path, queue={"broker_url": "redis://127.0.0.1:1/0"})  # type: ignore[arg-type]
    ).conf

    assert not conf.task_acks_late
    assert conf.worker_prefetch_multiplier == 1
    assert conf.worker_disable_prefetch
    assert conf.task_ignore_result
    assert conf.accept_content == ["json"]
    assert not conf.worker_hijack_root_logger


def test_a_broker_that_is_away_fails_fast_and_not_the_caller(tmp_path: Path) -> None:
    settings = Settings(home=tmp_path, queue={"broker_url": "redis://127.0.0.1:1/0"})  # type: ignore[arg-type]
    doorbell = WakeUpQueue(make_celery(settings))
    begun = time.monotonic()

    doorbell.wake("run_1")

    assert time.monotonic() - begun < 2
    with pytest.raises(BrokerUnavailable):
        doorbell.pending()
    with pytest.raises(BrokerUnavailable):
        doorbell.ping()


def test_a_folder_that_is_gone_fails_the_ping(settings: Settings) -> None:
    doorbell = WakeUpQueue(make_celery(settings))
    doorbell.wake("run_1")
    doorbell.ping()
    settings.queue.folder.rename(settings.home / "elsewhere")

    with pytest.raises(BrokerUnavailable, match="folder"):
        doorbell.ping()


def test_counting_what_waits_connects_once_and_again_after_an_outage(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    doorbell = WakeUpQueue(make_celery(settings))
    doorbell.wake("run_1")
    opened: list[object] = []
    establish = FolderTransport.establish_connection

    def count(transport: FolderTransport) -> object:
        opened.append(transport)
        return establish(transport)

    monkeypatch.setattr(FolderTransport, "establish_connection", count)
    assert [doorbell.pending() for _ in range(50)] == [1] * 50
    assert len(opened) == 1

    settings.queue.folder.rename(settings.home / "elsewhere")
    with pytest.raises(BrokerUnavailable):
        doorbell.pending()
    (settings.home / "elsewhere").rename(settings.queue.folder)
    assert doorbell.pending() == 1
    assert len(opened) == 2
    doorbell.close()


@pytest.mark.long
def test_files_that_are_no_wake_ups_are_discarded(settings: Settings) -> None:
    queue = WakeUpQueue(make_celery(settings))
    with consumers(settings.home, 1) as outputs:
        queue.pending()  # makes the folder
        for number, message in enumerate(malformed_messages()):
            (settings.queue.folder / f"{number:04d}.ludus.msg").write_bytes(message)
        queue.wake("proper")

        assert wait_for(outputs, 1, 60) == ["proper"]
        assert queue.pending() == 0
