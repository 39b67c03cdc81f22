"""The job that a trainer gets: what the claim says, and all that it begins with, brought to its scratch folder."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path

from pydantic import ValidationError

from ludus.protocol.server_tls import TlsFiles
from server.config.config import RunConfig
from server.kit.settings import WorkerSettings
from server.runs.amendments.refs import AmendmentRef
from server.runs.attempts.claim import Claim
from server.runs.attempts.repository import AttemptLedger
from worker.host.supervisor.copies import Copier
from worker.trainer.link import Amendment, ChangedKey, Job
from worker.trainer.restore import CheckpointUnusable, fetch, fetch_demonstrations


class ConfigUnreadable(Exception):
    """The stored configuration of a run is none for this release: a newer api has stored it."""

    def __init__(self, error: ValidationError) -> None:
        mistakes = "; ".join(f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in error.errors())
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
    ledger: AttemptLedger,
    copier: Copier,
    settings: WorkerSettings,
    scratch: Path,
    log_path: Path,
    ticket_key: bytes | None,
    tls: TlsFiles | None,
) -> Job:
    """Return an attempt's job, with its files in `scratch`.

    Raises NoGoodCheckpoint, CheckpointUnusable, DemonstrationUnusable, Unwanted, the errors of the artifact store, and
    LeaseLost.
    """
    named = {} if tls is None else tls.named()
    recorded = ledger.demonstrations()
    demonstrations = scratch / "demonstrations"
    return Job(
        run_id=claim.run_id,
        epoch=claim.epoch,
        config=dict(claim.config),
        amendments=[amendment(each) for each in claim.amendments],
        seed=claim.seed,
        resume_from=_newest_good(claim, ledger, copier, scratch / "resume"),
        scratch=str(scratch),
        log_path=str(log_path),
        collectors=settings.collectors,
        bind_host=settings.bind_host,
        advertise_host=settings.advertise_host,
        port_range=settings.port_range,
        ticket_key=None if ticket_key is None else ticket_key.hex(),
        tls_certificate=named.get("tls_certificate"),
        tls_key=named.get("tls_key"),
        tls_client_ca=named.get("tls_client_ca"),
        demonstrations=copier.fetch(partial(fetch_demonstrations, copier.store, recorded, demonstrations)),
        checkpoints=_initial(ledger, copier, scratch / "initial"),
        policies=ledger.policies(),
        assessed=ledger.assessed(),
        lease_seconds=settings.lease_seconds,
    )


def amendment(ref: AmendmentRef) -> Amendment:
    """Return an amendment as the trainer takes it."""
    return Amendment(seq=ref.seq, changes=[ChangedKey(**change) for change in ref.changes])


def _initial(ledger: AttemptLedger, copier: Copier, folder: Path) -> dict[str, str]:
    """Fetch the checkpoints that behaviors begin with; return the folder of each."""
    return {
        each.id: str(copier.fetch(partial(fetch, copier.store, each, folder / each.id)))
        for each in ledger.initial_checkpoints()
    }


def _newest_good(claim: Claim, ledger: AttemptLedger, copier: Copier, folder: Path) -> str | None:
    """Fetch the newest checkpoint that is good; return its folder, or None where the run has never had one.

    Raises NoGoodCheckpoint: to begin anew would throw away what was acknowledged, without anybody having said so.
    """
    checkpoint, damaged = claim.resume, list[str]()
    while checkpoint is not None:
        try:
            return str(copier.fetch(partial(fetch, copier.store, checkpoint, folder)))
        except CheckpointUnusable as error:
            damaged.append(f"{checkpoint.id}: {error}")
            checkpoint = ledger.resume_instead(checkpoint.id, str(error))
    if damaged or ledger.has_checkpoints():
        raise NoGoodCheckpoint(damaged)
    return None
