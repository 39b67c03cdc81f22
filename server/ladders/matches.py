"""The ledger of matches: played by runs, or reported over the API. Rows are only added, until retention deletes the
oldest.

A match of a run has a number per behavior, which goes on where the checkpoint stood that an attempt resumed from. What
an earlier attempt played beyond that checkpoint is superseded when the new one begins (`resume`), before it has played
anything: it stays, does not count, and ratings are taken back to before it. No match counts twice, and none counts that
is not part of the policy's history.

Every write locks the ladder's row first and takes the match's number in the ladder from it, so that matches become
visible in the order of their numbers.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import takewhile
from typing import ClassVar

from sqlalchemy import ColumnElement, delete, false, func, insert, not_, or_, select, update
from sqlalchemy.orm import Session, joinedload
from sqlalchemy.orm.attributes import set_committed_value

from server.kit.db.clock import DAY_SECONDS, now
from server.kit.db.keyset import Columns, check, parts, select_page
from server.kit.db.repository import Repository
from server.kit.listing import Condition, ListQuery, Operator, Page
from server.kit.states import TERMINAL
from server.ladders.models import Ladder, LadderMatch, LadderParticipant
from server.ladders.rating_systems import ranks
from server.ladders.ratings import RatingRepository
from server.ladders.refs import MatchInvalid, Outcome, PlayedMatch
from server.ladders.repository import LadderRepository, PlayerRepository, Policy
from server.ladders.requests import MatchReport
from server.runs.attempts import AttemptFence
from server.runs.models import Run

_RANKS: dict[Outcome, tuple[int, int]] = {"win": (1, 2), "draw": (1, 1), "loss": (2, 1)}
"""Outcome -> rank of the first participant, and of every other one."""


class MatchRepository(Repository):
    """Reads the ledger."""

    COLUMNS: ClassVar[Columns] = {
        "seq": LadderMatch.seq,
        "at": LadderMatch.at,
        "player": LadderParticipant.player,
        "outcome": LadderMatch.outcome,
        "rated": LadderMatch.rated,
        "truncated": LadderMatch.truncated,
        "superseded": LadderMatch.superseded_by.is_not(None),
        "run_id": LadderMatch.run_id,
        "attempt": LadderMatch.attempt,
        "behavior": LadderMatch.behavior,
        "number": LadderMatch.number,
        "simulator": LadderMatch.simulator,
        "step": LadderMatch.step,
    }
    """Columns by which matches are filtered; they are sorted by `seq`."""

    def list(self, ladder_id: str, query: ListQuery) -> Page[LadderMatch]:
        """Return a page of a ladder's matches with their participants.

        Without a condition on `superseded` those that are not.
        """
        matches = select(LadderMatch).where(LadderMatch.ladder_id == ladder_id)
        if all(condition.field != "superseded" for condition in query.conditions):
            matches = matches.where(LadderMatch.superseded_by.is_(None))
        page = select_page(
            self._session, matches, query, self.COLUMNS, LadderMatch.seq, lambda each: _special(ladder_id, each)
        )
        self._load_participants(ladder_id, page.items)
        return page

    def get(self, ladder_id: str, seq: int) -> LadderMatch:
        """Return one match with its participants."""
        match = self._session.get_one(LadderMatch, (ladder_id, seq))
        self._load_participants(ladder_id, [match])
        return match

    def ladders_after(self, ladder_id: str, days: float, limit: int) -> Sequence[tuple[str, bool]]:
        """Return at most `limit` ids of ladders beyond this one, in the order of ids, each with whether its first match
        is so many days old.
        """
        first = select(LadderMatch.at).where(LadderMatch.ladder_id == Ladder.id).order_by(LadderMatch.seq).limit(1)
        old = func.coalesce(first.scalar_subquery() < now() - days * DAY_SECONDS, false())
        query = select(Ladder.id, old).where(Ladder.id > ladder_id).order_by(Ladder.id).limit(limit)
        return [(id_, bool(aged)) for id_, aged in self._session.execute(query)]

    def _load_participants(self, ladder_id: str, matches: Sequence[LadderMatch]) -> None:
        """Load the participants of some matches of a ladder.

        `selectinload` would name each match by ladder and number, and for pairs SQLite reads the whole table.
        """
        by_match = defaultdict[int, list[LadderParticipant]](list)
        for part in parts([match.seq for match in matches]):
            query = select(LadderParticipant).where(
                LadderParticipant.ladder_id == ladder_id, LadderParticipant.seq.in_(part)
            )
            with_profiles = query.options(joinedload(LadderParticipant.profile)).order_by(LadderParticipant.position)
            for participant in self._session.scalars(with_profiles):
                by_match[participant.seq].append(participant)
        for match in matches:
            set_committed_value(match, "participants", by_match[match.seq])


class MatchLedger(Repository):
    """Writes matches."""

    def __init__(self, session: Session) -> None:
        super().__init__(session)
        self._ladders = LadderRepository(session)
        self._players = PlayerRepository(session)

    def append(self, run_id: str, attempt: int, played: Iterable[PlayedMatch]) -> int:
        """Add what an attempt of a run has played; return how many matches were new.

        The numbers of a behavior ascend. Those not beyond the attempt's newest are dropped: adding twice is safe.
        """
        new = self._unknown(run_id, attempt, played)
        if not new:
            return 0
        ladder = self._ladders.lock_of_run(run_id)
        first = _take(ladder, len(new))
        players = self._players.of_run(
            ladder, run_id, {participant for match in new for participant in match.participants}
        )
        matches, participants = [], []
        for seq, match in enumerate(new, first):
            key = {"ladder_id": ladder.id, "seq": seq}
            matches.append({**key, **_columns(match), "run_id": run_id, "attempt": attempt})
            first_rank, other_rank = _RANKS[match.outcome]
            for index, participant in enumerate(match.participants):
                player = players[Policy.at(participant)]
                rank = other_rank if index else first_rank
                participants.append(
                    {
                        **key,
                        "position": index,
                        "player": player,
                        "team": participant.team,
                        "rank": rank,
                        "step": participant.step,
                    }
                )
        connection = self._session.connection()  # past the unit of work, which costs more than the rows do
        connection.execute(insert(LadderMatch), matches)
        connection.execute(insert(LadderParticipant), participants)
        return len(new)

    def resume(self, run_id: str, attempt: int, newest: Mapping[str, int]) -> None:
        """Continue from a checkpoint that counts a behavior's matches up to its `newest` one (0: none).

        What earlier attempts played beyond it is superseded, and its ratings are taken back.
        """
        stale = (LadderMatch.run_id == run_id, LadderMatch.attempt < attempt, LadderMatch.superseded_by.is_(None))
        behaviors = self._session.scalars(select(LadderMatch.behavior).where(*stale).distinct()).all()
        beyond = [
            (LadderMatch.behavior == behavior) & (LadderMatch.number > newest.get(str(behavior), 0))
            for behavior in behaviors
        ]
        if not beyond:
            return
        ladder = self._ladders.lock_of_run(run_id)
        first = self._session.scalar(select(func.min(LadderMatch.seq)).where(*stale, or_(*beyond)))
        if first is not None:
            RatingRepository(self._session).rewind(ladder.id, first)
            marked = update(LadderMatch).where(*stale, or_(*beyond)).values(superseded_by=attempt)
            self._session.execute(marked, execution_options={"synchronize_session": False})

    def forget(self, ladder: Ladder, days: float, limit: int) -> int:
        """Delete the oldest matches of a locked ladder, at most `limit`; return how many.

        Those from the first one on that are so many days old, dealt with by the rating job, and of no run that goes on
        (it could still take them back). The first other one ends them: what remains is the ledger's end without a hole,
        from which ratings can be computed again.
        """
        columns = (LadderMatch.seq, (LadderMatch.at < now() - days * DAY_SECONDS).label("old"), Run.state)
        oldest = (
            select(*columns)
            .outerjoin(Run, Run.id == LadderMatch.run_id)
            .where(LadderMatch.ladder_id == ladder.id, LadderMatch.seq <= ladder.rated_through)
            .order_by(LadderMatch.seq)
            .limit(limit)
        )
        rows = list(
            takewhile(
                lambda row: row.old and (row.state is None or row.state in TERMINAL), self._session.execute(oldest)
            )
        )
        if rows:
            through = LadderMatch.seq <= rows[-1].seq
            self._session.execute(delete(LadderMatch).where(LadderMatch.ladder_id == ladder.id, through))
        return len(rows)

    def report(self, ladder: Ladder, match: MatchReport) -> LadderMatch:
        """Add a match that was played elsewhere to a locked ladder; return it with its participants.

        Raises MatchInvalid, PlayerNotFound.
        """
        placed = _placed(match)
        players = [self._players.get(ladder.id, participant.player).id for participant in match.participants]
        for number in players:
            if players.count(number) > 1:
                raise MatchInvalid(f"player {number} takes part twice; a match needs different players")
        best = min(placed[1:])
        seq = _take(ladder, 1)
        self._session.execute(
            insert(LadderMatch).values(
                ladder_id=ladder.id,
                seq=seq,
                at=now() if match.at is None else match.at.timestamp(),
                outcome="loss" if placed[0] > best else "draw" if placed[0] == best else "win",
                scored=match.outcome is None,
                truncated=match.truncated,
                rated=True,
            )
        )
        rows = [
            {
                "ladder_id": ladder.id,
                "seq": seq,
                "position": index,
                "player": player,
                "team": participant.team,
                "rank": rank,
                "score": participant.score,
            }
            for index, (participant, player, rank) in enumerate(zip(match.participants, players, placed, strict=True))
        ]
        self._session.execute(insert(LadderParticipant), rows)
        return MatchRepository(self._session).get(ladder.id, seq)

    def _unknown(self, run_id: str, attempt: int, played: Iterable[PlayedMatch]) -> list[PlayedMatch]:
        """Return the matches that this attempt has not written yet."""
        newest: dict[str, int] = {}
        new = []
        for match in played:
            if match.behavior not in newest:
                newest[match.behavior] = self._newest(run_id, match.behavior, attempt)
            if match.number > newest[match.behavior]:
                newest[match.behavior] = match.number
                new.append(match)
        return new

    def _newest(self, run_id: str, behavior: str, attempt: int) -> int:
        same = (LadderMatch.run_id == run_id, LadderMatch.behavior == behavior, LadderMatch.attempt == attempt)
        return self._session.scalar(select(func.max(LadderMatch.number)).where(*same)) or 0


def _special(ladder_id: str, condition: Condition) -> ColumnElement[bool] | None:
    """Translate conditions that are none on a column: a player takes part; a match is superseded."""
    match condition.field:
        case "player":
            check(condition.field, LadderParticipant.player, condition.value)
            of_player = select(LadderParticipant.seq).where(
                LadderParticipant.ladder_id == ladder_id, LadderParticipant.player == condition.value
            )
            matches = LadderMatch.seq.in_(of_player)
            return matches if condition.operator is Operator.EQ else not_(matches)
        case "superseded":
            counts = LadderMatch.superseded_by.is_(None)
            return not_(counts) if condition.value == (condition.operator is Operator.EQ) else counts
        case _:
            return None


def _take(ladder: Ladder, count: int) -> int:
    """Take the next numbers of a locked ladder; return the first of them."""
    first = ladder.match_seq + 1
    ladder.match_seq += count
    return first


def _columns(match: PlayedMatch) -> dict[str, object]:
    """Return the columns of a match that have the names of its fields; in a run only the first participant compares."""
    return {name: value for name, value in vars(match).items() if name != "participants"} | {"scored": False}


def _placed(match: MatchReport) -> list[int]:
    """Return the rank of each participant. Raises MatchInvalid."""
    if len(match.participants) < 2:
        raise MatchInvalid("it has one participant only; a match needs two players at least")
    scores = [participant.score for participant in match.participants]
    if match.outcome is not None:
        if any(score is not None for score in scores):
            raise MatchInvalid("it has an outcome and scores; say one of them")
        first_rank, rest_rank = _RANKS[match.outcome]
        return [first_rank, *[rest_rank] * (len(scores) - 1)]
    for index, score in enumerate(scores):
        if score is None:
            raise MatchInvalid(
                f"participant {index} has no score; give one to every participant, or say the match's outcome"
            )
        if not math.isfinite(score):
            raise MatchInvalid(f"the score of participant {index} is {score}; a score is a finite number")
    return ranks([score for score in scores if score is not None])


class MatchWriter:
    """Writes matches of one attempt. Each method is one transaction, and raises LeaseLost."""

    def __init__(self, fence: AttemptFence) -> None:
        self._fence = fence

    def append(self, played: Sequence[PlayedMatch]) -> None:
        """Enter finished matches. Entering the same matches twice is safe."""
        with self._fence.write() as (session, run):
            MatchLedger(session).append(run.id, self._fence.number, played)

    def resume(self, newest: Mapping[str, int]) -> None:
        """Supersede the matches of earlier attempts beyond the checkpoint from which this one continues.

        `newest`: the number of each behavior's newest match that the checkpoint counts.
        """
        with self._fence.write() as (session, run):
            MatchLedger(session).resume(run.id, self._fence.number, newest)
