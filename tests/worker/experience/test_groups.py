"""Mates are found as a plain loop over all pairs of steps would find them."""

from dataclasses import dataclass, field, replace

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from ludus.collector.segments import SegmentEnd
from tests.worker.rollouts import make_rollout
from worker.experience.groups import Mates, teams_of
from worker.experience.rollout import Rollout


@dataclass
class Part:
    """A segment, as a loop would like it."""

    simulator: int
    agent: int
    group: int
    ticks: list[int]
    following: int
    ending: SegmentEnd
    starts: bool = True
    mates_alive: bool = False
    rewards: list[float] = field(default_factory=list)

    def begins_and_ends(self) -> list[tuple[int, int]]:
        return list(zip(self.ticks, [*self.ticks[1:], self.following], strict=True))


def rollout_of(parts: list[Part]) -> Rollout:
    steps = sum(len(part.ticks) for part in parts)
    rewards = [reward for part in parts for reward in (part.rewards or [0.0] * len(part.ticks))]
    rollout = make_rollout(
        observations=[np.zeros((steps, 1))],
        rewards=np.array(rewards),
        log_probs=np.zeros((steps, 1)),
        lengths=[len(part.ticks) for part in parts],
        ending=[part.ending for part in parts],
    )
    return replace(
        rollout,
        ticks=torch.tensor([tick for part in parts for tick in part.ticks]),
        successor_ticks=torch.tensor([part.following for part in parts]),
        simulators=torch.tensor([part.simulator for part in parts]),
        agents=torch.tensor([part.agent for part in parts]),
        groups=torch.tensor([part.group for part in parts]),
        mates_alive=torch.tensor([part.mates_alive for part in parts]),
        starts_episode=torch.tensor([part.starts for part in parts]),
    )


def listed(mates: Mates) -> list[list[int]]:
    """The mates of each row, and that nothing stands behind the first gap."""
    for present in mates.present.tolist():
        assert present == sorted(present, reverse=True)
    return [row[present].tolist() for row, present in zip(mates.rows, mates.present, strict=True)]


@st.composite
def worlds(draw: st.DrawFn) -> list[Part]:
    """Games in which agents decide, die, are cut and come back as chance will have it; some segments are missing."""
    chance = np.random.default_rng(draw(st.integers(0, 2**32)))
    parts: list[Part] = []
    for simulator in range(draw(st.integers(1, 3))):
        agents = draw(st.integers(1, 5))
        busy = draw(st.floats(0.2, 1.0))
        groups = chance.integers(0, 3, agents)
        opened: dict[int, Part] = {}
        base = int(chance.integers(0, 1000))
        for tick in range(base, base + draw(st.integers(1, 12))):
            for agent in np.flatnonzero(chance.random(agents) < busy).tolist():
                part = opened.pop(agent, None)
                event = chance.choice(["decide", "cut", "terminate", "truncate"], p=[0.6, 0.2, 0.1, 0.1])
                if part is not None and event != "decide":
                    part.following = tick
                    part.ending = {
                        "cut": SegmentEnd.CUT,
                        "terminate": SegmentEnd.TERMINATED,
                        "truncate": SegmentEnd.TRUNCATED,
                    }[event]
                    part.mates_alive = bool(chance.integers(0, 2))
                    parts.append(part)
                ended = part is not None and event in {"terminate", "truncate"}
                if ended and chance.random() < 0.5:
                    continue  # back later
                if part is None or event != "decide":
                    part = Part(
                        simulator, agent, int(groups[agent]), [], 0, SegmentEnd.CUT, starts=part is None or ended
                    )
                part.ticks.append(tick)
                part.rewards.append(float(chance.integers(-5, 6)))
                opened[agent] = part
        for part in opened.values():
            part.following = base + 12
            parts.append(part)
    order = chance.permutation(len(parts))
    kept = [parts[index] for index in order if chance.random() < 0.8]
    return kept or [Part(0, 0, 0, [3], 4, SegmentEnd.CUT, rewards=[1.0])]


def are_mates(one: Part, other: Part) -> bool:
    same = (one.simulator, one.group) == (other.simulator, other.group)
    return same and one.group != 0 and one.agent != other.agent


def steps_of(parts: list[Part]) -> list[tuple[Part, int, int, bool]]:
    """Every step: its segment, when it begins and ends, whether an episode begins with it."""
    return [
        (part, begin, end, part.starts and index == 0)
        for part in parts
        for index, (begin, end) in enumerate(part.begins_and_ends())
    ]


@given(worlds())
def test_mates_of_steps_are_those_whose_step_lasts_when_it_begins(parts: list[Part]) -> None:
    steps = steps_of(parts)
    expected = [
        [row for row, (other, begin, end, _) in enumerate(steps) if are_mates(part, other) and begin <= tick < end]
        for part, tick, _, _ in steps
    ]

    assert listed(teams_of(rollout_of(parts)).steps) == expected


@given(worlds())
def test_mates_at_an_end_are_those_of_whom_something_is_known_there(parts: list[Part]) -> None:
    steps = steps_of(parts)

    def known(segment: Part) -> list[int]:
        tick = segment.following
        rows = [
            row
            for row, (other, begin, end, new) in enumerate(steps)
            if are_mates(segment, other) and begin <= tick < end and not (new and begin == tick)
        ]
        seen = {steps[row][0].agent for row in rows}
        for index, other in enumerate(parts):
            ends_here = are_mates(segment, other) and other.following == tick
            stays = other.ending is SegmentEnd.TRUNCATED or (other.ending is SegmentEnd.CUT and other.agent not in seen)
            if ends_here and stays:
                rows.append(len(steps) + index)
        return rows

    teams = teams_of(rollout_of(parts))

    expected = [known(part) for part in parts]
    dies = [part.ending is SegmentEnd.TERMINATED for part in parts]
    assert listed(teams.ends) == expected
    assert teams.self_at_end.tolist() == [not (died and mates) for died, mates in zip(dies, expected, strict=True)]
    assert teams.bootstraps.tolist() == [
        not died or bool(mates) or part.mates_alive for part, died, mates in zip(parts, dies, expected, strict=True)
    ]


@given(worlds())
def test_a_step_earns_what_its_team_receives_while_it_lasts(parts: list[Part]) -> None:
    def is_in_team(part: Part, other: Part) -> bool:
        return (part.simulator, part.agent) == (other.simulator, other.agent) or are_mates(part, other)

    received = [
        (part, end, reward)
        for part in parts
        for (_, end), reward in zip(part.begins_and_ends(), part.rewards, strict=True)
    ]
    expected = [
        sum(reward for other, at, reward in received if is_in_team(part, other) and begin < at <= end)
        for part, begin, end, _ in steps_of(parts)
    ]

    assert teams_of(rollout_of(parts)).rewards.tolist() == expected


def test_what_follows_an_agent_that_died_early_is_its_mates() -> None:
    dead = Part(0, 1, 7, [10], 11, SegmentEnd.TERMINATED, mates_alive=True, rewards=[-1.0])
    mate = Part(0, 2, 7, [10, 11, 12], 13, SegmentEnd.TERMINATED, rewards=[0.0, 2.0, 4.0])

    teams = teams_of(rollout_of([dead, mate]))

    assert listed(teams.steps) == [[1], [0], [], []]
    assert listed(teams.ends) == [[2], []]
    assert teams.self_at_end.tolist() == [False, True]
    assert teams.bootstraps.tolist() == [True, False]
    assert teams.rewards.tolist() == [-1.0, -1.0, 2.0, 4.0]
