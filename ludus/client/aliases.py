"""Aliases: names of checkpoints that can be moved."""

from collections.abc import Iterator
from enum import Enum
from typing import Final, Literal

from ludus.client.transport import Transport, segment
from ludus.schemas import Alias


class _Anything(Enum):
    """Stands for whatever an alias stands for."""

    ANYTHING = "anything"


ANYTHING: Final = _Anything.ANYTHING


class Aliases(Transport):
    """Requests about aliases."""

    def list_aliases(self, filter: str = "", order_by: str = "", limit: int | None = None) -> Iterator[Alias]:  # noqa: A002
        """Iterate over aliases, by name unless `order_by` says otherwise."""
        return self._items(Alias, "/v1/aliases", "aliases", {"filter": filter, "order_by": order_by}, limit)

    def get_alias(self, name: str) -> Alias:
        """Return one alias: which checkpoint it stands for."""
        return self._read(Alias, self._get(f"/v1/aliases/{segment(name)}"))

    def set_alias(
        self, name: str, checkpoint: str, *, expected: str | Literal[_Anything.ANYTHING] | None = ANYTHING
    ) -> Alias:
        """Let an alias stand for a checkpoint of a run; it need not exist.

        With `expected` it is moved only if it stands for that checkpoint now (None: only if there is none yet); else
        the answer is a `ProblemAnswer` with the code `alias_moved`.
        """
        body = {"checkpoint_id": checkpoint} | ({} if expected is ANYTHING else {"expected": expected})
        return self._read(Alias, self._put(f"/v1/aliases/{segment(name)}", body))

    def delete_alias(self, name: str) -> None:
        """Remove an alias; the checkpoint stays."""
        self._delete(f"/v1/aliases/{segment(name)}")
