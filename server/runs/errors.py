"""Errors of runs that several features share."""

from server.kit.errors import Conflict


class RunNotRunning(Conflict, code="run_not_running"):
    """Something was asked of a run that only one that is running does."""

    run_id: str
    state: str
    action: str
    """A verb with its object."""
    hint: str = ""
    details = ("run_id", "state")
    sentence = "Run {run_id} is {state}: only a RUNNING run can {action}. Wait for RUNNING (`?wait=RUNNING`){hint}."
