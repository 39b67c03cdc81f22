"""A process of the fleet that is a worker host with many slots: threads with the database code of real slots.

Each slot has a pool of two connections, as a real one. Slots of a host share the statements that SQLAlchemy has
compiled, so each is like one that has had a run before: a first claim would compile for 15 ms. An idle slot beats and
counts messages every 2 s, and claims when the host's consumer hands it a message. A busy one renews its lease every
2 s, appends summaries of 25 keys, and records its simulators; slots with runs that are listened to append events.
`--slower` multiplies all these times, and above 3 that of leases. Nothing trains.
"""

import argparse
import math
import queue
import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import Any

from kombu.messaging import Consumer

from benchmarks.fleet.parts import Samples
from ludus.schemas.states import RunState
from server.kit.db.database import Database
from server.kit.errors import BrokerUnavailable, DatabaseUnavailable, LeaseLost
from server.kit.queue import WakeUpQueue, make_celery, queues_of
from server.kit.settings import QueueSettings, Settings
from server.lifecycle.attempts import AttemptLedger
from server.lifecycle.claims.repository import Claim, RunQueue
from server.metrics.points import MetricPoint
from server.runs.scheduling.demand import Offer
from server.workers.repository import WorkerInfo, WorkerRegistry

BEAT_SECONDS = 2.0
LEASE_SECONDS = 10.0
"""Both as shipped."""
BEATS_OF_LEASE = 1.6
"""A lease is at least so many beats of a slow fleet."""
KEYS = [f"Losses/Some Measured Quantity {number}" for number in range(25)]
LISTENED = 10
"""Runs with events that are listened to: busy-0 to busy-9."""
EVENT_SECONDS = 0.5
"""Between two events of such a run."""
CONNECT_SECONDS = 0.1
"""Between two simulators of a run that connect."""


def lease_seconds_of(slower: float) -> float:
    """Return the length of leases in a fleet of this pace; the controller must know it, too."""
    return max(LEASE_SECONDS, BEATS_OF_LEASE * BEAT_SECONDS * slower)


@dataclass
class Duty:
    """Something that a busy slot does again and again."""

    operation: str
    period: float
    act: Callable[[], Any]
    due: float = 0.0


class Host:
    """The slots of this process, and the consumer of their messages."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.samples = Samples()
        settings = Settings(queue=QueueSettings(broker_url=options.broker))
        self._celery = make_celery(settings)
        self.wake_ups = WakeUpQueue(self._celery)
        self.compiler = Database(options.url).engine
        """The engine whose compiled statements the slots share. It has no connection."""
        self.idle: queue.SimpleQueue[Slot] = queue.SimpleQueue()
        """Slots that wait for a message. A slot of a real host is a process, which Celery's parent hands messages."""
        self.beat_seconds = BEAT_SECONDS * options.slower
        self.lease_seconds = lease_seconds_of(options.slower)
        self.known = self.busy = 0
        self._lock = threading.Lock()

    def begin(self) -> None:
        """Start all slots, one after the other."""
        if not self.options.claims:
            threading.Thread(target=self.consume, daemon=True).start()
        for number in range(self.options.slots):
            wait = number * self.options.start_seconds
            threading.Thread(target=Slot(self, number).run, args=(wait,), daemon=True).start()

    @contextmanager
    def counting(self) -> Iterator[None]:
        """Count a slot with a run."""
        with self._lock:
            self.busy += 1
        try:
            yield
        finally:
            with self._lock:
                self.busy -= 1

    def meet(self) -> None:
        """Count a slot that has registered."""
        with self._lock:
            self.known += 1

    def consume(self) -> None:
        """Hand each message to an idle slot. The body of a thread."""

        def hand_out(body: Any, message: Any) -> None:
            self.idle.get().messages.put(body[1]["run_id"])
            message.ack()

        with self._celery.connection_for_read() as connection:
            connection.default_channel.basic_qos(0, 1, False)
            labels = filter(None, self.options.labels.split(","))
            queues = queues_of([Offer(labels=frozenset(labels)).kind])
            channel: Any = connection.default_channel
            with Consumer(channel, queues, callbacks=[hand_out], accept=["json"]):  # type: ignore[no-untyped-call]  # kombu
                while True:
                    with suppress(TimeoutError):
                        connection.drain_events(timeout=5)


