"""Stragglers: simulators that do not return steps of a round which would otherwise be complete."""

from collections.abc import Iterable

from ludus.collector.runners import PolicyRunner
from ludus.collector.session import Session


def release_stragglers(runner: PolicyRunner, sessions: Iterable[Session], now: float, grace: float) -> None:
    """Move steps that do not return to later rounds, so that other agents take their places in this one.

    Such steps belong to simulators that are silent while others are held, and to agents whose simulator goes on without
    them. `grace` is the time-out in seconds. It doubles with each release of the same session in a round: simulators
    that all need longer than it would otherwise pass the quota around for ever.
    """
    quota = runner.quota
    number = quota.number
    if number is None or quota.ended or quota.left > 0 or not quota.outstanding[number]:
        return
    owing = runner.recorder.agents.owing(number)
    late = []
    for session in sessions:
        for roster in [roster for other, roster in session.rosters.values() if other is runner]:
            if roster.number not in owing:
                continue
            roster.enter(number)
            if roster.borrows and roster.borrows_since is None:
                roster.borrows_since = now
            timeout = grace * 2**roster.releases
            silent = now - session.last_activity > timeout and runner.waiting
            goes_on = roster.borrows_since is not None and now - roster.borrows_since > timeout
            if silent or goes_on:
                late.append(roster)
    if late:
        runner.release_stragglers(late)
