"""Errors of tokens."""

from server.kit.errors import Invalid, NotFound


class TokenNotFound(NotFound, code="token_not_found"):
    """No token of the project has this id."""

    token_id: str
    sentence = "There is no token {token_id!r}. List the tokens to see what there is."


class TokenForRun(Invalid, code="invalid_run_token"):
    """A token that is bound to a run is for simulators alone."""

    sentence = (
        "A token that is bound to a run has the scope `simulate` alone, and belongs to the run's project. Leave out "
        "the run, or the other scopes."
    )
