"""Errors of simulators that join."""

from server.kit.errors import Conflict


class RunClosed(Conflict, code="run_ended"):
    """The run takes no simulators any more."""

    run_id: str
    state: str
    sentence = "Run {run_id} has ended ({state}) and takes no simulators any more. Create a new run."
