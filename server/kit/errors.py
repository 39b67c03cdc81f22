"""Errors with a cause that a caller can understand: one tree, without HTTP or gRPC.

The direct children of `LudusError` are the branches. Each has the `kind` that the HTTP and gRPC edges map to their
statuses. A leaf declares its stable `code`, its attributes, and the sentence that is built from them: what happened,
then what to do. Packages add their own leaves beside their code (for instance `server.kit.http.errors`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import ClassVar, Literal, dataclass_transform

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


@dataclass_transform(eq_default=False, field_specifiers=(field,))
class LudusError(Exception):
    """Parent of all errors that are answers rather than defects. Subclasses are dataclasses."""

    kind: ClassVar[ErrorKind]
    code: ClassVar[str]
    sentence: ClassVar[str]
    """The message, with the names of attributes in braces. Leaves that compute it define `_sentence` instead."""
    details: ClassVar[Sequence[str]] = ()
    """The attributes that programs read, too."""

    def __init_subclass__(cls, *, code: str | None = None) -> None:
        super().__init_subclass__()
        if code is not None:
            cls.code = code
        dataclass(eq=False, repr=False)(cls)

    @property
    def message(self) -> str:
        """The cause, then the remedy."""
        return self._sentence()

    def __str__(self) -> str:
        return self.message

    def _sentence(self) -> str:
        return self.sentence.format_map(vars(self))


class NotFound(LudusError, code="not_found"):
    """The requested object does not exist."""

    kind = ErrorKind.NOT_FOUND


class RunNotFound(NotFound, code="run_not_found"):
    """No run has this id or name."""

    run: str
    named: str | None = field(default=None, kw_only=True)
    """Id of the run with this name, where only an id is accepted."""

    def _sentence(self) -> str:
        if self.named is None:
            return f"There is no run with the id or name {self.run!r}. List the runs to see what there is."
        return (
            f"No run has the id {self.run!r}; it is the name of run {self.named}. Only an id is accepted here, since a "
            "name would stand for the next older run afterwards."
        )


class AssessmentNotFound(NotFound, code="assessment_not_found"):
    """The run evaluates no policies, or has no result yet."""

    run_id: str
    sentence = "Run {run_id} has no result: it is no `match` or `evaluate` run, or no game has been counted yet."


class ConfigNotFound(NotFound, code="config_not_found"):
    """No stored configuration has this name, or it has no such version."""

    name: str
    version: int | None = None

    def _sentence(self) -> str:
        which = f"{self.name!r}" if self.version is None else f"{self.name!r} in version {self.version}"
        return f"There is no stored configuration {which}. List the configurations to see what there is."


class CheckpointNotFound(NotFound, code="checkpoint_not_found"):
    """The run has no such checkpoint, or none was uploaded under this id."""

    checkpoint_id: str
    hint: str = "List the checkpoints to see what there is."
    sentence = "There is no checkpoint {checkpoint_id!r}. {hint}"


class ArtifactNotFound(NotFound, code="artifact_not_found"):
    """The artifact store has no such file."""

    path: str
    hint: str = "It may have been removed by retention."
    sentence = "The artifact store has no file {path!r}. {hint}"


class LogNotFound(NotFound, code="log_not_found"):
    """The attempt has no such log."""

    run_id: str
    attempt: int
    name: str
    sentence = "Attempt {attempt} of run {run_id} has no log {name!r}. List the run's logs to see what there is."


class WorkerNotFound(NotFound, code="worker_not_found"):
    """No worker has this id, or is on a host of this name."""

    worker_id: str
    sentence = "There is no worker {worker_id!r}, and no host of this name. List the workers to see what there is."


class Gone(LudusError, code="gone"):
    """The object existed and was removed for good."""

    kind = ErrorKind.GONE


class CheckpointDeleted(Gone, code="checkpoint_deleted"):
    """Retention has removed the files of this checkpoint."""

    checkpoint_id: str
    sentence = (
        "The files of checkpoint {checkpoint_id} were removed by retention. Use a newer checkpoint, or raise "
        "keep_checkpoints in later runs."
    )


class Conflict(LudusError, code="conflict"):
    """The request contradicts the present state."""

    kind = ErrorKind.CONFLICT


class IllegalTransition(Conflict, code="illegal_transition"):
    """A run cannot move from its state to the requested one."""

    run_id: str
    from_: str
    to: str

    def _sentence(self) -> str:
        moves = "already" if self.from_ == self.to else f"and cannot become {self.to}"
        if self.from_ not in TERMINAL:
            return f"Run {self.run_id} is {self.from_} {moves}. Read the run again and decide again."
        return (
            f"Run {self.run_id} is {self.from_} {moves}. It has ended: to continue from its end, branch off another "
            "run (`ludus run branch --continue`)."
        )


class NameAmbiguous(Conflict, code="name_ambiguous"):
    """The request concerns all projects, and several of them have an object of this name."""

    kind_of_object: str
    name: str
    found: Mapping[str, str | None]
    """The ids of the objects, by project; None: they have only names."""

    def _sentence(self) -> str:
        objects = sorted(self.found.items())
        where = ", ".join(project if id_ is None else f"{project} ({id_})" for project, id_ in objects)
        or_id = "" if None in self.found.values() else ", or use the id"
        return (
            f"Several projects have a {self.kind_of_object} named {self.name!r}: {where}. Name the project "
            f"(`--project NAME`, header `Ludus-Project`){or_id}."
        )


class LeaseLost(Conflict, code="lease_lost"):
    """A write came from an attempt that no longer holds its run: it was ended, or a newer attempt has begun."""

    run_id: str
    attempt: int
    why: str | None = None

    def _sentence(self) -> str:
        return self.why or (
            f"Attempt {self.attempt} no longer holds run {self.run_id}; nothing was written. Stop its trainer: the run "
            "was ended, or another worker continues it."
        )


class RunEnded(Conflict, code="run_ended"):
    """A run that has ended was to be changed, paused, resumed, saved or profiled."""

    run_id: str
    state: str
    hint: str = ""
    details = ("run_id", "state")
    sentence = (
        "Run {run_id} is {state}: it has ended, and nothing in it can be changed any more. Branch off another run that "
        "has what you want "
        "(`ludus run branch --set`, with --continue to go on where this one ended){hint}."
    )


class Invalid(LudusError, code="invalid"):
    """The input is wrong in itself."""

    kind = ErrorKind.INVALID


@dataclass(frozen=True, slots=True)
class Problem:
    """One mistake in a document."""

    path: str
    """Its place, as dotted keys: `behaviors.CartPole.hyperparameters.batch_size`. Empty for the whole document."""
    code: str
    """The kind of the problem, from `ludus.config.problems.CODES`."""
    message: str
    """The mistake and its correction."""
    line: int | None = None
    """Of its place in the document's text, from 1; None where there is no text (`server.config.document`)."""
    column: int | None = None
    """Likewise."""

    def __str__(self) -> str:
        place = "" if self.line is None else f"line {self.line}, column {self.column}: "
        return place + (f"{self.path}: {self.message}" if self.path else self.message)


