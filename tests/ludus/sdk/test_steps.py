"""`StepBuilder` turns what a game reports into columns; a mistake raises at the line of the game that made it."""

from collections.abc import Callable

import numpy as np
import pytest

from ludus.protocol.batches import ActionBatch
from ludus.protocol.specs import BehaviorLayout
from ludus.sdk import (
    Actions,
    ActionSpec,
    Aggregation,
    BehaviorSpec,
    DecisionBatch,
    DimensionProperty,
    ObservationSpec,
    Outcome,
    StepBuilder,
    TerminalBatch,
)

WALKER = BehaviorSpec("Walker", (ObservationSpec((2,), "speed"),), ActionSpec(1, (2, 3)))
SEER = BehaviorSpec("Seer", (ObservationSpec((2,)), ObservationSpec((1, 2, 2), "eye", "uint8")), ActionSpec(1))


def step(*specs: BehaviorSpec, waiting: dict[str, dict[int, int]] | None = None) -> StepBuilder:
    return StepBuilder({spec.name: BehaviorLayout(spec) for spec in specs or (WALKER,)}, waiting or {})


def test_agents_become_columns_in_the_order_in_which_they_asked() -> None:
    said = step()
    said.request_decision(7, [0.5, 1], 2.0)
    said.request_decision(3, (1, 2))

    (batch,) = said.batches()

    assert batch.behavior == "Walker"
    assert batch.terminals is None
    assert batch.decisions is not None
    assert batch.decisions.agent_ids.tolist() == [7, 3]
    assert batch.decisions.rewards.tolist() == [2, 0]
    np.testing.assert_array_equal(batch.decisions.observations[0], np.array([[0.5, 1], [1, 2]], np.float32))
    assert batch.decisions[3:] == (None, None, None)


def test_several_observations_are_given_as_a_sequence() -> None:
    said = step(SEER)
    said.request_decision(1, ([1, 2], np.full((1, 2, 2), 9)))

    (batch,) = said.batches()

    assert batch.decisions is not None
    assert [column.dtype for column in batch.decisions.observations] == [np.float32, np.uint8]
    assert batch.decisions.observations[1].shape == (1, 1, 2, 2)


CROWD = BehaviorSpec(
    "Crowd",
    (
        ObservationSpec((2,)),
        ObservationSpec(
            (3, 2), "others", dimension_properties=(DimensionProperty.VARIABLE_SIZE, DimensionProperty.NONE)
        ),
    ),
    ActionSpec(1),
)


def test_only_the_entities_that_there_are_need_be_given() -> None:
    said = step(CROWD)
    said.request_decision(1, ([1, 2], [[3, 4]]))
    said.request_decision(2, ([1, 2], []))
    said.end_episode(3, ([1, 2], np.ones((3, 2))))

    (batch,) = said.batches()

    assert batch.decisions is not None
    assert batch.terminals is not None
    assert batch.decisions.observations[1].tolist() == [[[3, 4], [0, 0], [0, 0]], [[0, 0]] * 3]
    assert batch.terminals.observations[1].tolist() == [[[1, 1]] * 3]


@pytest.mark.parametrize("entities", [np.ones((4, 2)), np.ones((1, 3)), np.ones(2), 1.0])
def test_entities_that_do_not_fit_are_a_mistake_with_both_shapes(entities: np.ndarray) -> None:
    said = step(CROWD)

    with pytest.raises(ValueError, match=r"others.* has shape .*, its spec says \(3, 2\)"):
        said.request_decision(1, ([1, 2], entities))


def test_a_game_may_reuse_one_array_for_all_its_agents() -> None:
    said = step()
    array = np.zeros(2, np.float32)
    for agent in range(3):
        array[:] = agent
        said.request_decision(agent, array)

    (batch,) = said.batches()

    assert batch.decisions is not None
    assert batch.decisions.observations[0][:, 0].tolist() == [0, 1, 2]


def test_an_agent_without_a_mask_is_allowed_everything() -> None:
    said = step()
    said.request_decision(1, [0, 0])
    said.request_decision(2, [0, 0], mask=[True, False, 0, 1, 1])

    (batch,) = said.batches()

    assert batch.decisions is not None
    assert batch.decisions.action_masks is not None
    assert batch.decisions.action_masks.tolist() == [[1, 1, 1, 1, 1], [1, 0, 0, 1, 1]]


