"""Aliases: names of checkpoints that can be moved."""

from collections.abc import Iterator
from enum import Enum
from typing import Final, Literal

from ludus.client.transport import Resource, segment
from ludus.schemas import Alias, AliasMove


class _Anything(Enum):
    """Type of ANYTHING, which `None` (no alias yet) must differ from."""

    ANYTHING = "anything"


ANYTHING: Final = _Anything.ANYTHING


class Aliases(Resource):
    """Requests about aliases."""

    def list(self, filter: str = "", order_by: str = "", limit: int | None = None) -> Iterator[Alias]:
        """Iterate over aliases, by name unless `order_by` says otherwise."""
        return self._transport.pages(Alias, "/v1/aliases", limit, filter=filter, order_by=order_by)

    def get(self, name: str) -> Alias:
        """Return one alias, with the checkpoint that it names."""
        return self._transport.get(Alias, f"/v1/aliases/{segment(name)}")

    def history(self, name: str, filter: str = "", limit: int | None = None) -> Iterator[AliasMove]:
        """Iterate over the moves of an alias, newest first; an alias that was deleted has its history, too."""
        return self._transport.pages(
            AliasMove, f"/v1/aliases/{segment(name)}/history", limit, field="moves", filter=filter
        )

    def set(
        self, name: str, checkpoint: str, *, expected: str | Literal[_Anything.ANYTHING] | None = ANYTHING
    ) -> Alias:
        """Point an alias to a checkpoint of a run; the alias is created if there is none.

        With `expected` it is moved only if it names that checkpoint now (None: only if there is no such alias yet);
        otherwise a `ProblemAnswer` with the code `alias_moved` is raised.
        """
        body = {"checkpoint_id": checkpoint} | ({} if expected is ANYTHING else {"expected": expected})
        return self._transport.put(Alias, f"/v1/aliases/{segment(name)}", body)

    def delete(self, name: str) -> None:
        """Remove an alias; the checkpoint stays."""
        self._transport.delete(f"/v1/aliases/{segment(name)}")
