"""The table of moves is closed, and the words that depend on it are complete."""

from ludus.schemas.states import RunState
from server.kit.states import CLAIMABLE, EVENT_OF, LEASED, TERMINAL, TRANSITIONS
from server.runs.models import CLAIMABLE_SQL


def test_every_state_has_its_moves() -> None:
    assert set(TRANSITIONS) == set(RunState)


def test_finished_states_end_in_ed_and_never_change() -> None:
    assert {state for state in RunState if not TRANSITIONS[state]} == TERMINAL
    assert all(state.endswith("ED") for state in TERMINAL)


def test_every_state_that_can_be_entered_has_an_event() -> None:
    entered = set().union(*TRANSITIONS.values())

    assert entered == set(EVENT_OF)


def test_every_leased_state_can_lose_its_worker() -> None:
    assert all(RunState.RECOVERING in TRANSITIONS[state] for state in LEASED)


def test_every_state_that_is_not_final_can_be_cancelled() -> None:
    assert all(RunState.CANCELLED in TRANSITIONS[state] for state in set(RunState) - TERMINAL)


def test_the_sql_of_claimable_states_says_the_same_as_the_table() -> None:
    assert {state for state in RunState if f"'{state}'" in CLAIMABLE_SQL} == CLAIMABLE
