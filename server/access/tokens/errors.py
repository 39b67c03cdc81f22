"""Errors of tokens."""

from server.kit.errors import Invalid, NotFound


class TokenNotFound(NotFound, code="token_not_found"):
    """No token of the project has this id."""

    token_id: str
    sentence = "There is no token {token_id!r}. List the tokens to see what there is."


class TokenForRun(Invalid, code="invalid_run_token"):
    """A token that is bound to a run is for playing in it or reading it."""

    sentence = (
        "A token that is bound to a run has the scopes `simulate` or `read` alone, and belongs to the run's project. "
        "Leave out the run, or the other scopes."
    )


class TokenForLadder(Invalid, code="invalid_ladder_token"):
    """A token that is bound to a ladder is for reading it."""

    sentence = (
        "A token that is bound to a ladder has the scope `read` alone, belongs to the ladder's project, and to no run. "
        "Leave out the ladder, or the rest."
    )
