"""Jobs that delete old rows, one for each kind.

The settings of `LUDUS_CONTROLLER__..._DAYS` say what is old. Each round deletes a bounded number of rows of each kind,
in short transactions, so it delays no other writer for long. One job deletes the remaining rows of runs that users or
another job have deleted; a controller that starts after a crash goes on with them. Events and matches have no index by
age: a round looks at the next runs and ladders in the order of their ids, and begins again behind the last one. The
place is only in memory, so a controller that is killed loses nothing, and several may work at once: they find less to
delete.

Attempts, logs and checkpoints' rows live as long as their run: the history of metrics is hidden or shown by attempts.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial

from server.kit.db.database import Database, Session
from server.kit.jobs import Job, handle_rows
from server.kit.settings import ControllerSettings
from server.ladders.matches import MatchLedger, MatchRepository
from server.ladders.refs import LadderNotFound
from server.ladders.repository import LadderRepository
from server.lifecycle.deletion import DeletionRepository
from server.lifecycle.service import ROWS, DeletionService, RunInUse
from server.runs.events.repository import EventRepository
from server.runs.repository import RunRepository
from server.simulators.recordings.repository import RecordingRepository
from server.simulators.repository import SimulatorRepository

PAUSE_SECONDS = 60.0
"""Pause between two rounds."""
BATCHES = 10
"""Transactions of one kind in one round at most."""
RUNS = 100
"""Runs that one round deletes at most because they are old."""
RUN_BATCHES = 100
"""Maximum number of transactions of one round that delete rows of deleted runs."""
LOOKED_AT = 200
"""Runs, and ladders, that one round looks at for old events and matches."""
_FIRST = (0.0, "")


class RowRetention:
    """Deletes old rows."""

    def __init__(self, database: Database, settings: ControllerSettings) -> None:
        self._database = database
        self._settings = settings
        self._run = ""
        """The last run whose events were looked at."""
        self._ladder = ""
        self._ended = _FIRST
        """End and id of the last run that was looked at because it is old."""

    def jobs(self) -> Sequence[Job]:
        """Return the jobs, in the order in which they leave work to each other."""
        settings = self._settings
        by_age = {
            "runs": (self._delete_runs, settings.run_days),
            "events": (self._delete_events, settings.event_days),
            "simulators": (self._delete_simulators, settings.simulator_days),
            "matches": (self._delete_matches, settings.match_days),
            "recordings": (self._delete_recordings, settings.recording_days),
        }
        jobs = [Job(f"old_{kind}", partial(work, days)) for kind, (work, days) in by_age.items() if days is not None]
        return [*jobs, Job("old_rows_of_runs", self._delete_rows_of_runs)]

    def _delete_runs(self, days: float) -> int:
        """Delete runs that ended long ago, unless something needs them: the next round looks at later ones."""

        def old(session: Session) -> Sequence[tuple[float, str]]:
            ends = RunRepository(session).ended_before(days, self._ended, limit=RUNS)
            self._ended = ends[-1] if len(ends) == RUNS else _FIRST
            return ends

        def delete(session: Session, end: tuple[float, str]) -> int:
            with suppress(RunInUse):
                DeletionService(session).delete(end[1], f"The run ended more than {days:g} days ago.")
                return 1
            return 0

        return handle_rows(self._database, old, delete)

    def _delete_rows_of_runs(self) -> int:
        """Delete rows of deleted runs, one run after the other; return how many."""
        with self._database.read() as session:
            runs = DeletionRepository(session).unfinished(RUN_BATCHES)
        count = batches = 0
        for run_id in runs:
            deleted = ROWS
            while deleted == ROWS and batches < RUN_BATCHES:
                with self._database.write() as session:
                    deleted = DeletionRepository(session).delete_rows(run_id, ROWS)
                batches += 1
                count += deleted
        return count

    def _delete_events(self, days: float) -> int:
        with self._database.read() as session:
            runs = RunRepository(session).ids_after(self._run, LOOKED_AT)
        self._run = runs[-1] if len(runs) == LOOKED_AT else ""
        return delete_in_batches(self._database, lambda session: EventRepository(session).forget(runs, days, ROWS))

    def _delete_simulators(self, days: float) -> int:
        return delete_in_batches(self._database, lambda session: SimulatorRepository(session).forget(days, ROWS))

    def _delete_recordings(self, days: float) -> int:
        return delete_in_batches(self._database, lambda session: RecordingRepository(session).forget(days, ROWS))

    def _delete_matches(self, days: float) -> int:
        with self._database.read() as session:
            ladders = MatchRepository(session).ladders_after(self._ladder, days, LOOKED_AT)
        self._ladder = ladders[-1][0] if len(ladders) == LOOKED_AT else ""
        forgets = (partial(_forget_matches, ladder_id, days) for ladder_id, old in ladders if old)
        return sum(delete_in_batches(self._database, forget) for forget in forgets)


def delete_in_batches(database: Database, delete: Callable[[Session], int]) -> int:
    """Repeat a deletion of ROWS rows, each time in a transaction of its own, until less was left; return how many."""
    count = 0
    for _ in range(BATCHES):
        with database.write() as session:
            deleted = delete(session)
        count += deleted
        if deleted < ROWS:
            break
    return count


def _forget_matches(ladder_id: str, days: float, session: Session) -> int:
    try:
        ladder = LadderRepository(session).lock(ladder_id)
    except LadderNotFound:  # deleted since
        return 0
    return MatchLedger(session).forget(ladder, days, ROWS)
