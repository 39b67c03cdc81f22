"""Turns the reports of a trainer into writes to the database."""

from dataclasses import asdict
from typing import assert_never

from ludus.collector.messages import SimulatorConnected, SimulatorLeft, SimulatorStarted
from server.lifecycle.attempts.repository import AttemptLedger
from worker.trainer.messages import (
    Amended,
    Assessed,
    CheckpointDeclined,
    EdgeCollectors,
    EventRecord,
    Findings,
    Listening,
    MatchesPlayed,
    MatchesResumed,
    ParameterStates,
    PlacesUnavailable,
    Report,
    SelfPlayStatus,
)


def write(ledger: AttemptLedger, report: Report) -> None:
    """Write a report. Raises LeaseLost, and Unavailable with nothing written."""
    match report:
        case Listening():
            ledger.listening([asdict(each) for each in report.endpoints])
        case EdgeCollectors():
            ledger.collectors.publish(report.collectors)
        case PlacesUnavailable():
            ledger.collectors.unavailable(report.detail)
        case EventRecord():
            ledger.event(report.name, report.message, level=report.level, data=report.data)
        case Amended():
            ledger.amendments.applied(report.amendment.seq, report.amendment.changes, report.step)
        case CheckpointDeclined():
            ledger.checkpoints.decline(report.request, report.detail)
        case Findings():
            ledger.health.publish(report.findings)
        case ParameterStates():
            ledger.parameters.publish(report.parameters, report.edit)
        case SelfPlayStatus():
            ledger.self_play(report.learning_team, report.elo)
        case SimulatorConnected(session_id, number, collector, peer, client, behaviors):
            ledger.simulators.connected(
                session_id, number=number, collector=collector, behaviors=behaviors, peer=peer, client=client
            )
        case SimulatorStarted(session_id, behaviors, agents):
            ledger.simulators.plays(session_id, behaviors, agents)
        case SimulatorLeft(session_id, _, code, reason, steps, peer):
            ledger.simulators.left(session_id, code=code, reason=reason, steps=steps, peer=peer)
        case MatchesResumed():
            ledger.matches.resume(report.newest)
        case MatchesPlayed():
            ledger.matches.append(report.matches)
        case Assessed():
            ledger.assessment.store(report.games, report.result, report.state)
        case _:
            assert_never(report)
