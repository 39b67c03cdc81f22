"""Celery as a way to wake workers. No state, no results; a message carries a run's id and nothing else.

A lost, late or doubled message is harmless (the claim is a compare-and-set in the database, and the controller repeats
messages), so messages are acknowledged early and prefetching is off: none waits behind a worker that trains for hours.

A message is read for the run's id alone, and what is none is discarded (`WakeUpTransport`): Celery's consumer dies of
messages that it cannot parse, and of headers with wrong types.

A worker receives from the queue of all slots and from those of the kinds of its own. A run that is new is in the first:
the slot that takes the message claims it, or sends the message on to a kind that serves it.

Embedded, messages are files in a folder. kombu's own file transport writes a message under its final name and moves a
fetched one to the system's temporary folder: a reader can meet half a message, and where that folder is on another file
system the move is a copy, which loses messages. `FolderTransport` writes elsewhere first and renames, both ways, inside
the one folder.
"""

import base64
import json
import os
import secrets
import threading
import time
from collections import deque
from collections.abc import Iterable
from contextlib import suppress
from enum import StrEnum
from functools import cached_property
from pathlib import Path
from queue import Empty
from typing import Any

import structlog
from celery import Celery
from kombu.connection import Connection
from kombu.entity import Exchange, Queue
from kombu.exceptions import OperationalError
from kombu.transport import TRANSPORT_ALIASES, virtual

from server.kit.db.texts import JsonObject
from server.kit.errors import BrokerUnavailable
from server.kit.settings import Settings

COUNT_SECONDS = 5.0
"""Time in which Redis must say how many messages wait."""
ID_CHARACTERS, REASON_CHARACTERS = 200, 300
"""Of a run's id or name in a message, at most; of what is logged of one that is discarded."""
_log = structlog.get_logger(__name__)


class TaskName(StrEnum):
    """Names of the tasks, once."""

    TRAIN = "ludus.train"


class WakeUpQueue:
    """Wakes workers."""

    def __init__(self, celery: Celery) -> None:
        self._celery = celery
        self._lock = threading.Lock()
        self._looking: Connection | None = None
        """The connection that counts messages. Each idle slot counts every 2 s: it must not connect every 2 s."""

    def wake(self, run_id: str, kind: str | None = None) -> None:
        """Wake a slot of this kind, or any, for a run. Call it after the commit. An unreachable broker is no error."""
        try:
            self._celery.send_task(TaskName.TRAIN, kwargs={"run_id": run_id}, queue=queue_name(kind), retry=False)
        except (OperationalError, OSError) as error:
            _log.warning("wake_up_failed", run_id=run_id, error=str(error))

    def ping(self) -> None:
        """Ask the broker for a sign of life. Raises BrokerUnavailable after a few seconds."""
        folder = self._celery.conf.broker_transport_options.get("folder")
        try:
            if folder is not None and not os.access(folder, os.R_OK | os.W_OK | os.X_OK):
                raise BrokerUnavailable(f"the folder {folder} cannot be written to")
            with self._celery.connection_for_write() as connection:
                connection.ensure_connection(max_retries=1, interval_start=0.2, timeout=2)
        except (OperationalError, OSError) as error:
            raise BrokerUnavailable(str(error)) from error

    def pending(self, kind: str | None = None) -> int:
        """Return how many messages wait for a slot of this kind, or for any. Raises BrokerUnavailable."""
        with self._lock:
            if self._looking is None:
                # Counting takes milliseconds. A connection that a network element has forgotten must not be noticed
                # later than a stall of the consumer's (`worker.host.ending`).
                self._looking = self._celery.connection_for_read(transport_options={"socket_timeout": COUNT_SECONDS})
            try:
                queue = self._looking.default_channel.queue_declare(queue_name(kind))
                return int(queue.message_count)
            except (
                OperationalError,
                OSError,
                *self._looking.connection_errors,
                *self._looking.channel_errors,
            ) as error:
                self._close_looking()
                raise BrokerUnavailable(str(error)) from error

    def close(self) -> None:
        """Close the connection that counts messages."""
        with self._lock:
            self._close_looking()

    def _close_looking(self) -> None:
        if self._looking is not None:
            with suppress(*_errors(self._looking)):
                self._looking.release()  # type: ignore[no-untyped-call]  # kombu has no types
        self._looking = None


