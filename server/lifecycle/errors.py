"""Errors of the life of a run."""

from collections.abc import Sequence
from dataclasses import field

from server.kit.errors import Conflict


class RunInUse(Conflict, code="run_in_use"):
    """A run cannot be deleted: something outside it needs it; the message names what."""

    run_id: str
    users: Sequence[str]

    def _sentence(self) -> str:
        shown = "; ".join(self.users[:10]) + (f"; and {len(self.users) - 10} more" if len(self.users) > 10 else "")
        return f"Run {self.run_id} is needed: {shown}. Delete or change these first."


class RunNotEnded(Conflict, code="run_not_ended"):
    """The request needs a run that has ended."""

    run_id: str
    state: str
    sentence = (
        "Run {run_id} is {state}: only a run that has ended is deleted. End it first (`ludus run stop`, `cancel`)."
    )


class RunEnding(Conflict, code="run_ending"):
    """A run cannot be paused because it is about to end."""

    run_id: str
    intent: str
    sentence = (
        "Run {run_id} will not pause: a request to {intent} it came before, and it is about to end. To go on from its "
        "last checkpoint, branch off another run (`ludus run branch`)."
    )


class RunNotPaused(Conflict, code="run_not_paused"):
    """A run cannot be resumed because it is not paused."""

    run_id: str
    state: str
    pausing: bool = field(kw_only=True)

    def _sentence(self) -> str:
        remedy = (
            "it is about to pause; wait for PAUSED (`?wait=PAUSED`), and resume it then"
            if self.pausing
            else "there is nothing to resume"
        )
        return f"Run {self.run_id} is {self.state}, not PAUSED: {remedy}."
