"""Guards: an update that meets a value that is not finite, or that explodes, is taken back; the error names the term.

Nothing waits for the device while an update runs: its terms are kept there, minibatch by minibatch, and looked at once
at its end, together with its statistics. Only when something was wrong the table is read to find the first wrong term.

A term *explodes* when it grows a million-fold within one update (from its size in the first minibatch, or from 1 if
that is less): the first minibatch was measured with the weights from before, so nothing but the update itself did that.
SAC's updates have one minibatch as a rule: there a term explodes when it is a million times what it was on average in
the last update that was not taken back (`algorithms.sac_stats`).
"""

from collections.abc import Iterable, Mapping

import torch
from jaxtyping import Bool, Float
from torch import Tensor

OF_ANOTHER_RANK = "the update of another rank"
"""The term of a `Diverged` where another rank (`worker.learning.data_parallel`) met it; that one's log names it."""
GROWTH = 1e6
"""How much larger a term may become within one update."""


class Diverged(ArithmeticError):
    """An update met a value that is not finite or explodes. Everything is as before the update."""

    def __init__(
        self,
        tensor: str,
        minibatch: int | None = None,
        *,
        grown: tuple[float, float] | None = None,
    ) -> None:
        where = "" if minibatch is None else f" in minibatch {minibatch}"
        what = "is not finite" if grown is None else f"exploded from {grown[0]:.3g} to {grown[1]:.3g}"
        super().__init__(f"{tensor} {what}{where}; the update was taken back")
        self.tensor = tensor
        """The first wrong term: `rewards`, `values`, `policy loss`, `gradient`, `weights of curiosity`, ..."""
        self.minibatch = minibatch
        """Index of the minibatch within the update, over all epochs; None if it was before the first one."""
        self.grown = grown
        """Its size before and now; None if it is not finite."""


class NumericCheck:
    """The terms of an update, one row for each minibatch. All minibatches have the same terms."""

    def __init__(self) -> None:
        self._names: tuple[str, ...] = ()
        self._terms: list[Tensor] = []

    def add(self, terms: Mapping[str, Float[Tensor, ""]]) -> None:
        """Add the terms of one minibatch, by name. They stay on the device."""
        self._names = self._names or tuple(terms)
        self._terms += terms.values()

    def __len__(self) -> int:
        return len(self._terms) // max(len(self._names), 1)

    def means(self) -> dict[str, Float[Tensor, ""]]:
        """Return each term's mean over the minibatches, on the device."""
        return dict(zip(self._names, self._table().mean(0).unbind(), strict=True))

    def is_valid(self) -> Bool[Tensor, ""]:
        """Return whether every term is finite and none explodes, on the device."""
        return self._valid().all()

    def diagnosis(self) -> Diverged | None:
        """Return an error that names the first term that was wrong, None if none was. Waits for the device."""
        table, valid = self._table(), self._valid()
        if bool(valid.all()):
            return None
        minibatch = int((~valid.all(1)).nonzero()[0])
        column = int((~valid[minibatch]).nonzero()[0])
        value, first = float(table[minibatch, column]), float(table[0, column])
        grown = (first, value) if torch.isfinite(table[minibatch, column]) else None
        return Diverged(self._names[column], minibatch, grown=grown)

    def _table(self) -> Float[Tensor, "minibatches terms"]:
        return torch.stack(self._terms).view(-1, len(self._names))

    def _valid(self) -> Bool[Tensor, "minibatches terms"]:
        table = self._table().abs()
        return table.isfinite() & (table <= GROWTH * table[0].clamp(min=1.0))


def first_infinite(tensors: Iterable[tuple[str, Tensor]]) -> Diverged | None:
    """Return an error that names the first tensor with a value that is not finite, None if all are. Waits."""
    return next((Diverged(name) for name, tensor in tensors if not tensor.isfinite().all()), None)
