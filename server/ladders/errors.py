"""Errors of ladders."""

from server.kit.errors import Conflict, Invalid, NotFound


class LadderNotFound(NotFound, code="ladder_not_found"):
    """No ladder has this id or name, and no run of this id or name has one."""

    ladder: str
    sentence = "There is no ladder {ladder!r}, nor a run of that name with one. List the ladders."


class PlayerNotFound(NotFound, code="player_not_found"):
    """The ladder has no such player."""

    ladder_id: str
    player: int | str
    sentence = "Ladder {ladder_id} has no player {player!r}. List its players, or register this one."


class LadderExists(Conflict, code="ladder_exists"):
    """A ladder cannot be created because another one has its name."""

    name: str
    sentence = "There is a ladder {name!r} already. Use it, or choose another name."


class LadderInUse(Conflict, code="ladder_in_use"):
    """A ladder cannot be deleted: a run that has not ended plays on it."""

    ladder_id: str
    run_id: str
    sentence = (
        "The matches of run {run_id}, which has not ended, go to ladder {ladder_id}. Wait for its end, or cancel it, "
        "and delete the ladder then."
    )


class PlayerExists(Conflict, code="player_exists"):
    """The ladder has a player of this name."""

    ladder_id: str
    name: str
    sentence = "Ladder {ladder_id} has a player {name!r} already. Use it, or choose another name."


class MatchInvalid(Invalid, code="invalid_match"):
    """The report is not a valid match."""

    problem: str
    sentence = "The match cannot be entered: {problem}."
