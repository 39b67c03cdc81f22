"""Requests for profiles in the database: the newest one of each attempt."""

from collections.abc import Mapping

from sqlalchemy import update

from ludus.schemas import Profile
from server.kit.db.database import Session
from server.kit.db.repository import Repository
from server.kit.errors import NotFound
from server.runs.attempts import AttemptFence
from server.runs.events.repository import Note, ask
from server.runs.models import Attempt, Run


class ProfileNotFound(NotFound, code="profile_not_found"):
    """The newest attempt of the run was not profiled."""

    run_id: str
    sentence = "The newest attempt of run {run_id} was not profiled. Ask for a profile with `:profile`."


class ProfileRepository(Repository):
    """Requests of runs. The session's owner commits."""

    def newest(self, run: Run) -> Profile | None:
        """Return the newest request of the newest attempt, if there is one."""
        attempt = self._session.get(Attempt, (run.id, run.attempt), populate_existing=True)
        if attempt is None or attempt.profile is None:
            return None
        return Profile(run_id=run.id, attempt=run.attempt, **attempt.profile)

    def add(self, run: Run, seconds: int) -> Profile:
        """Record the next request of a locked run; while one is pending, return that one."""
        newest = self.newest(run)
        if newest is not None and not newest.answered:
            return newest
        number = 1 if newest is None else newest.number + 1
        _set(self._session, run.id, run.attempt, {"number": number, "seconds": seconds})
        note = Note("profile_requested", f"A user asked for a profile of {seconds} s.", data={"number": number})
        ask(self._session, run.id, note, attempt=run.attempt)
        return Profile(run_id=run.id, attempt=run.attempt, number=number, seconds=seconds)


class ProfileWriter:
    """An attempt's access to its requests."""

    def __init__(self, fence: AttemptFence) -> None:
        self._fence = fence

    def requested(self) -> Profile | None:
        """Return the request that is not answered; None without one. Not fenced."""
        with self._fence.database.read() as session:
            attempt = session.get(Attempt, (self._fence.run_id, self._fence.number))
            if attempt is None or attempt.profile is None or attempt.profile.get("answered"):
                return None
            return Profile(run_id=self._fence.run_id, attempt=self._fence.number, **attempt.profile)

    def answer(self, asked: Profile, *, log: str | None = None, problem: str | None = None) -> None:
        """Answer a request by the name of a log file, or by why there is none. Raises LeaseLost."""
        values = {"number": asked.number, "seconds": asked.seconds, "answered": True, "log": log, "problem": problem}
        with self._fence.write() as (session, run):
            _set(session, run.id, self._fence.number, values)
            sentence = f"No profile was made: {problem}." if log is None else f"The profile {log} is stored."
            note = Note("profile_made" if log else "profile_failed", sentence, "info" if log else "warning", values)
            self._fence.record(session, note)


def _set(session: Session, run_id: str, attempt: int, values: Mapping[str, object]) -> None:
    same = (Attempt.run_id == run_id, Attempt.number == attempt)
    session.execute(update(Attempt).where(*same).values(profile=dict(values)))
