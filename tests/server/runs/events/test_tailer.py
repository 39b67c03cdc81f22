import threading
import time
from collections.abc import Collection, Mapping, Sequence

from ludus.schemas.states import RunState
from server.kit.errors import DatabaseUnavailable
from server.runs.events.tailer import RING_SIZE, Entry, Feed, Head, Tailer
from tests.waiting import eventually, never


class MemoryEvents:
    """An EventSource in memory that counts how often it is asked."""

    def __init__(self) -> None:
        self.logs: dict[str, Head] = {}
        self.head_queries = 0
        self.event_queries = 0
        self.broken = False

    def append(self, run_id: str, count: int = 1, state: RunState = RunState.RUNNING) -> None:
        known = self.logs.get(run_id, Head(0, state))
        self.logs[run_id] = Head(known.seq + count, state)

    def heads(self, run_ids: Collection[str]) -> Mapping[str, Head]:
        self.head_queries += 1
        if self.broken:
            raise DatabaseUnavailable("gone")
        return {run_id: self.logs[run_id] for run_id in run_ids if run_id in self.logs}

    def after(self, run_id: str, seq: int, limit: int) -> Sequence[Entry]:
        self.event_queries += 1
        newest = self.logs[run_id].seq
        return [Entry(each, b"%d" % each) for each in range(seq + 1, min(newest, seq + limit) + 1)]


def test_one_poll_and_one_read_serve_any_number_of_watchers() -> None:
    events = MemoryEvents()
    events.append("a", 3)
    tailer = Tailer(events, interval_seconds=0.01)
    wakers = [threading.Event() for _ in range(50)]
    watches = [tailer.watch("a", waker.set) for waker in wakers]
    feeds = [watch.__enter__() for watch in watches]
    eventually(lambda: feeds[0].head is not None)

    events.append("a")
    eventually(lambda: all(feed.since(3) == (Entry(4, b"4"),) for feed in feeds))

    assert events.event_queries == 1
    for watch in watches:
        watch.__exit__(None, None, None)
    tailer.close()


def test_nobody_watching_means_no_queries() -> None:
    events = MemoryEvents()
    tailer = Tailer(events, interval_seconds=0.01)
    with tailer.watch("a", lambda: None):
        eventually(lambda: events.head_queries > 0)

    time.sleep(0.05)  # allow: sleep, because a look that had begun takes a moment
    before = events.head_queries
    never(lambda: events.head_queries != before, "a query for nobody", 0.1)
    tailer.close()


def test_a_watcher_who_is_behind_the_ring_is_told_to_read_for_himself() -> None:
    feed = Feed("a")
    feed.head = Head(10, RunState.RUNNING)
    feed.ring = (Entry(9, b"9"), Entry(10, b"10"))

    assert feed.since(10) == ()
    assert feed.since(8) == feed.ring
    assert feed.since(7) is None


def test_a_burst_beyond_the_ring_leaves_no_gap_in_it() -> None:
    events = MemoryEvents()
    events.append("a")
    tailer = Tailer(events, interval_seconds=0.01)
    with tailer.watch("a", lambda: None) as feed:
        eventually(lambda: feed.head is not None)
        events.append("a", 2 * RING_SIZE)
        eventually(lambda: feed.head == events.logs["a"])
        assert feed.since(1) is None

        events.append("a")
        eventually(lambda: feed.head == events.logs["a"])

        assert [entry.seq for entry in feed.ring] == [2 * RING_SIZE + 2]
    tailer.close()


def test_an_outage_of_the_database_is_survived() -> None:
    events = MemoryEvents()
    events.broken = True
    tailer = Tailer(events, interval_seconds=0.01)
    with tailer.watch("a", lambda: None) as feed:
        eventually(lambda: events.head_queries > 0)
        events.broken = False
        events.append("a")

        eventually(lambda: feed.head == Head(1, RunState.RUNNING))
    tailer.close()


def test_closing_wakes_all_watchers_and_ends_the_thread() -> None:
    events = MemoryEvents()
    events.append("a")
    tailer = Tailer(events, interval_seconds=0.01)
    woken = threading.Event()
    with tailer.watch("a", woken.set) as feed:
        eventually(lambda: feed.head is not None)
        woken.clear()

        tailer.close()

        assert woken.wait(30)
        assert tailer.closed
    eventually(lambda: not tailer.running)


class BusyEvents(MemoryEvents):
    """Events of which another one is appended whenever somebody is about to read them."""

    def after(self, run_id: str, seq: int, limit: int) -> Sequence[Entry]:
        if self.logs[run_id].seq < 20:
            self.append(run_id)
        return super().after(run_id, seq, limit)


def test_an_event_that_is_appended_between_the_two_readings_is_told_once() -> None:
    events = BusyEvents()
    events.append("a", 3)
    tailer = Tailer(events, interval_seconds=0.005)
    with tailer.watch("a", lambda: None) as feed:
        eventually(lambda: feed.head is not None)
        events.append("a")
        eventually(lambda: feed.head is not None and feed.head.seq == 20)
        told = feed.since(3)
    tailer.close()

    assert told is not None
    assert [entry.seq for entry in told] == list(range(4, 21))
