"""Errors of profiles."""

from server.kit.errors import Conflict, NotFound


class ProfileNotFound(NotFound, code="profile_not_found"):
    """The newest attempt of the run was not profiled."""

    run_id: str
    sentence = "The newest attempt of run {run_id} was not profiled. Ask for a profile with `:profile`."


class RunNotTraining(Conflict, code="run_not_training"):
    """A profile was requested of a run that is not running."""

    run_id: str
    state: str
    sentence = "Run {run_id} is {state}: only a RUNNING run can be profiled. Wait for RUNNING (`?wait=RUNNING`)."
