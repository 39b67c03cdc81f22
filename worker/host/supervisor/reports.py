"""What a trainer reports, as writes to the database."""

from typing import assert_never

from server.ladders.refs import PlayedMatch, PlayedSeat
from server.metrics.points import MetricPoint
from server.runs.attempts.repository import AttemptLedger
from worker.trainer.link import (
    Amended,
    Assessed,
    CheckpointDeclined,
    EventRecord,
    Listening,
    Match,
    MatchesPlayed,
    MatchesResumed,
    Metrics,
    ParameterStates,
    SelfPlayStatus,
    SimulatorDown,
    SimulatorPlays,
    SimulatorUp,
)

Report = (
    Amended
    | Assessed
    | CheckpointDeclined
    | EventRecord
    | Listening
    | MatchesPlayed
    | MatchesResumed
    | Metrics
    | ParameterStates
    | SelfPlayStatus
    | SimulatorDown
    | SimulatorPlays
    | SimulatorUp
)
"""Messages that are written down and change nothing else."""


def enter(ledger: AttemptLedger, report: Report) -> None:  # one line each
    """Write a report down. Raises LeaseLost, and Unavailable with nothing written."""
    match report:
        case Listening():
            ledger.listening([endpoint.model_dump() for endpoint in report.endpoints])
        case Metrics():
            ledger.metrics([MetricPoint(**point.model_dump()) for point in report.points])
        case EventRecord():
            ledger.event(report.name, report.message, level=report.level, data=report.data)
        case Amended():
            ledger.amended(report.amendment.seq, [each.model_dump() for each in report.amendment.changes], report.step)
        case CheckpointDeclined():
            ledger.checkpoint_declined(report.request, report.detail)
        case ParameterStates():
            ledger.parameters(report.parameters, report.edit)
        case SelfPlayStatus():
            ledger.self_play(report.learning_team, report.elo)
        case SimulatorUp():
            ledger.simulator_connected(
                report.incarnation,
                number=report.number,
                collector=report.collector,
                behaviors=report.behaviors,
                peer=report.peer,
                client=report.client,
            )
        case SimulatorPlays():
            ledger.simulator_plays(report.incarnation, report.behaviors, report.agents)
        case SimulatorDown():
            ledger.simulator_left(
                report.incarnation, code=report.code, reason=report.reason, steps=report.steps, peer=report.peer
            )
        case MatchesResumed():
            ledger.resume_matches(report.newest)
        case MatchesPlayed():
            ledger.matches([played(match) for match in report.matches])
        case Assessed():
            ledger.assess(report.games, report.result, report.state)
        case _:
            assert_never(report)


def played(match: Match) -> PlayedMatch:
    """Return a match as the ledger takes it."""
    seats = tuple(PlayedSeat(**seat.model_dump()) for seat in match.seats)
    return PlayedMatch(
        number=match.number,
        behavior=match.behavior,
        simulator=match.simulator,
        at=match.at,
        step=match.step,
        seats=seats,
        outcome=match.outcome,
        truncated=match.truncated,
        rated=match.rated,
        elo=match.elo,
    )