def test_ends_carry_truncation_groups_and_outcomes() -> None:
    said = step()
    said.end_episode(1, [0, 0], 1.0, truncated=True, group=4, group_reward=0.5)
    said.end_episode(2, [0, 0], -1.0, outcome=Outcome.LOSS)

    (batch,) = said.batches()

    assert batch.terminals is not None
    assert batch.terminals.truncated.tolist() == [True, False]
    assert batch.terminals.group_ids is not None
    assert batch.terminals.group_ids.tolist() == [4, 0]
    assert batch.terminals.group_rewards is not None
    assert batch.terminals.group_rewards.tolist() == [0.5, 0]
    assert batch.terminals.outcomes is not None
    assert batch.terminals.outcomes.tolist() == [0, 3]


def test_an_agent_may_end_and_begin_in_one_turn() -> None:
    said = step(waiting={"Walker": {1: 1}})
    said.end_episode(1, [0, 0])
    said.request_decision(1, [1, 1])

    (batch,) = said.batches()

    assert batch.terminals is not None
    assert batch.decisions is not None


def test_reports_keep_their_aggregation() -> None:
    said = step()
    said.report("Score", 3, Aggregation.SUM)

    assert said.stats == [("Score", 3.0, Aggregation.SUM)]


def test_a_behavior_can_be_introduced_later() -> None:
    said = step(WALKER)
    said.announce(SEER)
    said.announce(WALKER)
    said.request_decision(1, ([1, 2], np.zeros((1, 2, 2))), behavior="Seer")

    assert said.announced == [SEER]
    assert [batch.behavior for batch in said.batches()] == ["Seer"]


def decisions(*agents: int) -> DecisionBatch:
    return DecisionBatch(
        np.array(agents, np.int32), np.zeros(len(agents), np.float32), (np.zeros((len(agents), 2), np.float32),)
    )


def test_whole_columns_pass_as_they_are() -> None:
    said = step()
    ends = TerminalBatch(*decisions(5)[:3], np.array([False]))
    said.request_decisions(decisions(1, 2))
    said.end_episodes(ends)

    (batch,) = said.batches()

    assert batch.terminals is ends


@pytest.mark.parametrize(
    ("mistake", "sentence"),
    [
        (
            lambda t: t.request_decision(1, [1, 2, 3]),
            r"agent 1 of 'Walker': observation 0 \(speed\) has shape \(3,\), .* \(2,\)",
        ),
        (lambda t: t.end_episode(1, 5.0), r"has shape \(\)"),
        (lambda t: t.request_decision(1, [0, 0], behavior="Runner"), "'Runner' was not announced, only Walker"),
        (lambda t: t.request_decision(1, [0, 0], mask=[1, 1]), r"mask has 2 entries, not 5 \(2 \+ 3\)"),
        (
            lambda t: (t.request_decision(1, [0, 0]), t.request_decision(1, [0, 0])),
            "agent 1 of 'Walker' asked for an action twice",
        ),
        (lambda t: (t.end_episode(1, [0, 0]), t.end_episode(1, [0, 0])), "agent 1 of 'Walker' ended twice"),
        (lambda t: t.request_decision(8, [0, 0]), "agent 8 of 'Walker' still waits"),
        (lambda t: t.request_decisions(decisions(8, 1)), "agent 8 of 'Walker' still waits"),
        (lambda t: t.request_decisions(decisions(1, 1)), "agent 1 of 'Walker' asked for an action twice"),
        (lambda t: (t.request_decisions(decisions(1)), t.request_decision(2, [0, 0])), "put all its agents there"),
        (
            lambda t: (t.request_decision(2, [0, 0]), t.request_decisions(decisions(1))),
            "put all its agents into one batch",
        ),
        (lambda t: (t.announce(SEER), t.request_decision(1, [0, 0])), "say which behavior is meant: Walker, Seer"),
        (lambda t: (t.announce(SEER), t.request_decision(1, [[0, 0]], behavior="Seer")), "has 1 observations, not 2"),
    ],
)
def test_a_mistake_of_the_game_is_a_sentence(mistake: Callable[[StepBuilder], object], sentence: str) -> None:
    said = step(waiting={"Walker": {8: 1}})

    with pytest.raises((ValueError, TypeError), match=sentence):
        (mistake(said), said.batches())


def test_actions_can_be_read_agent_by_agent() -> None:
    batch = ActionBatch(
        "Walker",
        np.array([4, 2], np.int32),
        np.array([[0.5], [-0.5]], np.float32),
        np.array([[1, 2], [0, 1]], np.int32),
    )

    actions = Actions([batch])

    assert len(actions) == 2
    assert [(action.agent, action.continuous.tolist(), action.discrete.tolist()) for action in actions] == [
        (4, [0.5], [1, 2]),
        (2, [-0.5], [0, 1]),
    ]
