"""Shares of a minibatch in several processes: disjoint, together all of it, and weighted alike."""

import pytest
import torch
import torch.distributed as dist

from worker.learning.data_parallel import mean_weights, own_rows, process_group, shard, share


def test_shares_are_disjoint_and_cover_every_minibatch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dist, "get_world_size", lambda: 2)
    order = torch.arange(22)
    parts = []
    for rank in range(2):
        monkeypatch.setattr(dist, "get_rank", lambda rank=rank: rank)
        with process_group():
            parts.append(share(order, 8))

    assert share(order, 8) == (order, 8), "what is not done together is not shared"
    assert [size for _, size in parts] == [4, 4]
    assert parts[0][0].tolist() == [0, 1, 2, 3, 8, 9, 10, 11]
    assert parts[1][0].tolist() == [4, 5, 6, 7, 12, 13, 14, 15]


def test_rows_of_what_is_drawn_are_disjoint_and_those_of_one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    def taken(processes: int, drawn: torch.Tensor, length: int = 1) -> list[list[int]]:
        monkeypatch.setattr(dist, "get_world_size", lambda: processes)
        parts = []
        for rank in range(processes):
            monkeypatch.setattr(dist, "get_rank", lambda rank=rank: rank)
            with process_group():
                parts.append(own_rows(drawn, length).tolist())
        return parts

    assert taken(2, torch.arange(8)) == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert taken(2, torch.arange(12), length=4) == [[0, 1, 2, 3], [4, 5, 6, 7]], "the third sequence is left out"
    assert taken(3, torch.arange(2)) == [[0], [1], [0]], "nobody is left without"
    assert own_rows(torch.arange(8)).tolist() == list(range(8)), "what is not done together is not shared"
    assert shard(4) == (0, 4, 4, 1.0)


def test_weights_of_a_mean_are_without_padding() -> None:
    assert mean_weights(torch.tensor([True, False, True, True, False])).tolist() == pytest.approx(
        [1 / 3, 0.0, 1 / 3, 1 / 3, 0.0]
    )
