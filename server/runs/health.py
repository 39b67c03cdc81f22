"""The findings of runs in the database."""

from collections.abc import Sequence
from typing import Final

from pydantic import TypeAdapter
from sqlalchemy import select, update

from ludus.schemas import Finding
from server.kit.db.clock import now
from server.kit.db.repository import Repository
from server.kit.db.texts import JsonObject, storable_json
from server.runs.attempts import AttemptFence
from server.runs.events.repository import UNTRACKED, Note
from server.runs.models import Run


class HealthRepository(Repository):
    """Findings of runs, each `ludus.schemas.Finding` as a JSON object."""

    def of_run(self, run_id: str) -> Sequence[JsonObject]:
        """Return the findings of a run."""
        return self._session.scalar(select(Run.health).where(Run.id == run_id)) or ()

    def store(self, run_id: str, findings: Sequence[JsonObject]) -> None:
        """Replace the findings of a run."""
        values = {"health": [*findings] or None, "stored_updated_at": now()}
        self._session.execute(update(Run).where(Run.id == run_id).values(**values), execution_options=UNTRACKED)


_FINDINGS: Final = TypeAdapter(tuple[Finding, ...])


class HealthWriter:
    """Stores the findings of a run, with an event for each that begins or is over."""

    def __init__(self, fence: AttemptFence) -> None:
        self._fence = fence

    def publish(self, reported: Sequence[Finding]) -> None:
        """Store all findings that hold now. Code and behavior identify one; its numbers may change without an event.

        Raises LeaseLost.
        """
        present = _by_identity(storable_json(_FINDINGS.dump_python(tuple(reported), mode="json")))
        with self._fence.write() as (session, run):
            findings = HealthRepository(session)
            former = _by_identity(findings.of_run(run.id))
            for identity in present.keys() & former.keys():  # a trainer does not know when an attempt before found it
                present[identity]["since"] = former[identity]["since"]
            findings.store(run.id, [*present.values()])
            for identity, finding in present.items():
                if identity not in former:
                    message = f"{_subject(finding)}{finding['message']} {finding['remedy']}"
                    self._fence.record(session, Note("finding_raised", message, "warning", finding))
            for identity, finding in former.items():
                if identity not in present:
                    message = f"{_subject(finding)}this holds no longer: {finding['message']}"
                    self._fence.record(session, Note("finding_resolved", message, data=finding))


def _by_identity(findings: Sequence[JsonObject]) -> dict[tuple[str, str | None], JsonObject]:
    return {(finding["code"], finding["behavior"]): finding for finding in findings}


def _subject(finding: JsonObject) -> str:
    return "" if finding["behavior"] is None else f"{finding['behavior']}: "
