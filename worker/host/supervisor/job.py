"""The job of a trainer: the claim, and the files that it starts from, copied to its scratch folder."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from ludus.config.run import RunConfig
from ludus.config.trainer import ReinforcementConfig
from ludus.validation import in_words
from server.checkpoints.refs import CheckpointRef
from server.kit.errors import StorageRefused, StorageUnavailable
from server.kit.listening import GatewaySettings
from server.kit.settings import WorkerSettings
from server.lifecycle.attempts import AttemptLedger
from server.lifecycle.claims.repository import Claim
from worker.host.supervisor.logs import NAME as LOG_NAME
from worker.host.supervisor.transfers import (
    RETRY_SECONDS,
    ArtifactTransfer,
    CheckpointUnusable,
    fetch,
    fetch_demonstrations,
)
from worker.trainer.messages import Job


class ConfigUnreadable(Exception):
    """This release cannot read the stored configuration of a run: a newer api has stored it."""

    def __init__(self, error: ValidationError) -> None:
        mistakes = "; ".join(f"{'.'.join(map(str, mistake['loc']))}: {in_words(mistake)}" for mistake in error.errors())
        super().__init__(
            f"this worker cannot read the run's configuration ({mistakes}): its release is older than that of the api "
            "that stored it; upgrade the worker"
        )


class NoGoodCheckpoint(Exception):
    """A run has checkpoints, and none of them can be restored."""

    def __init__(self, damaged: Sequence[str]) -> None:
        reasons = f" ({'; '.join(damaged)})" if damaged else ""
        super().__init__(
            f"none of the run's checkpoints can be restored{reasons}; bring their files back into the artifact store, "
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
    resumed = _fetch_newest_good(claim, ledger, transfer, scratch / "resume")
    initial = _initial_checkpoints(ledger, transfer, scratch / "initial", config, resumed)
    return Job(
        run_id=claim.run_id,
        attempt=claim.attempt,
        config=config,
        amendments=list(claim.amendments),
        seed=claim.seed,
        resume_from=None if resumed is None else str(scratch / "resume"),
        scratch=str(scratch),
        log_path=str(scratch / LOG_NAME),
        **settings.model_dump(include=Job.model_fields.keys() & WorkerSettings.model_fields.keys() - {"scratch"}),
        websocket_origins=None if gateway.websocket_port == "off" else gateway.origins,
        **files,
        ticket_key=None if key is None else key.get_secret_value().encode().hex(),
        demonstrations=transfer.fetch(partial(fetch_demonstrations, transfer.store, recorded, demonstrations)),
        demonstration_labels={demonstration.id: demonstration.label for demonstration in recorded},
        checkpoints=initial,
        policies=ledger.assessment.policies(config),
        assessed=ledger.assessment.state(),
    )


def _initial_checkpoints(
    ledger: AttemptLedger,
    transfer: ArtifactTransfer,
    folder: Path,
    config: RunConfig,
    resumed: CheckpointRef | None,
) -> dict[str, str]:
    """Fetch the checkpoints that the configuration names, but those that only begin what `resumed` continues.

    Return the folder of each, by its id. Raises CheckpointUnusable, once the checkpoint is marked as damaged: no other
    configuration is to name it.
    """
    replaced: set[tuple[str | int, ...]] = set()
    if resumed is not None:
        replaced = {
            ("behaviors", behavior, "initialize_from")
            for behavior in resumed.steps
            if not _is_exploiter(config, behavior)  # which is reset to it
        }
        replaced.add(("checkpoint_settings", "resume_from"))
    needed = {checkpoint for path, checkpoint in config.initial_checkpoints().items() if path not in replaced}
    folders = {}
    for checkpoint in ledger.initial_checkpoints():
        if checkpoint.id not in needed:
            continue
        try:
            fetched = transfer.fetch(partial(fetch, transfer.store, checkpoint, folder / checkpoint.id))
        except CheckpointUnusable as error:
            ledger.checkpoints.mark_initial_damaged(checkpoint.id, str(error))
            message = f"the configuration names checkpoint {checkpoint.id}, which is damaged: {error}; name another one"
            raise CheckpointUnusable(message) from error
        folders[checkpoint.id] = str(fetched)
    return folders


def _is_exploiter(config: RunConfig, behavior: str) -> bool:
    section = config.behavior(behavior)
    self_play = section.self_play if isinstance(section, ReinforcementConfig) else None
    return self_play is not None and self_play.exploiter is not None


def _fetch_newest_good(
    claim: Claim, ledger: AttemptLedger, transfer: ArtifactTransfer, folder: Path
) -> CheckpointRef | None:
    """Fetch the newest checkpoint that is good into `folder`; return it, or None where the run has never had one.

    A checkpoint with a file that this process cannot read counts as damaged if an older one can be read, the file then
    fails again, and the older one can still be read. Otherwise the store is at fault, as it is with every error that is
    not about one file, and no checkpoint is marked. Raises NoGoodCheckpoint (a new beginning would discard checkpoints
    that were acknowledged), StorageRefused, StorageUnavailable.
    """
    damaged: dict[str, str] = {}
    fetched, unreadable = _fetch_newest_readable(claim.resume, damaged, ledger, transfer, folder, RETRY_SECONDS)
    if fetched is not None and unreadable:  # the store may have come back between the two
        newest = ledger.checkpoints.next_best(without=damaged)
        fetched, unreadable = _fetch_newest_readable(newest, damaged, ledger, transfer, folder, 0.0)
    if fetched is None and unreadable:
        raise next(iter(unreadable.values()))
    damaged |= {checkpoint_id: error.detail for checkpoint_id, error in unreadable.items()}
    if damaged:
        ledger.checkpoints.resume_instead(damaged)
    if fetched is None and (damaged or ledger.checkpoints.exist()):
        raise NoGoodCheckpoint([f"{checkpoint_id}: {damage}" for checkpoint_id, damage in damaged.items()])
    return fetched


def _fetch_newest_readable(
    newest: CheckpointRef | None,
    damaged: dict[str, str],
    ledger: AttemptLedger,
    transfer: ArtifactTransfer,
    folder: Path,
    timeout: float,
) -> tuple[CheckpointRef | None, dict[str, StorageRefused | StorageUnavailable]]:
    """Fetch the newest checkpoint that can be fetched; return it, and the newer ones with a file that can't be read.

    Adds those that are damaged to `damaged`. Only the first error of the store is waited out, for `timeout` seconds.
    """
    checkpoint, unreadable = newest, dict[str, StorageRefused | StorageUnavailable]()
    while checkpoint is not None:
        try:
            transfer.fetch(partial(fetch, transfer.store, checkpoint, folder), 0.0 if unreadable else timeout)
        except CheckpointUnusable as error:
            damaged[checkpoint.id] = str(error)
        except (StorageRefused, StorageUnavailable) as error:
            if not error.of_one_file:
                raise
            unreadable[checkpoint.id] = error
        else:
            break
        checkpoint = ledger.checkpoints.next_best(without={*damaged, *unreadable})
    return checkpoint, unreadable
