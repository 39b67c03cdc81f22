"""Uses of a checkpoint that protect it from every rule. A new use of checkpoints adds its query here."""

from collections.abc import Callable, Collection, Sequence

from server.checkpoints.aliases.repository import AliasRepository
from server.checkpoints.repository import InitialCheckpoints
from server.kit.db.database import Session

Holder = Callable[[Session, Collection[str]], Collection[str]]
"""Returns those of these checkpoints, by id, that something needs."""


def _begun_with(session: Session, ids: Collection[str]) -> Collection[str]:
    """Those that a run which has not ended begins with, or goes on from."""
    return InitialCheckpoints(session).in_use(ids).keys()


def _named(session: Session, ids: Collection[str]) -> Collection[str]:
    """Those that an alias stands for."""
    return AliasRepository(session).named(ids)


HOLDERS: Sequence[Holder] = (_begun_with, _named)


def held(session: Session, ids: Collection[str]) -> set[str]:
    """Return those of these checkpoints that something needs."""
    return {checkpoint_id for holder in HOLDERS for checkpoint_id in holder(session, ids)} if ids else set()