class ProblemList(Invalid):
    """Parent of the errors that list all mistakes of a document."""

    problems: Sequence[Problem]

    def __post_init__(self) -> None:
        assert self.problems, "there is at least one problem"
        self.problems = tuple(self.problems)

    def _sentence(self) -> str:
        return "\n".join(map(str, self.problems))


class InvalidConfig(ProblemList, code="invalid_config"):
    """A configuration has mistakes."""


class InvalidEdit(ProblemList, code="invalid_edit"):
    """Changes of a run name what it does not have or cannot be changed."""


class InvalidArtifactPath(Invalid, code="invalid_artifact_path"):
    """A path would leave the artifact store, or is not a plain relative path."""

    path: str
    sentence = (
        "{path!r} is not a path inside the artifact store. Use printable names without a leading dot or a backslash, "
        "joined by '/'."
    )


class InvalidQuery(Invalid, code="invalid_query"):
    """A query has no such field or order, or the field cannot have such a value."""

    name: str
    detail: str
    sentence = "The query cannot use {name!r}: {detail}."


class TooManyTags(Invalid, code="too_many_tags"):
    """A run would have more tags than it may."""

    run_id: str
    count: int
    limit: int
    sentence = "Run {run_id} would have {count} tags; {limit} are allowed. Remove some first."


