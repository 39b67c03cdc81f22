"""The block ledger against a plain dictionary."""

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from worker.experience.blocks import BlockLedger

BLOCKS = 12


class LedgerMachine(RuleBasedStateMachine):
    """Every block has exactly one owner at all times."""

    def __init__(self) -> None:
        super().__init__()
        self.ledger = BlockLedger(BLOCKS)
        self.model: dict[int, str | int] = dict.fromkeys(range(BLOCKS), "free")

    def having(self, owner: str | int) -> list[int]:
        return [block for block, held_by in self.model.items() if held_by == owner]

    @rule(owner=st.integers(0, 2), count=st.integers(0, 6))
    def lend(self, owner: int, count: int) -> None:
        lent = self.ledger.lend(owner, count).tolist()

        assert len(lent) == len(set(lent)) == min(count, len(self.having("free")))
        assert all(self.model[block] == "free" for block in lent)
        self.model.update(dict.fromkeys(lent, owner))

    @rule(owner=st.integers(0, 2), data=st.data())
    def deliver(self, owner: int, data: st.DataObject) -> None:
        blocks = data.draw(st.sets(st.sampled_from(self.having(owner)))) if self.having(owner) else set()

        self.ledger.deliver(owner, blocks)

        self.model.update(dict.fromkeys(blocks, "delivered"))

    @rule(data=st.data())
    def reclaim(self, data: st.DataObject) -> None:
        held = self.having("delivered")
        blocks = data.draw(st.sets(st.sampled_from(held))) if held else set()

        assert self.ledger.reclaim(blocks) == len(blocks)

        self.model.update(dict.fromkeys(blocks, "free"))

    @rule(owner=st.integers(0, 2))
    def collector_dies(self, owner: int) -> None:
        held = self.having(owner)

        assert self.ledger.reclaim_from(owner) == len(held)

        self.model.update(dict.fromkeys(held, "free"))

    @invariant()
    def counts_agree(self) -> None:
        assert self.ledger.free == len(self.having("free"))
        assert [self.ledger.owned_by(owner) for owner in range(3)] == [len(self.having(owner)) for owner in range(3)]


TestLedger = LedgerMachine.TestCase


def test_a_block_cannot_be_delivered_by_another_collector() -> None:
    ledger = BlockLedger(4)
    blocks = ledger.lend(0, 2).tolist()

    with pytest.raises(ValueError, match="not to 1"):
        ledger.deliver(1, blocks)


def test_a_block_cannot_be_reclaimed_twice() -> None:
    ledger = BlockLedger(4)
    blocks = ledger.lend(0, 2).tolist()
    ledger.deliver(0, blocks)
    ledger.reclaim(blocks)

    with pytest.raises(ValueError, match="belong to"):
        ledger.reclaim(blocks)


def test_the_block_that_was_freed_last_is_lent_first() -> None:
    ledger = BlockLedger(100)
    first = ledger.lend(0, 3).tolist()
    ledger.deliver(0, first)
    ledger.reclaim(first[:1])

    assert ledger.lend(0, 1).tolist() == first[:1]
