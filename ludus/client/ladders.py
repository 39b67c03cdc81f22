"""Ladders: players, matches and ratings."""

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any

from ludus.client.transport import Resource, segment, without_none
from ludus.schemas import Ladder, Match, Payoffs, Player, Rating, RatingSeries


class Ladders(Resource):
    """Requests about ladders. `ladder` is an id or a name, or the id or name of a run that plays on it."""

    def create(
        self,
        name: str,
        *,
        description: str = "",
        initial_elo: float | None = None,
        idempotency_key: str | None = None,
    ) -> Ladder:
        """Create a ladder that runs can share: they name it in `self_play.ladder`."""
        body = without_none(name=name, description=description, initial_elo=initial_elo)
        return self._transport.post(Ladder, "/v1/ladders", body, idempotency_key)

    def list(self, filter: str = "", order_by: str = "", limit: int | None = None) -> Iterator[Ladder]:
        """Iterate over ladders, newest first unless `order_by` says otherwise."""
        return self._transport.pages(Ladder, "/v1/ladders", limit, filter=filter, order_by=order_by)

    def get(self, ladder: str) -> Ladder:
        """Return a ladder."""
        return self._transport.get(Ladder, _path(ladder))

    def delete(self, ladder: str) -> None:
        """Delete a ladder with its players and matches. Refused while a run that has not ended plays on it."""
        self._transport.delete(_path(ladder))

    def recompute(self, ladder: str) -> Ladder:
        """Compute all ratings again from the matches; `rated_through` is the progress."""
        return self._transport.post(Ladder, f"{_path(ladder)}:recompute")

    def register_player(
        self,
        ladder: str,
        name: str,
        kind: str,
        *,
        checkpoint: str | None = None,
        behavior: str | None = None,
        elo: float | None = None,
        mu: float | None = None,
        sigma: float | None = None,
        fixed: bool = False,
        idempotency_key: str | None = None,
    ) -> Player:
        """Register a `scripted` or `human` player, or a `checkpoint`, whose matches are reported.

        `elo`, `mu` and `sigma` are its initial ratings; those of a `fixed` player never change.
        """
        ratings = without_none(checkpoint_id=checkpoint, behavior=behavior, elo=elo, mu=mu, sigma=sigma)
        body = {"name": name, "kind": kind, "fixed": fixed, **ratings}
        return self._transport.post(Player, f"{_path(ladder)}/players", body, idempotency_key)

    def list_players(
        self, ladder: str, filter: str = "", order_by: str = "", limit: int | None = None
    ) -> Iterator[Player]:
        """Iterate over a ladder's players, in the order of registration unless `order_by` says otherwise."""
        return self._transport.pages(Player, f"{_path(ladder)}/players", limit, filter=filter, order_by=order_by)

    def list_ratings(
        self, ladder: str, filter: str = "", order_by: str = "", limit: int | None = None
    ) -> Iterator[Rating]:
        """Iterate over a ladder's ratings, the highest Elo first unless `order_by` says otherwise."""
        return self._transport.pages(Rating, f"{_path(ladder)}/ratings", limit, filter=filter, order_by=order_by)

    def rating_history(self, ladder: str, players: Sequence[int] = (), points: int = 500) -> Sequence[RatingSeries]:
        """Return the ratings of players over their matches, at most `points` of each.

        Without `players` they are the newest policies that learn.
        """
        parameters = {"players": [*players], "points": points}
        answer = self._transport.document(f"{_path(ladder)}/ratings/history", parameters)
        return self._transport.read_all(RatingSeries, answer, "series")

    def payoffs(self, ladder: str, players: Sequence[int] = (), limit: int = 200, *, met: bool = True) -> Payoffs:
        """Return the results of each of some players against each other one.

        Without `players` they are the newest `limit` that have played against one of the others, or without `met` the
        newest that have played at all.
        """
        parameters = {"players": [*players], "limit": limit, "met": met}
        return self._transport.get(Payoffs, f"{_path(ladder)}/payoffs", parameters)

    def list_matches(
        self, ladder: str, filter: str = "", order_by: str = "", limit: int | None = None
    ) -> Iterator[Match]:
        """Iterate over a ladder's matches, newest first; superseded ones only with `superseded = true` as `filter`."""
        return self._transport.pages(Match, f"{_path(ladder)}/matches", limit, filter=filter, order_by=order_by)

    def report_match(
        self,
        ladder: str,
        players: Sequence[int | str],
        *,
        outcome: str | None = None,
        scores: Sequence[float] | None = None,
        teams: Sequence[int] | None = None,
        at: datetime | None = None,
        truncated: bool = False,
        idempotency_key: str | None = None,
    ) -> Match:
        """Store a match that was played elsewhere, by the numbers or names of its players.

        The result is either `outcome`, that of the first player (`win`, `draw`, `loss`), or `scores`, one per player:
        higher is better. Repeating the call with the same `idempotency_key` stores one match.
        """
        participants: list[dict[str, Any]] = [
            {"player": player, "team": index if teams is None else teams[index]} for index, player in enumerate(players)
        ]
        if scores is not None:
            for participant, score in zip(participants, scores, strict=True):
                participant["score"] = score
        body = without_none(
            participants=participants, truncated=truncated, outcome=outcome, at=None if at is None else at.isoformat()
        )
        return self._transport.post(Match, f"{_path(ladder)}/matches", body, idempotency_key)


def _path(ladder: str) -> str:
    return f"/v1/ladders/{segment(ladder)}"
