"""A rank that is killed, freezes or fails, or has other weights, ends the attempt by a sentence that says so."""

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
import torch

from ludus.config.behavior import PPOConfig
from tests.worker.trainer.rank_world import CPU, Pair, build
from tests.worker.trainer.test_ranks import SPEC, STEPS, config, rollout
from worker.trainer.ranks import RankLost, Ranks

pytestmark = [pytest.mark.xdist_group("two learners"), pytest.mark.long]
TIMEOUT = 4.0


@pytest.fixture
def ranks(tmp_path: Path) -> Iterator[Ranks]:
    """This process and another."""
    ranks = Ranks(2, CPU, tmp_path, TIMEOUT)
    yield ranks
    ranks.close()


def other() -> int:
    """The process of the other rank."""
    (rank,) = (child for child in psutil.Process().children() if "worker.trainer.ranks" in " ".join(child.cmdline()))
    return rank.pid


def check_until_lost(ranks: Ranks) -> str:
    """Look after the ranks as the trainer's loop does, for a bit longer than the time-out; return the sentence."""
    deadline = time.monotonic() + TIMEOUT + 5.0
    while time.monotonic() < deadline:
        try:
            ranks.check()
        except RankLost as lost:
            return str(lost)
    raise AssertionError("nothing was noticed")


def test_a_rank_that_is_killed_while_all_wait_is_noticed_at_once(ranks: Ranks) -> None:
    began = time.monotonic()
    os.kill(other(), signal.SIGKILL)

    assert check_until_lost(ranks) == "rank 1 ended with signal SIGKILL; the run goes on from its last checkpoint"
    assert time.monotonic() - began < TIMEOUT


def test_a_rank_that_freezes_while_all_wait_is_noticed_after_the_time_out(ranks: Ranks) -> None:
    os.kill(other(), signal.SIGSTOP)

    assert check_until_lost(ranks).startswith("rank 1 has frozen: it does not say any more that it lives")


@pytest.mark.parametrize(
    ("how", "sentence"),
    [(signal.SIGKILL, "rank 1 ended with signal SIGKILL"), (signal.SIGSTOP, "rank 1 has frozen")],
)
def test_a_rank_that_is_lost_during_an_exchange_is_noticed(ranks: Ranks, how: signal.Signals, sentence: str) -> None:
    algorithm = build(config(PPOConfig), SPEC)
    os.kill(other(), how)
    began = time.monotonic()

    with pytest.raises(RankLost, match=sentence):
        ranks.update(algorithm, rollout(1), STEPS)

    assert time.monotonic() - began < TIMEOUT + 5.0


def test_a_frozen_rank_does_not_block_what_orders_it(ranks: Ranks) -> None:
    pair = Pair(ranks, config(PPOConfig), SPEC)
    os.kill(other(), signal.SIGSTOP)

    with pytest.raises(RankLost, match="rank 1 has frozen"):
        pair.update(rollout(1), rollout(2), STEPS)


def test_a_rank_that_fails_says_why(ranks: Ranks) -> None:
    pair = Pair(ranks, config(PPOConfig), SPEC)
    wrong = pair.order._replace(state={})

    ranks.build(wrong, pair.arena)

    assert "rank 1 ended with exit code 1: KeyError" in check_until_lost(ranks)


def test_ranks_with_other_weights_are_told_from_ranks_that_are_lost(ranks: Ranks) -> None:
    pair = Pair(ranks, config(PPOConfig), SPEC)
    with torch.no_grad():
        next(pair.algorithm.model.parameters()).add_(1.0)

    with pytest.raises(RankLost, match=f"the ranks' weights differ after the update at step {STEPS}"):
        pair.update(rollout(1), rollout(2), STEPS)