def _errors(connection: Connection) -> tuple[type[Exception], ...]:
    """Return the errors of a broker that is away, or refuses (a replica of Redis, one without memory or disk)."""
    return (OperationalError, OSError, *connection.connection_errors, *connection.channel_errors)


def queue_name(kind: str | None) -> str:
    """Return the queue of the messages for slots of a kind (`Offer.kind`); None: for all slots."""
    return "ludus" if kind is None else f"ludus-{kind}"


def queues_of(kinds: Iterable[str]) -> list[Queue]:
    """Return the queues of a worker whose slots are of these kinds, for `task_queues`.

    With names of their own for exchange and routing key: Celery's default would send each message to all of them.
    """
    names = sorted({queue_name(None), *map(queue_name, kinds)})
    return [Queue(name, Exchange(name), routing_key=name) for name in names]  # type: ignore[no-untyped-call]  # kombu


def make_celery(settings: Settings) -> Celery:
    """Build the Celery application: on Redis where one is configured, else on a folder."""
    broker_url = settings.queue.broker_url.get_secret_value()
    celery = Celery("ludus", set_as_current=False)
    celery.conf.update(
        accept_content=["json"],
        task_serializer="json",
        result_serializer="json",
        task_ignore_result=True,
        task_acks_late=False,
        task_default_queue=queue_name(None),
        task_store_errors_even_if_ignored=False,
        worker_prefetch_multiplier=1,
        worker_hijack_root_logger=False,
        worker_redirect_stdouts=False,
        worker_send_task_events=False,
        worker_enable_remote_control=False,
        worker_cancel_long_running_tasks_on_connection_loss=False,
        broker_connection_retry_on_startup=True,
        broker_connection_max_retries=None,  # for ever: an outage ends no worker
        broker_channel_error_retry=True,  # nor does a Redis that refuses: a replica, one without memory
        enable_utc=True,
    )
    if broker_url:
        TRANSPORT_ALIASES.update(dict.fromkeys(("redis", "rediss"), "server.kit.redis_transport:RedisTransport"))
        celery.conf.update(
            broker_url=broker_url,
            worker_disable_prefetch=broker_url.startswith(("redis://", "rediss://")),
            broker_transport_options={
                "global_keyprefix": "ludus:",
                "socket_connect_timeout": 5,
                "socket_timeout": 30,
                "socket_keepalive": True,
                "max_retries": 0,  # sending fails at once if Redis is unreachable, instead of waiting forever
                "interval_start": 0,
            },
        )
    else:
        celery.conf.update(
            broker_url="folder://localhost",  # the name means nothing, but without one kombu warns
            broker_transport="server.kit.queue:FolderTransport",
            broker_transport_options={
                "folder": str(settings.queue.folder.absolute()),
                "polling_interval": settings.queue.polling_seconds,
            },
        )
    return celery


def wake_up_of(message: Any, queue: str) -> JsonObject:
    """Return a wake-up made anew of the run's id in a message. Raises ValueError with what is wrong if there is none.

    Args:
        message: A received message in Celery's protocol 2, as kombu's virtual transports have it; or anything.
        queue: Name of the queue that it came from.
    """
    try:
        task = message["headers"]["task"]
        run_id = json.loads(base64.b64decode(message["body"]))[1]["run_id"]
    except (LookupError, TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"it is no message of Ludus ({type(error).__name__}: {error})") from None
    if task != TaskName.TRAIN:
        raise ValueError(f"it is for the task {task!r}")
    if not isinstance(run_id, str) or not 0 < len(run_id) <= ID_CHARACTERS:
        raise ValueError("its run_id is no id")
    tag = secrets.token_hex(16)
    embedded = dict.fromkeys(("callbacks", "errbacks", "chain", "chord"))
    return {
        "body": base64.b64encode(json.dumps([[], {"run_id": run_id}, embedded]).encode()).decode(),
        "content-type": "application/json",
        "content-encoding": "utf-8",
        "headers": {"lang": "py", "task": TaskName.TRAIN.value, "id": tag, "root_id": tag},
        "properties": {
            "body_encoding": "base64",
            "delivery_tag": tag,
            "delivery_info": {"exchange": queue, "routing_key": queue},
        },
    }


