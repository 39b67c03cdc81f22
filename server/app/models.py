"""All models, so that the metadata is complete for migrations and their check."""

from server.access.audit.models import AuditEntry
from server.access.tokens.models import Token
from server.assessments.models import RunAssessment
from server.checkpoints.aliases.models import CheckpointAlias
from server.checkpoints.models import Checkpoint, RunInitialCheckpoint, UploadedCheckpoint
from server.checkpoints.requests.models import CheckpointRequest
from server.configs.models import ConfigVersion
from server.demonstrations.models import Demonstration, RunDemonstration
from server.kit.db.base import Base
from server.kit.http.models import IdempotencyKey
from server.ladders.models import (
    Ladder,
    LadderMatch,
    LadderPair,
    LadderParticipant,
    LadderPlayer,
    RatingPoint,
    RunLadder,
)
from server.metrics.models import LatestMetric, MetricChunk
from server.runs.amendments.models import AmendedRun, Amendment
from server.runs.environment_parameters.models import ParameterEdit, RunParameters
from server.runs.models import Attempt, DeletedRun, Event, Log, Run, RunTag
from server.simulators.models import Simulator
from server.webhooks.models import Delivery, DeliveryAttempt, Webhook, WebhookCursor
from server.workers.models import Worker

__all__ = [
    "AmendedRun",
    "Amendment",
    "Attempt",
    "AuditEntry",
    "Base",
    "Checkpoint",
    "CheckpointAlias",
    "CheckpointRequest",
    "ConfigVersion",
    "DeletedRun",
    "Delivery",
    "DeliveryAttempt",
    "Demonstration",
    "Event",
    "IdempotencyKey",
    "Ladder",
    "LadderMatch",
    "LadderPair",
    "LadderParticipant",
    "LadderPlayer",
    "LatestMetric",
    "Log",
    "MetricChunk",
    "ParameterEdit",
    "RatingPoint",
    "Run",
    "RunAssessment",
    "RunDemonstration",
    "RunInitialCheckpoint",
    "RunLadder",
    "RunParameters",
    "RunTag",
    "Simulator",
    "Token",
    "UploadedCheckpoint",
    "Webhook",
    "WebhookCursor",
    "Worker",
]
