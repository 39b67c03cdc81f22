"""Errors of profiles."""

from server.kit.errors import NotFound


class ProfileNotFound(NotFound, code="profile_not_found"):
    """The newest attempt of the run was not profiled."""

    run_id: str
    sentence = "The newest attempt of run {run_id} was not profiled. Ask for a profile with `:profile`."
