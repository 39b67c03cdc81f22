"""The job of a trainer: the claim, and the files that it starts from, copied to its scratch folder."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from server.config.run import RunConfig
from server.kit.errors import StorageRefused, StorageUnavailable
from server.kit.listening import GatewaySettings
from server.kit.settings import WorkerSettings
from server.kit.validation import in_words
from server.lifecycle.attempts.repository import AttemptLedger
from server.lifecycle.claims.claim import Claim
from worker.host.supervisor.attempt_log import NAME as LOG_NAME
from worker.host.supervisor.transfers import RETRY_SECONDS, ArtifactTransfer
from worker.trainer.messages import Job
from worker.trainer.restore import CheckpointUnusable, fetch, fetch_demonstrations


class ConfigUnreadable(Exception):
    """This release cannot read the stored configuration of a run: a newer api has stored it."""

    def __init__(self, error: ValidationError) -> None:
        mistakes = "; ".join(f"{'.'.join(map(str, one['loc']))}: {in_words(one)}" for one in error.errors())
        super().__init__(
            f"this worker cannot read the run's configuration ({mistakes}): its release is older than that of the api "
            "that stored it; upgrade the worker"
        )


class NoGoodCheckpoint(Exception):
    """A run has checkpoints, and none of them can be restored."""

    def __init__(self, damaged: Sequence[str]) -> None:
        found = f" ({'; '.join(damaged)})" if damaged else ""
        super().__init__(
            f"none of the run's checkpoints can be restored{found}; bring their files back into the artifact store, "
            "let `ludus checkpoint verify RUN` look at them, and begin a run with `resume_from`"
        )


def configuration(claim: Claim) -> RunConfig:
    """Return the configuration of the claimed run. Raises ConfigUnreadable."""
    try:
        return RunConfig.model_validate(claim.config)
    except ValidationError as error:
        raise ConfigUnreadable(error) from error


def prepare(
    claim: Claim,
    config: RunConfig,
    ledger: AttemptLedger,
    transfer: ArtifactTransfer,
    settings: WorkerSettings,
    scratch: Path,
    gateway: GatewaySettings,
) -> Job:
    """Return an attempt's job, with its files in the folder `scratch`.

    Raises NoGoodCheckpoint, CheckpointUnusable, DemonstrationUnusable, Unwanted, the errors of the artifact store, and
    LeaseLost.
    """
    files: dict[str, Any] = {} if gateway.tls is None else gateway.tls.named()
    key = gateway.ticket_key
    recorded = ledger.demonstrations()
    demonstrations = scratch / "demonstrations"
    return Job(
        run_id=claim.run_id,
        attempt=claim.attempt,
        config=config,
        amendments=list(claim.amendments),
        seed=claim.seed,
        resume_from=_newest_good(claim, ledger, transfer, scratch / "resume"),
        scratch=str(scratch),
        log_path=str(scratch / LOG_NAME),
        **settings.model_dump(include={"collectors", "bind_host", "advertise_host", "port_range", "lease_seconds"}),
        **files,
        ticket_key=None if key is None else key.get_secret_value().encode().hex(),
        demonstrations=transfer.fetch(partial(fetch_demonstrations, transfer.store, recorded, demonstrations)),
        demonstration_labels={demonstration.id: demonstration.label for demonstration in recorded},
        checkpoints=_initial_checkpoints(ledger, transfer, scratch / "initial"),
        policies=ledger.assessment.policies(config),
        assessed=ledger.assessment.state(),
    )


def _initial_checkpoints(ledger: AttemptLedger, transfer: ArtifactTransfer, folder: Path) -> dict[str, str]:
    """Fetch the checkpoints that the configuration names; return the folder of each, by its id.

    Raises CheckpointUnusable, once the checkpoint is marked as damaged: no other configuration is to name it.
    """
    folders = {}
    for checkpoint in ledger.initial_checkpoints():
        try:
            fetched = transfer.fetch(partial(fetch, transfer.store, checkpoint, folder / checkpoint.id))
        except CheckpointUnusable as error:
            ledger.checkpoints.mark_initial_damaged(checkpoint.id, str(error))
            message = f"the configuration names checkpoint {checkpoint.id}, which is damaged: {error}; name another one"
            raise CheckpointUnusable(message) from error
        folders[checkpoint.id] = str(fetched)
    return folders


def _newest_good(claim: Claim, ledger: AttemptLedger, transfer: ArtifactTransfer, folder: Path) -> str | None:
    """Fetch the newest checkpoint that is good; return its folder, or None where the run has never had one.

    A checkpoint that the store does not let this process read counts as damaged if the store hands out another one. If
    it hands out none, the store is at fault, and no checkpoint is marked. Raises NoGoodCheckpoint (a new beginning
    would discard checkpoints that were acknowledged), StorageRefused, StorageUnavailable.
    """
    checkpoint, damaged = claim.resume, dict[str, str]()
    refusal: StorageRefused | StorageUnavailable | None = None
    fetched = None
    while checkpoint is not None and fetched is None:
        timeout = RETRY_SECONDS if refusal is None else 0.0
        try:
            fetched = transfer.fetch(partial(fetch, transfer.store, checkpoint, folder), timeout)
        except CheckpointUnusable as error:
            damaged[checkpoint.id] = str(error)
        except (StorageRefused, StorageUnavailable) as error:
            refusal = refusal or error
            damaged[checkpoint.id] = error.detail
        if fetched is None:
            checkpoint = ledger.checkpoints.next_best(without=damaged)
    if fetched is None and refusal is not None:
        raise refusal
    for each, why in damaged.items():
        ledger.checkpoints.resume_instead(each, why)
    if fetched is None and (damaged or ledger.checkpoints.exist()):
        raise NoGoodCheckpoint([f"{each}: {why}" for each, why in damaged.items()])
    return None if fetched is None else str(fetched)