class Slot:
    """A slot: busy from the start, or idle until a message comes."""

    def __init__(self, host: Host, number: int) -> None:
        self._host, self._samples = host, host.samples
        self._labels = tuple(filter(None, host.options.labels.split(",")))
        self._offer = Offer(labels=frozenset(self._labels))
        self._id = f"{host.options.host}-{number}/1/0"
        self._database = Database(host.options.url, pool_size=2)
        engine, shared = self._database.engine, host.compiler
        engine.dialect, engine._compiled_cache = shared.dialect, shared._compiled_cache  # noqa: SLF001
        self._database._reader = engine.execution_options(**self._database._reader.get_execution_options())  # noqa: SLF001
        self._registry, self._queue = WorkerRegistry(self._database), RunQueue(self._database)
        self.messages: queue.SimpleQueue[str | None] = queue.SimpleQueue()

    def run(self, wait: float) -> None:
        """Be the slot, for good."""
        time.sleep(wait)
        info = WorkerInfo(self._id, self._host.options.host, 1, "0", self._labels)
        while True:
            try:
                self._registry.register(info)
                waits = self._queue.waiting(self._offer)
                break
            except DatabaseUnavailable:
                time.sleep(BEAT_SECONDS)
        self._host.meet()
        if self._host.options.claims:
            while not self._claim(None):
                time.sleep(BEAT_SECONDS)
        elif waits is not None:
            self._host.wake_ups.wake(waits, self._offer.kind)  # as a slot that starts: its message was sent before
        while True:
            self._host.idle.put(self)
            self._claim(self._idle())

    def _idle(self) -> str | None:
        """Beat until a message comes; return its run."""
        due = time.monotonic() + random.uniform(0, self._host.beat_seconds)
        while True:
            try:
                return self.messages.get(timeout=max(0.0, due - time.monotonic()))
            except queue.Empty:
                due = max(due + self._host.beat_seconds, time.monotonic())
            with self._samples.timed("beat of an idle slot"):
                self._registry.beat(self._id)
            try:
                self._host.wake_ups.pending()
                self._host.wake_ups.pending(self._offer.kind)
            except BrokerUnavailable:
                continue

    def _claim(self, hint: str | None) -> bool:
        """Claim and work until there is nothing to claim; return whether there was something."""
        claimed = False
        while True:
            began, processor = time.monotonic(), time.thread_time()
            try:
                claim = self._queue.claim(self._id, self._host.lease_seconds, hint, self._offer)
            except DatabaseUnavailable:
                self._samples.fail("claim")
                continue
            operation = "claim of nothing" if claim is None else "claim"
            self._samples.add(operation, began, time.thread_time() - processor)
            if claim is None:
                if self._queue.for_another is not None:
                    self._host.wake_ups.wake(*self._queue.for_another)
                return claimed
            claimed, hint = True, None
            with self._host.counting(), suppress(LeaseLost):
                self._work(claim)
            self._samples.fail("lease")  # nothing else ends the work

    def _work(self, claim: Claim) -> None:
        """Write all that a slot with a run writes. Raises LeaseLost."""
        options, name = self._host.options, claim.name or ""
        ledger = AttemptLedger(self._database, claim)
        kind, number = name.split("-")
        while True:
            try:
                ledger.listening([{"address": options.collector, "index": 0}])
                self._samples.moment(name)
                ledger.move(RunState.RUNNING)
                break
            except DatabaseUnavailable:
                self._samples.fail("start of an attempt")
        steps = count(1)
        simulators = iter(range(options.connected if kind == "busy" else options.waiting))

        def summarize() -> None:
            step, at = 1000 * next(steps), time.time()
            ledger.metrics.append([MetricPoint("CartPole", key, step, at, math.sin(step)) for key in KEYS])

        def connect() -> None:
            simulator = next(simulators, None)
            if simulator is None:
                duties.remove(connecting)
            else:
                ledger.simulators.connected(f"{name}-{simulator}", number=simulator, collector=0)

        connecting = Duty("a simulator's connection", CONNECT_SECONDS * options.slower, connect)
        duties = [
            Duty(
                "beat of a busy slot",
                self._host.beat_seconds,
                lambda: ledger.heartbeat(self._host.lease_seconds, 1000 * next(steps)),
            ),
            Duty("metric append", options.summary_seconds, summarize),
            connecting,
        ]
        if kind == "busy" and int(number) < LISTENED:
            tell = partial(ledger.event, "benchmark_event", "Something happened.")
            duties.append(Duty("event", EVENT_SECONDS * options.slower, lambda: tell(data={"sent": time.monotonic()})))
        began = time.monotonic()
        for duty in duties:
            duty.due = began + random.uniform(0, duty.period)
        while True:
            duty = min(duties, key=lambda one: one.due)
            time.sleep(max(0.0, duty.due - time.monotonic()))
            duty.due = max(duty.due + duty.period, time.monotonic())
            with self._samples.timed(duty.operation):
                duty.act()


def main() -> None:
    """Be a host until the benchmark is gone."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("url", "broker", "host", "collector"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--labels", default="", help="Separated by commas.")
    parser.add_argument("--slots", type=int, required=True)
    parser.add_argument("--start-seconds", type=float, required=True, help="Between the starts of two slots.")
    parser.add_argument("--summary-seconds", type=float, required=True, help="Between two summaries of a slot.")
    parser.add_argument("--slower", type=float, default=1.0)
    parser.add_argument("--connected", type=int, required=True, help="Simulators of a run that is busy from the start.")
    parser.add_argument("--waiting", type=int, required=True, help="Simulators of a run that waits.")
    parser.add_argument("--claims", action="store_true", help="Slots claim until they have a run, and hear no message.")
    host = Host(parser.parse_args())
    host.samples.serve(host.begin, lambda: {"known": host.known, "busy": host.busy})


if __name__ == "__main__":
    main()
