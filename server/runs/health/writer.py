"""The findings that an attempt reports."""

from collections.abc import Sequence
from typing import Any, Final

from pydantic import TypeAdapter

from ludus.schemas.health import Finding
from server.kit.db.texts import storable_json
from server.runs.attempts.repository import AttemptFence
from server.runs.events.repository import Note
from server.runs.health.repository import HealthRepository

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


def _by_identity(findings: Sequence[dict[str, Any]]) -> dict[tuple[str, str | None], dict[str, Any]]:
    return {(finding["code"], finding["behavior"]): finding for finding in findings}


def _subject(finding: dict[str, Any]) -> str:
    return "" if finding["behavior"] is None else f"{finding['behavior']}: "
