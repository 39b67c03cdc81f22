"""Commands of operators on worker hosts and slots: cordon, uncordon, drain. One object per request."""

from collections.abc import Sequence

from server.kit.db.database import Session
from server.kit.errors import Conflict, NotFound, WorkerNotFound
from server.kit.states import LEASED, Intent
from server.runs.events.repository import Note
from server.runs.repository import RunRepository
from server.runs.scheduling.repository import WaitingRuns
from server.workers.models import Worker
from server.workers.repository import CordonRepository, WorkerRepository


class HostCordoned(Conflict, code="host_cordoned"):
    """A slot stays cordoned because its host is."""

    worker_id: str
    host: str
    sentence = (
        "Worker {worker_id} is cordoned with its host: lift the cordon of {host} (`ludus worker uncordon {host}`)."
    )


class PoolNotFound(NotFound, code="pool_not_found"):
    """The settings declare no pool of this name."""

    pool: str
    pools: Sequence[str]

    def _sentence(self) -> str:
        declared = f"those there are: {', '.join(self.pools)}" if self.pools else "none is declared"
        return f"There is no pool {self.pool!r}; {declared} (LUDUS_SCHEDULING__POOLS)."


class WorkerService:
    """Commands on slots: one by its id, or all of a host by the host's name. The session's owner commits.

    The race: a slot claims a run while it is cordoned. Claims and these commands exclude one another (`lock_queue`), so
    that none of the slots takes a run once the command is committed.
    """

    def __init__(self, session: Session) -> None:
        self._workers = WorkerRepository(session)
        self._cordons = CordonRepository(session)
        self._runs = RunRepository(session)
        self._queue = WaitingRuns(session)

    def cordon(self, name: str) -> Sequence[Worker]:
        """Keep runs away from a host or slot; those that it has go on. Raises WorkerNotFound."""
        return self._cordon(name, draining=False)

    def drain(self, name: str) -> Sequence[Worker]:
        """Cordon a host or slot, and have its runs save a checkpoint and go to other slots. Raises WorkerNotFound.

        A run that a user has asked to pause, to stop or to end does that instead, and leaves the slot likewise.
        """
        slots = self._cordon(name, draining=True)
        for slot in slots:
            if slot.run_id is None:
                continue
            run = self._runs.lock(slot.run_id)
            if run.state in LEASED and run.intent is None and self._runs.worker_of(run) == slot.id:
                message = f"Worker {slot.id} is drained: the run saves a checkpoint and goes to another slot."
                self._runs.intend(run, Intent.RELEASE, Note("worker_drained", message, data={"worker_id": slot.id}))
        return slots

    def uncordon(self, name: str) -> Sequence[Worker]:
        """Lift the cordon of a host, with all of its slots, or of one slot. Asking again changes nothing.

        Raises WorkerNotFound, HostCordoned.
        """
        slots = self._found(name)
        for slot in slots:
            if slot.id == name and self._cordons.get(slot.host) is not None:
                raise HostCordoned(slot.id, slot.host)
        self._cordons.remove([name, *(slot.id for slot in slots)])
        return self._workers.named(name)

    def _cordon(self, name: str, *, draining: bool) -> Sequence[Worker]:
        self._found(name)
        self._cordons.add(name, draining=draining)
        return self._workers.named(name)

    def _found(self, name: str) -> Sequence[Worker]:
        self._queue.lock_queue()
        slots = self._workers.named(name)
        if not slots and self._cordons.get(name) is None:
            raise WorkerNotFound(name)
        return slots