class Unauthenticated(LudusError, code="unauthenticated"):
    """The request has no valid credentials."""

    kind = ErrorKind.UNAUTHENTICATED


class TokenRefused(Unauthenticated, code="token_refused"):
    """A token is not valid: it is unknown, expired or revoked."""

    reason: Literal["unknown", "expired", "revoked"]

    def _sentence(self) -> str:
        state = {"unknown": "is not known here", "expired": "has expired", "revoked": "was revoked"}[self.reason]
        return f"The token {state}. Ask an administrator of your project for another one."


class Forbidden(LudusError, code="forbidden"):
    """The caller may not do this."""

    kind = ErrorKind.FORBIDDEN


class ProjectForbidden(Forbidden, code="project_forbidden"):
    """The token is bound to another project."""

    project: str
    bound: str
    sentence = (
        "The token is bound to project {bound!r} and cannot act in {project!r}. Leave the project out, or use a token "
        "of that project."
    )


class ScopeMissing(Forbidden, code="scope_missing"):
    """The token does not have the scope that the request needs."""

    scope: str
    everywhere: bool = field(default=False, kw_only=True)

    def _sentence(self) -> str:
        where = " in all projects (`*`)" if self.everywhere else ""
        return f"This needs a token with the scope {str(self.scope)!r}{where}. Ask an administrator for one."


class Exhausted(LudusError, code="exhausted"):
    """A limit is reached."""

    kind = ErrorKind.EXHAUSTED


class StorageFull(Exhausted, code="storage_full"):
    """The artifact store has no space left."""

    path: str
    needed: int | None = None

    def _sentence(self) -> str:
        size = "" if self.needed is None else f" ({self.needed} bytes)"
        return (
            f"No space is left to write {self.path}{size}; nothing was published and older files are untouched. Free "
            "space on the artifact store, or lower keep_checkpoints."
        )


class Unavailable(LudusError, code="unavailable"):
    """A service that is needed does not answer at the moment; trying again later can help."""

    kind = ErrorKind.UNAVAILABLE


class DatabaseUnavailable(Unavailable, code="database_unavailable"):
    """The database does not answer, or stayed locked for too long."""

    detail: str
    sentence = "The database does not answer: {detail}. Nothing was written; try again."


class BrokerUnavailable(Unavailable, code="broker_unavailable"):
    """The broker that wakes the workers does not answer."""

    detail: str
    sentence = "The broker does not answer: {detail}. Runs are kept; workers are woken later."


class StorageUnavailable(Unavailable, code="storage_unavailable"):
    """The artifact store does not answer, or fails."""

    detail: str
    of_one_file: bool = field(default=False, kw_only=True)
    """Whether the error is about one file, like a bad sector, so that others may be read."""
    sentence = "The artifact store does not answer: {detail}. Try again; nothing half written is shown."


class StorageRefused(Unavailable, code="storage_refused"):
    """The artifact store refuses a request; an operator has to settle it."""

    detail: str
    remedy: str
    of_one_file: bool = field(default=False, kw_only=True)
    """Whether the error is about one file, like a missing right to read it, so that others may be read."""
    sentence = "The artifact store refuses: {detail}. To mend it, {remedy}."


class SchemaOutdated(Unavailable, code="schema_outdated"):
    """The database's schema is not the one that this release needs."""

    found: str | None
    needed: str

    def _sentence(self) -> str:
        found = self.found or "nothing"
        return f"The database's schema is at {found}, this release needs {self.needed}. Run `ludus migrate`."
