"""What the HTTP API returns, as frozen dataclasses: modules as in `ludus.api`, and all of them importable from here.

Times are aware datetimes in UTC. A field that the server adds later is ignored by older clients; a field that is
missing takes its default.
"""

from ludus.records.aliases import Alias
from ludus.records.assessments import EvaluationResult, MatchResult
from ludus.records.checkpoints import (
    Checkpoint,
    CheckpointFile,
    CheckpointVerified,
    Pruned,
    PrunedCheckpoint,
    UploadedCheckpoint,
)
from ludus.records.configs import (
    ConfigChange,
    ConfigDiff,
    ConfigDrop,
    ConfigRewrite,
    ConfigSummary,
    ConfigUpgrade,
    ConfigVersion,
)
from ludus.records.demonstrations import Demonstration
from ludus.records.errors import ProblemDetail
from ludus.records.events import Event
from ludus.records.ladders import Ladder, Match, PayoffPlayer, Payoffs, Player, Rating, RatingSeries, Seat
from ludus.records.lifecycle import Amendment, Amendments, Change, CheckpointRequest
from ludus.records.metrics import Log, LogText, Metric, Series
from ludus.records.parameters import EnvironmentParameter, EnvironmentParameters, ParameterEdit
from ludus.records.reading import read_record
from ludus.records.runs import Attempt, ConfigWarning, PlannedRun, Run, SelfPlay, Simulator, Worker
from ludus.records.tokens import AuditEntry, Identity, Token
from ludus.records.webhooks import Delivery, DeliveryAttempt, Webhook

__all__ = [
    "Alias",
    "Amendment",
    "Amendments",
    "Attempt",
    "AuditEntry",
    "Change",
    "Checkpoint",
    "CheckpointFile",
    "CheckpointRequest",
    "CheckpointVerified",
    "ConfigChange",
    "ConfigDiff",
    "ConfigDrop",
    "ConfigRewrite",
    "ConfigSummary",
    "ConfigUpgrade",
    "ConfigVersion",
    "ConfigWarning",
    "Delivery",
    "DeliveryAttempt",
    "Demonstration",
    "EnvironmentParameter",
    "EnvironmentParameters",
    "EvaluationResult",
    "Event",
    "Identity",
    "Ladder",
    "Log",
    "LogText",
    "Match",
    "MatchResult",
    "Metric",
    "ParameterEdit",
    "PayoffPlayer",
    "Payoffs",
    "PlannedRun",
    "Player",
    "ProblemDetail",
    "Pruned",
    "PrunedCheckpoint",
    "Rating",
    "RatingSeries",
    "Run",
    "Seat",
    "SelfPlay",
    "Series",
    "Simulator",
    "Token",
    "UploadedCheckpoint",
    "Webhook",
    "Worker",
    "read_record",
]
