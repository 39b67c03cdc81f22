"""Everything that can go wrong for a reason that a caller can understand: one tree, no HTTP or gRPC in it.

    LudusError
    ├── NotFound                 kind not_found
    │   ├── RunNotFound          run_not_found
    │   ├── AliasNotFound        alias_not_found
    │   ├── AssessmentNotFound   assessment_not_found
    │   ├── ConfigNotFound       config_not_found
    │   ├── CheckpointNotFound   checkpoint_not_found
    │   ├── CheckpointRequestNotFound  checkpoint_request_not_found
    │   ├── DemonstrationNotFound  demonstration_not_found
    │   ├── ArtifactNotFound     artifact_not_found
    │   ├── LadderNotFound       ladder_not_found
    │   ├── LogNotFound          log_not_found
    │   ├── MetricNotFound       metric_not_found
    │   ├── PlayerNotFound       player_not_found
    │   ├── SimulatorNotFound    simulator_not_found
    │   ├── TokenNotFound        token_not_found
    │   └── WorkerNotFound       worker_not_found
    ├── Gone                     kind gone
    │   └── CheckpointDeleted    checkpoint_deleted
    ├── Conflict                 kind conflict
    │   ├── AliasMoved           alias_moved
    │   ├── CheckpointInUse      checkpoint_in_use
    │   ├── DemonstrationInUse   demonstration_in_use
    │   ├── IllegalTransition    illegal_transition
    │   ├── LadderExists         ladder_exists
    │   ├── LadderInUse          ladder_in_use
    │   ├── LeaseLost            lease_lost
    │   ├── NameAmbiguous        name_ambiguous
    │   ├── PlayerExists         player_exists
    │   ├── RunEnded             run_ended
    │   ├── RunEnding            run_ending
    │   ├── RunInUse             run_in_use
    │   ├── RunNotEnded          run_not_ended
    │   ├── RunNotPaused         run_not_paused
    │   └── RunNotRunning        run_not_running
    ├── Invalid                  kind invalid
    │   ├── AliasInvalid         invalid_alias
    │   ├── CheckpointInvalid    invalid_checkpoint
    │   ├── DemonstrationInvalid invalid_demonstration
    │   ├── InvalidConfig        invalid_config
    │   ├── TooManyTags          too_many_tags
    │   ├── InvalidEdit          invalid_edit
    │   ├── InvalidArtifactPath  invalid_artifact_path
    │   ├── InvalidQuery         invalid_query
    │   ├── MatchInvalid         invalid_match
    │   └── TokenForRun          invalid_run_token
    ├── Unauthenticated          kind unauthenticated
    │   └── TokenRefused         token_refused
    ├── Forbidden                kind forbidden
    │   ├── ProjectForbidden     project_forbidden
    │   └── ScopeMissing         scope_missing
    ├── Exhausted                kind exhausted
    │   └── StorageFull          storage_full
    └── Unavailable              kind unavailable
        ├── DatabaseUnavailable  database_unavailable
        ├── BrokerUnavailable    broker_unavailable
        ├── StorageUnavailable   storage_unavailable
        ├── StorageRefused       storage_refused
        └── SchemaOutdated       schema_outdated

Every leaf has a stable `code`, the `kind` that the HTTP and gRPC edges map to their statuses, and typed attributes from
which its message is built: what happened, then what to do. Areas add their own leaves beside their code (for instance
`server.kit.http.errors`) as subclasses of the branches here.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar, Literal

from server.kit.states import TERMINAL


class ErrorKind(StrEnum):
    """The reaction to an error that makes sense; the edges map it to a status."""

    NOT_FOUND = "not_found"
    GONE = "gone"
    CONFLICT = "conflict"
    INVALID = "invalid"
    UNAUTHENTICATED = "unauthenticated"
    FORBIDDEN = "forbidden"
    EXHAUSTED = "exhausted"
    UNAVAILABLE = "unavailable"


class LudusError(Exception):
    """Parent of all errors that are answers rather than defects."""

    kind: ClassVar[ErrorKind]
    code: ClassVar[str]

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message

    def __str__(self) -> str:
        return self.message


class NotFound(LudusError):
    """The requested thing does not exist."""

    kind = ErrorKind.NOT_FOUND
    code = "not_found"


class RunNotFound(NotFound):
    """No run has this id or name."""

    code = "run_not_found"

    def __init__(self, run: str, *, named: str | None = None) -> None:
        """Build the error. `named` is the id of the run of this name, where only an id is accepted."""
        super().__init__(
            f"There is no run with the id or name {run!r}. List the runs to see what there is."
            if named is None
            else f"No run has the id {run!r}; it is the name of run {named}. Only an id is accepted here, since a name "
            "would stand for the next older run afterwards."
        )
        self.run = run


class AliasNotFound(NotFound):
    """No checkpoint has this alias."""

    code = "alias_not_found"

    def __init__(self, name: str) -> None:
        super().__init__(
            f"There is no alias {name!r}. Make it with `ludus checkpoint alias set {name} RUN/latest`, or name a "
            "checkpoint by its id (ckpt_...) or as RUN/latest."
        )
        self.name = name


class AssessmentNotFound(NotFound):
    """The run judges no policies, or has not begun to."""

    code = "assessment_not_found"

    def __init__(self, run_id: str) -> None:
        super().__init__(
            f"Run {run_id} has no result: it is no `match` or `evaluate` run, or no game has been counted yet."
        )


class ConfigNotFound(NotFound):
    """No stored configuration has this name, or it has no such version."""

    code = "config_not_found"

    def __init__(self, name: str, version: int | None = None) -> None:
        which = f"{name!r}" if version is None else f"{name!r} in version {version}"
        super().__init__(f"There is no stored configuration {which}. List the configurations to see what there is.")
        self.name = name


class CheckpointNotFound(NotFound):
    """The run has no such checkpoint, or none was uploaded under this id."""

    code = "checkpoint_not_found"

    def __init__(self, checkpoint_id: str, hint: str = "List the checkpoints to see what there is.") -> None:
        super().__init__(f"There is no checkpoint {checkpoint_id!r}. {hint}")


class CheckpointRequestNotFound(NotFound):
    """The run has had no such request for a checkpoint."""

    code = "checkpoint_request_not_found"

    def __init__(self, run_id: str, seq: int) -> None:
        super().__init__(f"Run {run_id} has had no request {seq} for a checkpoint. Ask for one with `:checkpoint`.")


class DemonstrationNotFound(NotFound):
    """No demonstration has this id."""

    code = "demonstration_not_found"

    def __init__(self, demonstration_id: str) -> None:
        super().__init__(
            f"There is no demonstration {demonstration_id!r}. List the demonstrations to see what there is."
        )


class ArtifactNotFound(NotFound):
    """The artifact store has no such file."""

    code = "artifact_not_found"

    def __init__(self, path: str) -> None:
        super().__init__(f"The artifact store has no file {path!r}. It may have been removed by retention.")
        self.path = path


class LadderNotFound(NotFound):
    """No ladder has this id or name, and no run of this id or name has one."""

    code = "ladder_not_found"

    def __init__(self, ladder: str) -> None:
        super().__init__(f"There is no ladder {ladder!r}, nor a run of that name with one. List the ladders.")


class LogNotFound(NotFound):
    """The attempt has no such log."""

    code = "log_not_found"

    def __init__(self, run_id: str, attempt: int, name: str) -> None:
        super().__init__(
            f"Attempt {attempt} of run {run_id} has no log {name!r}. List the run's logs to see what there is."
        )
        self.name = name


class MetricNotFound(NotFound):
    """The run has not recorded this metric."""

    code = "metric_not_found"

    def __init__(self, run_id: str, key: str) -> None:
        super().__init__(f"Run {run_id} has no metric {key!r} (yet). The run's latest metrics name all keys.")


class PlayerNotFound(NotFound):
    """The ladder has no such player."""

    code = "player_not_found"

    def __init__(self, ladder_id: str, player: int | str) -> None:
        super().__init__(f"Ladder {ladder_id} has no player {player!r}. List its players, or register this one.")


class SimulatorNotFound(NotFound):
    """The run has had no such simulator."""

    code = "simulator_not_found"

    def __init__(self, run_id: str, session_id: str) -> None:
        super().__init__(f"Run {run_id} has had no simulator {session_id!r}. List the run's simulators.")


class TokenNotFound(NotFound):
    """No token of the project has this id."""

    code = "token_not_found"

    def __init__(self, token_id: str) -> None:
        super().__init__(f"There is no token {token_id!r}. List the tokens to see what there is.")


class WorkerNotFound(NotFound):
    """No worker has this id."""

    code = "worker_not_found"

    def __init__(self, worker_id: str) -> None:
        super().__init__(f"There is no worker {worker_id!r}. List the workers to see what there is.")


class Gone(LudusError):
    """It existed and was removed for good."""

    kind = ErrorKind.GONE
    code = "gone"


class CheckpointDeleted(Gone):
    """Retention has removed the files of this checkpoint."""

    code = "checkpoint_deleted"

    def __init__(self, checkpoint_id: str) -> None:
        super().__init__(
            f"The files of checkpoint {checkpoint_id} were removed by retention. Use a newer checkpoint, or raise "
            "keep_checkpoints in later runs."
        )


class Conflict(LudusError):
    """The request contradicts the present state."""

    kind = ErrorKind.CONFLICT
    code = "conflict"


class CheckpointInUse(Conflict):
    """An uploaded checkpoint cannot be deleted: a run that has not ended begins with it."""

    code = "checkpoint_in_use"

    def __init__(self, checkpoint_id: str, run_id: str) -> None:
        super().__init__(
            f"Checkpoint {checkpoint_id} is used by run {run_id}, which has not ended. Wait for its end, or cancel it, "
            "and delete the checkpoint then."
        )


class DemonstrationInUse(Conflict):
    """A demonstration cannot be deleted: a run that has not ended uses it."""

    code = "demonstration_in_use"

    def __init__(self, demonstration_id: str, run_id: str) -> None:
        super().__init__(
            f"Demonstration {demonstration_id} is used by run {run_id}, which has not ended. Wait for its end, or "
            "cancel it, and delete the demonstration then."
        )


class IllegalTransition(Conflict):
    """A run cannot move from its state to the one that was asked for."""

    code = "illegal_transition"

    def __init__(self, run_id: str, from_: str, to: str) -> None:
        way = "It has ended: to continue from its end, branch off another run (`ludus run branch --continue`)."
        super().__init__(
            f"Run {run_id} is {from_} {'already' if from_ == to else f'and cannot become {to}'}. "
            f"{way if from_ in TERMINAL else 'Read the run again and decide again.'}"
        )


class AliasMoved(Conflict):
    """An alias does not stand for the expected checkpoint: another request has moved it."""

    code = "alias_moved"

    def __init__(self, name: str, expected: str | None, actual: str | None) -> None:
        stands = "stands for nothing" if actual is None else f"stands for {actual}"
        super().__init__(
            f"The alias {name!r} {stands}, not for {expected or 'nothing'} as expected: it was left as it is. Compare "
            "with what it stands for now, or move it without `expected`."
        )
        self.name = name


class LadderExists(Conflict):
    """A ladder of this name was made before."""

    code = "ladder_exists"

    def __init__(self, name: str) -> None:
        super().__init__(f"There is a ladder {name!r} already. Use it, or choose another name.")
        self.name = name


class NameAmbiguous(Conflict):
    """All projects were looked at, and several of them have something of this name."""

    code = "name_ambiguous"

    def __init__(self, kind: str, name: str, found: Mapping[str, str | None]) -> None:
        where = ", ".join(project if id_ is None else f"{project} ({id_})" for project, id_ in sorted(found.items()))
        or_id = "" if None in found.values() else ", or use the id"
        super().__init__(
            f"Several projects have a {kind} named {name!r}: {where}. Name the project "
            f"(`--project NAME`, header `Ludus-Project`){or_id}."
        )
        self.name = name


class LadderInUse(Conflict):
    """A ladder cannot be deleted: a run that has not ended plays on it."""

    code = "ladder_in_use"

    def __init__(self, ladder_id: str, run_id: str) -> None:
        super().__init__(
            f"The matches of run {run_id}, which has not ended, go to ladder {ladder_id}. Wait for its end, or cancel "
            "it, and delete the ladder then."
        )


class LeaseLost(Conflict):
    """A write came from an attempt that no longer holds its run: it was ended, or a newer attempt has begun."""

    code = "lease_lost"

    def __init__(self, run_id: str, attempt: int, why: str | None = None) -> None:
        super().__init__(
            why
            or f"Attempt {attempt} no longer holds run {run_id}; nothing was written. Stop its trainer: "
            "the run was ended, or another worker continues it."
        )


class PlayerExists(Conflict):
    """The ladder has a player of this name."""

    code = "player_exists"

    def __init__(self, ladder_id: str, name: str) -> None:
        super().__init__(f"Ladder {ladder_id} has a player {name!r} already. Use it, or choose another name.")
        self.name = name


class RunEnded(Conflict):
    """Something was to be changed in a run that has ended."""

    code = "run_ended"

    def __init__(self, run_id: str, state: str, hint: str = "") -> None:
        super().__init__(
            f"Run {run_id} is {state}: nothing in it can be changed any more. Branch off another run that has what you "
            f"want (`ludus run branch --set`, with --continue to go on where this one ended){hint}."
        )
        self.state = state


class RunInUse(Conflict):
    """A run cannot be deleted: something outside it needs it; the detail names what."""

    code = "run_in_use"

    def __init__(self, run_id: str, users: Sequence[str]) -> None:
        shown = "; ".join(users[:10]) + (f"; and {len(users) - 10} more" if len(users) > 10 else "")
        super().__init__(f"Run {run_id} is needed: {shown}. Delete or change these first.")


class RunNotEnded(Conflict):
    """Something needs a run that has ended."""

    code = "run_not_ended"

    def __init__(self, run_id: str, state: str) -> None:
        super().__init__(
            f"Run {run_id} is {state}: only a run that has ended is deleted. End it first (`ludus run stop`, `cancel`)."
        )
        self.state = state


class RunEnding(Conflict):
    """A run was to be paused that is about to end."""

    code = "run_ending"

    def __init__(self, run_id: str, intent: str) -> None:
        super().__init__(
            f"Run {run_id} will not pause: a request to {intent} it came before, and it is about to end. To go on from "
            "its last checkpoint, branch off another run (`ludus run branch`)."
        )


class RunNotPaused(Conflict):
    """A run was to be resumed that is not paused."""

    code = "run_not_paused"

    def __init__(self, run_id: str, state: str, *, pausing: bool) -> None:
        what = (
            "it is about to pause; wait for PAUSED (`?wait=PAUSED`), and resume it then"
            if pausing
            else "there is nothing to resume"
        )
        super().__init__(f"Run {run_id} is {state}, not PAUSED: {what}.")
        self.state = state


class RunNotRunning(Conflict):
    """A checkpoint was asked for of a run that is not running."""

    code = "run_not_running"

    def __init__(self, run_id: str, state: str, newest: str | None) -> None:
        there = f"its newest checkpoint is {newest}" if newest else "it has no checkpoint"
        super().__init__(
            f"Run {run_id} is {state}: only a RUNNING run writes a checkpoint when it is asked to; {there}. Wait for "
            "RUNNING (`?wait=RUNNING`), or take the newest one."
        )
        self.state = state


class Invalid(LudusError):
    """The input is wrong in itself."""

    kind = ErrorKind.INVALID
    code = "invalid"


@dataclass(frozen=True, slots=True)
class Problem:
    """One mistake in a document."""

    path: str
    """Where, as dotted keys: `behaviors.CartPole.hyperparameters.batch_size`. Empty for the document as a whole."""
    code: str
    """The kind of the problem, from `server.config.problems.CODES`."""
    message: str
    """What is wrong, and what would be right."""


class CheckpointInvalid(Invalid):
    """An uploaded file is no checkpoint."""

    code = "invalid_checkpoint"

    def __init__(self, problem: str) -> None:
        super().__init__(f"The checkpoint cannot be used: {problem}.")
        self.problem = problem


class DemonstrationInvalid(Invalid):
    """A file is no demonstration, or what was asked for cannot be made of it."""

    code = "invalid_demonstration"

    def __init__(self, problem: str, name: str = "", position: int | None = None) -> None:
        where = f" {name}" if name else ""
        at = "" if position is None else f" (at byte {position})"
        super().__init__(f"The demonstration{where} cannot be used{at}: {problem}.")
        self.problem = problem


class InvalidConfig(Invalid):
    """A configuration has mistakes; all of them are listed."""

    code = "invalid_config"

    def __init__(self, problems: Sequence[Problem]) -> None:
        assert problems, "an invalid configuration has at least one problem"
        self.problems = tuple(problems)
        lines = [f"{problem.path}: {problem.message}" if problem.path else problem.message for problem in self.problems]
        super().__init__("\n".join(lines))


class InvalidEdit(Invalid):
    """Changes of a run name what it does not have or cannot be changed; all mistakes are listed."""

    code = "invalid_edit"

    def __init__(self, problems: Sequence[Problem]) -> None:
        assert problems, "an invalid edit has at least one problem"
        self.problems = tuple(problems)
        super().__init__("\n".join(f"{problem.path}: {problem.message}" for problem in self.problems))


class InvalidArtifactPath(Invalid):
    """A path would leave the artifact store, or is not a plain relative path."""

    code = "invalid_artifact_path"

    def __init__(self, path: str) -> None:
        super().__init__(
            f"{path!r} is not a path inside the artifact store. Use printable names without a leading dot or a "
            "backslash, joined by '/'."
        )
        self.path = path


class InvalidQuery(Invalid):
    """A list was asked for by a field or an order that it does not have, or by a value that the field cannot have."""

    code = "invalid_query"

    def __init__(self, field: str, detail: str) -> None:
        super().__init__(f"The list cannot be asked by {field!r}: {detail}.")


class TooManyTags(Invalid):
    """A run would have more tags than it may."""

    code = "too_many_tags"

    def __init__(self, run_id: str, count: int, limit: int) -> None:
        super().__init__(f"Run {run_id} would have {count} tags; {limit} are allowed. Remove some first.")


class AliasInvalid(Invalid):
    """A checkpoint cannot be called so."""

    code = "invalid_alias"

    def __init__(self, name: str) -> None:
        super().__init__(f"{name!r} cannot be an alias: it means a checkpoint anyway. Choose another name.")
        self.name = name


class MatchInvalid(Invalid):
    """The report is not a valid match."""

    code = "invalid_match"

    def __init__(self, problem: str) -> None:
        super().__init__(f"The match cannot be entered: {problem}.")
        self.problem = problem


class TokenForRun(Invalid):
    """A token that is bound to a run is for simulators alone."""

    code = "invalid_run_token"

    def __init__(self) -> None:
        super().__init__(
            "A token that is bound to a run has the scope `simulate` alone, and belongs to the run's project. Leave "
            "out the run, or the other scopes."
        )


class Unauthenticated(LudusError):
    """The caller did not say who it is, or wrongly."""

    kind = ErrorKind.UNAUTHENTICATED
    code = "unauthenticated"


class TokenRefused(Unauthenticated):
    """A token is not valid: it is unknown, expired or revoked."""

    code = "token_refused"

    def __init__(self, reason: Literal["unknown", "expired", "revoked"]) -> None:
        what = {"unknown": "is not known here", "expired": "has expired", "revoked": "was revoked"}[reason]
        super().__init__(f"The token {what}. Ask an administrator of your project for another one.")
        self.reason = reason


class Forbidden(LudusError):
    """The caller may not do this."""

    kind = ErrorKind.FORBIDDEN
    code = "forbidden"


class ProjectForbidden(Forbidden):
    """The token is bound to another project."""

    code = "project_forbidden"

    def __init__(self, project: str, bound: str) -> None:
        super().__init__(
            f"The token is bound to project {bound!r} and cannot act in {project!r}. Leave the project out, or use a "
            "token of that project."
        )


class ScopeMissing(Forbidden):
    """The token is not for this."""

    code = "scope_missing"

    def __init__(self, scope: str, *, everywhere: bool = False) -> None:
        where = " in all projects (`*`)" if everywhere else ""
        super().__init__(f"This needs a token with the scope {str(scope)!r}{where}. Ask an administrator for one.")


class Exhausted(LudusError):
    """A limit is reached."""

    kind = ErrorKind.EXHAUSTED
    code = "exhausted"


class StorageFull(Exhausted):
    """The artifact store has no space left."""

    code = "storage_full"

    def __init__(self, path: str, needed: int | None = None) -> None:
        size = "" if needed is None else f" ({needed} bytes)"
        super().__init__(
            f"No space is left to write {path}{size}; nothing was published and older files are untouched. Free space "
            "on the artifact store, or lower keep_checkpoints."
        )
        self.path = path
        self.needed = needed


class Unavailable(LudusError):
    """Something that is needed does not answer at the moment; trying again later can help."""

    kind = ErrorKind.UNAVAILABLE
    code = "unavailable"


class DatabaseUnavailable(Unavailable):
    """The database does not answer, or stayed locked for too long."""

    code = "database_unavailable"

    def __init__(self, detail: str) -> None:
        super().__init__(f"The database does not answer: {detail}. Nothing was written; try again.")
        self.detail = detail


class BrokerUnavailable(Unavailable):
    """The broker that wakes the workers does not answer."""

    code = "broker_unavailable"

    def __init__(self, detail: str) -> None:
        super().__init__(f"The broker does not answer: {detail}. Runs are kept; workers are woken later.")
        self.detail = detail


class StorageUnavailable(Unavailable):
    """The artifact store does not answer, or fails."""

    code = "storage_unavailable"

    def __init__(self, detail: str) -> None:
        super().__init__(f"The artifact store does not answer: {detail}. Try again; nothing half written is shown.")
        self.detail = detail


class StorageRefused(Unavailable):
    """The artifact store refuses what it is asked for; an operator has to settle it."""

    code = "storage_refused"

    def __init__(self, detail: str, remedy: str) -> None:
        super().__init__(f"The artifact store refuses: {detail}. To mend it, {remedy}.")
        self.detail = detail


class SchemaOutdated(Unavailable):
    """The database's schema is not the one that this release needs."""

    code = "schema_outdated"

    def __init__(self, found: str | None, needed: str) -> None:
        super().__init__(
            f"The database's schema is at {found or 'nothing'}, this release needs {needed}. Run `ludus migrate`."
        )
        self.needed = needed
