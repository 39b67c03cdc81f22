"""What the HTTP API returns, as frozen dataclasses: modules as in `ludus.client`, and all of them importable from here.

Times are aware datetimes in UTC. A field that the server adds later is ignored by older clients; a field that is
missing takes its default.
"""

from ludus.schemas.aliases import Alias
from ludus.schemas.assessments import EvaluationResult, MatchResult
from ludus.schemas.checkpoints import (
    Checkpoint,
    CheckpointFile,
    CheckpointVerified,
    Pruned,
    PrunedCheckpoint,
    UploadedCheckpoint,
)
from ludus.schemas.configs import (
    ConfigChange,
    ConfigDiff,
    ConfigDrop,
    ConfigRewrite,
    ConfigSummary,
    ConfigUpgrade,
    ConfigVersion,
)
from ludus.schemas.demonstrations import Demonstration
from ludus.schemas.errors import ProblemDetail
from ludus.schemas.events import Event
from ludus.schemas.ladders import Ladder, Match, PayoffPlayer, Payoffs, Player, Rating, RatingSeries, Seat
from ludus.schemas.lifecycle import Amendment, Amendments, Change, CheckpointRequest
from ludus.schemas.metrics import Log, LogText, Metric, Series
from ludus.schemas.parameters import EnvironmentParameter, EnvironmentParameters, ParameterEdit
from ludus.schemas.reading import read_record
from ludus.schemas.runs import Attempt, ConfigWarning, PlannedRun, Run, SelfPlay, Simulator, Worker
from ludus.schemas.tokens import AuditEntry, Identity, Token
from ludus.schemas.webhooks import Delivery, DeliveryAttempt, Webhook

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
