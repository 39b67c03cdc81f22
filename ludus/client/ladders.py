"""Ladders: players, matches and ratings."""

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any

from ludus.client.transport import Transport, segment, without_none
from ludus.schemas import Ladder, Match, Payoffs, Player, Rating, RatingSeries


class Ladders(Transport):
    """Requests about ladders."""

    def create_ladder(
        self,
        name: str,
        *,
        description: str = "",
        initial_elo: float | None = None,
        idempotency_key: str | None = None,
    ) -> Ladder:
        """Make a ladder that runs can share: they name it in `self_play.ladder`."""
        body = without_none({"name": name, "description": description, "initial_elo": initial_elo})
        return self._read(Ladder, self._post("/v1/ladders", body, idempotency_key))

    def list_ladders(self, filter: str = "", order_by: str = "", limit: int | None = None) -> Iterator[Ladder]:  # noqa: A002
        """Iterate over ladders, newest first unless `order_by` says otherwise."""
        return self._items(Ladder, "/v1/ladders", "ladders", {"filter": filter, "order_by": order_by}, limit)

    def get_ladder(self, ladder: str) -> Ladder:
        """Return a ladder by its id or name, or the one that a run (id or name) plays on."""
        return self._read(Ladder, self._get(f"/v1/ladders/{segment(ladder)}"))

    def delete_ladder(self, ladder: str) -> None:
        """Delete a ladder with its players and matches. Refused while a run that has not ended plays on it."""
        self._delete(f"/v1/ladders/{segment(ladder)}")

    def recompute_ladder(self, ladder: str) -> Ladder:
        """Have all ratings computed anew from the matches; `rated_through` says how far that is."""
        return self._read(Ladder, self._post(f"/v1/ladders/{segment(ladder)}:recompute"))

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

        The ratings are those that it begins with; of a `fixed` one they never change.
        """
        named = {"checkpoint_id": checkpoint, "behavior": behavior, "elo": elo, "mu": mu, "sigma": sigma}
        body = {"name": name, "kind": kind, "fixed": fixed} | without_none(named)
        return self._read(Player, self._post(f"/v1/ladders/{segment(ladder)}/players", body, idempotency_key))

    def list_players(
        self,
        ladder: str,
        filter: str = "",  # noqa: A002
        order_by: str = "",
        limit: int | None = None,
    ) -> Iterator[Player]:
        """Iterate over a ladder's players, in the order in which they came unless `order_by` says otherwise."""
        parameters = {"filter": filter, "order_by": order_by}
        return self._items(Player, f"/v1/ladders/{segment(ladder)}/players", "players", parameters, limit)

    def list_ratings(
        self,
        ladder: str,
        filter: str = "",  # noqa: A002
        order_by: str = "",
        limit: int | None = None,
    ) -> Iterator[Rating]:
        """Iterate over a ladder's ratings, the highest Elo first unless `order_by` says otherwise."""
        parameters = {"filter": filter, "order_by": order_by}
        return self._items(Rating, f"/v1/ladders/{segment(ladder)}/ratings", "ratings", parameters, limit)

    def rating_history(self, ladder: str, players: Sequence[int] = (), points: int = 500) -> list[RatingSeries]:
        """Return players' ratings over their matches, at most `points` each; of none, the newest learning policies."""
        parameters = {"player": [str(player) for player in players], "points": str(points)}
        answer = self._get(f"/v1/ladders/{segment(ladder)}/ratings/history", parameters)
        return self._all(RatingSeries, answer, "series")

    def payoffs(self, ladder: str, players: Sequence[int] = (), limit: int = 200, *, met: bool = True) -> Payoffs:
        """Return how each of some players did against each other one.

        Where none are named, they are the newest `limit` of whom each has met another one; without `met` the newest
        that have played.
        """
        parameters = {"player": [str(player) for player in players], "limit": str(limit), "met": str(met).lower()}
        return self._read(Payoffs, self._get(f"/v1/ladders/{segment(ladder)}/payoffs", parameters))

    def list_matches(
        self,
        ladder: str,
        filter: str = "",  # noqa: A002
        order_by: str = "",
        limit: int | None = None,
    ) -> Iterator[Match]:
        """Iterate over a ladder's matches, newest first; superseded ones only with `superseded = true` as `filter`."""
        parameters = {"filter": filter, "order_by": order_by}
        return self._items(Match, f"/v1/ladders/{segment(ladder)}/matches", "matches", parameters, limit)

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
        """Enter a match that was played elsewhere, by the numbers or names of its players.

        Either `outcome` says how the first one did (`win`, `draw`, `loss`), or `scores` how each did: the higher, the
        better. Repeating it with the same `idempotency_key` enters it once.
        """
        seats: list[dict[str, Any]] = [
            {"player": player, "team": index if teams is None else teams[index]} for index, player in enumerate(players)
        ]
        if scores is not None:
            for seat, score in zip(seats, scores, strict=True):
                seat["score"] = score
        moment = None if at is None else at.isoformat()
        body = {"seats": seats, "truncated": truncated} | without_none({"outcome": outcome, "at": moment})
        return self._read(Match, self._post(f"/v1/ladders/{segment(ladder)}/matches", body, idempotency_key))
