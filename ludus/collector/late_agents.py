"""Late agents: simulators that do not return steps of a round which would otherwise be complete."""

from collections.abc import Iterable

from ludus.collector.runners import PolicyRunner
from ludus.collector.session import Session


def release_late_agents(runner: PolicyRunner, sessions: Iterable[Session], now: float, grace: float) -> None:
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
        for agent_index in [agent_index for other, agent_index in session.agent_indexes.values() if other is runner]:
            if agent_index.number not in owing:
                continue
            agent_index.enter(number)
            if agent_index.borrows and agent_index.borrows_since is None:
                agent_index.borrows_since = now
            timeout = grace * 2**agent_index.releases
            silent = now - session.last_activity > timeout and runner.waiting
            goes_on = agent_index.borrows_since is not None and now - agent_index.borrows_since > timeout
            if silent or goes_on:
                late.append(agent_index)
    if late:
        runner.release_late_agents(late)