def discard(queue: str, reason: object) -> None:
    """Log that a message is not used."""
    _log.warning("message_discarded", queue=queue, reason=str(reason)[:REASON_CHARACTERS])


class WakeUpTransport(virtual.Transport):
    """A transport that delivers wake-ups and nothing else."""

    def _deliver(self, message: Any, queue: str) -> None:
        try:
            wake_up = wake_up_of(message, queue)
        except ValueError as error:
            discard(queue, error)
            return
        super()._deliver(wake_up, queue)  # type: ignore[no-untyped-call]  # kombu has no types


class FolderChannel(virtual.Channel):
    """A channel whose messages are files that appear and disappear by a rename: whole, and for one reader only."""

    ASIDE = ".aside"
    """Folder within the folder of messages, so on the same file system, for those being written or read."""

    def _put(self, queue: str, message: Any, **_options: object) -> None:
        name = f"{time.time_ns():020d}-{secrets.token_hex(8)}.{queue}.msg"
        aside = self._aside / name
        aside.write_text(json.dumps(message))
        aside.rename(self._folder / name)

    def _get(self, queue: str, timeout: float | None = None) -> Any:  # noqa: ARG002  # the base class's signature
        names = self._seen.setdefault(queue, deque())
        if not names:
            names.extend(self._waiting(queue))
        while names:
            name = names.popleft()
            aside = self._aside / name
            try:
                (self._folder / name).rename(aside)
            except FileNotFoundError:
                continue  # another reader was faster
            message = aside.read_bytes()
            aside.unlink()
            try:
                return json.loads(message)
            except (ValueError, RecursionError) as error:
                discard(queue, error)
        raise Empty

    def _size(self, queue: str) -> int:
        return len(self._waiting(queue))

    def _purge(self, queue: str) -> int:
        names = self._waiting(queue)
        for name in names:
            (self._folder / name).unlink(missing_ok=True)
        return len(names)

    def _waiting(self, queue: str) -> list[str]:
        """Return the names of a queue's messages, oldest first."""
        return sorted(name for name in os.listdir(self._folder) if name.endswith(f".{queue}.msg"))  # noqa: PTH208

    @cached_property
    def _seen(self) -> dict[str, deque[str]]:
        """Names that the last look into the folder found, per queue: newer ones come after them anyway."""
        return {}

    @cached_property
    def _folder(self) -> Path:
        folder = Path(self.connection.client.transport_options["folder"])
        (folder / self.ASIDE).mkdir(parents=True, exist_ok=True)
        return folder

    @property
    def _aside(self) -> Path:
        return self._folder / self.ASIDE


ATTENTION_SECONDS = 0.2


class FolderTransport(WakeUpTransport):
    """A transport over a folder of a local disk, for any number of processes.

    Exchanges and bindings are each process's own (every process declares the one queue before it uses it), so there is
    no file that several processes would have to rewrite in turn.
    """

    Channel = FolderChannel
    driver_type = "folder"
    driver_name = "folder"

    def drain_events(self, connection: Any, timeout: float | None = None) -> None:  # type: ignore[override]  # as kombu calls it
        """Wait for a message, but not for long: between two waits Celery looks whether it shall stop."""
        wait = ATTENTION_SECONDS if timeout is None else min(timeout, ATTENTION_SECONDS)
        super().drain_events(connection, timeout=wait)  # type: ignore[no-untyped-call]  # kombu has no types

    def driver_version(self) -> str:
        """Return the version of the format of the files."""
        return "1"
