"""The amendments of an attempt's run: those still to apply, and those that the trainer has applied."""

from collections.abc import Mapping, Sequence
from typing import Any

from ludus.config.problems import show
from server.runs.amendments.refs import AmendmentRef
from server.runs.amendments.repository import AmendmentRepository
from server.runs.attempts.repository import AttemptFence
from server.runs.events.repository import Note


class AmendmentWriter:
    """Reads amendments, and notes which of them the trainer has applied."""

    def __init__(self, fence: AttemptFence) -> None:
        self._fence = fence

    def after(self, seq: int) -> tuple[AmendmentRef, ...]:
        """Return the amendments behind `seq`. Not fenced: amendments never change."""
        with self._fence.database.read() as session:
            return AmendmentRepository(session).refs(self._fence.run_id, seq)

    def applied(self, seq: int, changes: Sequence[Mapping[str, Any]], step: int) -> None:
        """Record that the trainer applies an amendment from agent step `step` of all behaviors on. Raises LeaseLost."""
        with self._fence.write() as (session, run):
            AmendmentRepository(session).applied(run.id, seq)
            words = ", ".join(f"{each['path']} from {show(each['old'])} to {show(each['new'])}" for each in changes)
            data = {"seq": seq, "step": step, "changes": [dict(each) for each in changes]}
            note = Note("hyperparameters_changed", f"Changed {words} at step {step}.", data=data)
            self._fence.record(session, note)
