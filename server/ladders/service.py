"""Commands on ladders: make, delete, register players, enter matches, recompute; and the ladder of a run."""

from collections.abc import Iterator, Mapping

from ludus.config.problems import Path, join_path
from ludus.config.run import RunConfig
from ludus.config.selfplay import SelfPlaySettings
from ludus.config.trainer import ReinforcementConfig
from server.checkpoints.repository import InitialCheckpoints
from server.kit.db.database import Session
from server.kit.errors import CheckpointNotFound, InvalidConfig, Problem
from server.ladders.matches import MatchLedger
from server.ladders.models import Ladder, LadderMatch, LadderPlayer
from server.ladders.ratings import RatingRepository
from server.ladders.refs import LadderInUse, PlayerExists, PlayerKind
from server.ladders.repository import LadderRepository, PlayerRepository
from server.ladders.requests import MatchReport, PlayerCreate


class LadderService:
    """Commands on ladders, within the caller's transaction."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._ladders = LadderRepository(session)
        self._players = PlayerRepository(session)

    def create(self, name: str, description: str = "", initial_elo: float | None = None) -> Ladder:
        """Make a ladder that runs can share. Raises LadderExists."""
        return self._ladders.insert(name, description=description, initial_elo=initial_elo)

    def delete(self, ladder: str) -> None:
        """Forget a ladder with its matches.

        Raises LadderNotFound, LadderInUse (a run that has not ended plays on it).
        """
        row = self._ladders.lock(ladder)
        user = self._ladders.live_run(row.id)
        if user is not None:
            raise LadderInUse(row.id, user)
        self._ladders.delete(row)

    def add_player(self, ladder: str, new: PlayerCreate) -> LadderPlayer:
        """Register a player. Raises LadderNotFound, PlayerExists, CheckpointNotFound."""
        owner = self._ladders.lock(ladder)
        if self._players.exists(owner.id, new.name):
            raise PlayerExists(owner.id, new.name)
        checkpoint = new.checkpoint_id
        if checkpoint is not None and not InitialCheckpoints(self._session).existing({checkpoint}, lock=True):
            raise CheckpointNotFound(checkpoint)
        row = {
            "kind": PlayerKind(new.kind),
            "key": new.name,
            "checkpoint_id": checkpoint,
            "behavior": new.behavior,
            "fixed": new.fixed,
            "initial_elo": owner.initial_elo if new.elo is None else new.elo,
            "initial_mu": new.mu,
            "initial_sigma": new.sigma,
        }
        (number,) = self._players.insert(owner, [row])
        return self._players.get(owner.id, number)

    def report(self, ladder: str, match: MatchReport) -> LadderMatch:
        """Enter a match that was played elsewhere. Raises LadderNotFound, PlayerNotFound, MatchInvalid."""
        return MatchLedger(self._session).report(self._ladders.lock(ladder), match)

    def recompute(self, ladder: str) -> Ladder:
        """Take all ratings of a ladder back; they are computed again from its matches. Raises LadderNotFound."""
        row = self._ladders.lock(ladder)
        RatingRepository(self._session).rewind(row.id, 1)
        self._session.refresh(row)
        return row

    def check(self, config: RunConfig, *, lock: bool = False) -> str | None:
        """Return the id of the shared ladder that a configuration names, if it does; with `lock` it stays until the
        commit at least.

        Raises InvalidConfig, with a path for each name that no ladder has, and for each that is not the first one:
        all behaviors of a run play on one ladder.
        """
        named = _named(config)
        ladders = self._ladders.named(set(named.values()), lock=lock)
        problems = list(_problems(named, ladders))
        if problems:
            raise InvalidConfig(problems)
        return next((ladder.id for ladder in ladders.values()), None)

    def join(self, run_id: str, config: RunConfig, shared: str | None) -> None:
        """Connect a new run to a shared ladder; without one, a run with self-play gets its own."""
        if shared is not None:
            self._ladders.join(run_id, shared)
        elif config.assessment is None and _self_play(config):
            self._ladders.own(run_id)


def _self_play(config: RunConfig) -> dict[Path, SelfPlaySettings]:
    """Return the settings of self-play, by the paths of the behaviors' sections."""
    learning = {
        path: section for path, section in config.trainers().items() if isinstance(section, ReinforcementConfig)
    }
    return {path: section.self_play for path, section in learning.items() if section.self_play is not None}


def _named(config: RunConfig) -> dict[Path, str]:
    """Return the names of ladders in a configuration, by the paths of the keys that name them."""
    named: dict[Path, str] = {
        (*path, "self_play", "ladder"): settings.ladder
        for path, settings in _self_play(config).items()
        if settings.ladder is not None
    }
    if config.match is not None:
        return {} if config.match.ladder is None else {("match", "ladder"): config.match.ladder}
    return named


def _problems(named: Mapping[Path, str], ladders: Mapping[str, Ladder]) -> Iterator[Problem]:
    first: str | None = None
    for path, name in named.items():
        first = first or name
        if name not in ladders:
            message = f"there is no ladder {name!r}; name one that `ludus ladder list` shows, or make it first"
            yield Problem(join_path(path), "not_found", message)
        elif name != first:
            message = f"is {name!r}, but another behavior names {first!r}; all behaviors of a run play on one ladder"
            yield Problem(join_path(path), "contradiction", message)
