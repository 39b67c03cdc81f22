"""The last words of games in the database: the reasons for which their simulators leave."""

from collections.abc import Collection, Mapping
from typing import Final

from sqlalchemy import func, select, update
from sqlalchemy.orm import Session, aliased

from ludus.protocol.codes import CloseCode
from server.kit.db.keyset import parts
from server.kit.db.texts import storable
from server.runs.events.repository import UNTRACKED
from server.simulators.models import Simulator

DISCONNECTED: Final = "disconnected"
"""Code of a simulator whose connection broke; one that has reported the end of its game left for that reason."""
ENDS_OF_GAMES: Final = frozenset({"game_crashed", "bad_game", "exited", "restarts_exhausted"})
"""Codes of reports after which a game is gone, by an error of its own."""
REFUSALS: Final = frozenset(code.value for code in CloseCode if not code.rejoin) - {
    *(CloseCode.RUN_FINISHED, CloseCode.RUN_CANCELLED, CloseCode.RUN_FAILED, CloseCode.SUPERSEDED)
}
"""Codes of simulators that would be refused again."""
_other = aliased(Simulator)


def keep_last_words(session: Session, run_id: str, session_id: str, code: str, sentence: str) -> None:
    """Make a report the reason for which a simulator leaves or has left, if it is the end of its game.

    A reason that the server gave itself stays.
    """
    if code in ENDS_OF_GAMES:
        same = (Simulator.run_id == run_id, Simulator.session_id == session_id)
        unexplained = Simulator.leave_code.is_(None) | (Simulator.leave_code == DISCONNECTED)
        why = {"leave_code": code, "leave_reason": storable(sentence, 4000)}
        session.execute(update(Simulator).where(*same, unexplained).values(why), execution_options=UNTRACKED)


def broken_games(session: Session, run_ids: Collection[str]) -> Mapping[str, str]:
    """Return why the last simulator of each run left: of those runs where it would leave again for the same reason."""
    newest = select(func.max(_other.left_at)).where(_other.run_id == Simulator.run_id).scalar_subquery()
    ended = (Simulator.leave_code.in_(ENDS_OF_GAMES | REFUSALS), Simulator.left_at == newest)
    query = select(Simulator.run_id, Simulator.leave_reason).where(*ended)
    found: dict[str, str] = {}
    for some in parts(sorted(run_ids)):
        rows = session.execute(query.where(Simulator.run_id.in_(some)))
        found |= {run_id: " ".join((reason or "").split()) for run_id, reason in rows}
    return found
