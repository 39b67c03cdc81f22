"""Commands: one writing transaction per POST or PATCH, and `Idempotency-Key` (draft-ietf-httpapi-idempotency-key).

The key is stored in the same transaction as the effect, so there is never one without the other. A repetition gets the
first answer again, with `Idempotency-Replayed: true`; the same key with other content is refused (422); while the first
request is still being answered a repetition to the same process is refused (409), one to another process waits for it.
A request that failed has left nothing behind: repeating it tries again. Keys are kept for 24 hours.

The transaction is opened and committed inside the handler's own thread, not by a dependency: FastAPI would run a
dependency's two halves and the handler as three visits to the thread pool, and a request that holds SQLite's write lock
while it queues for its next visit behind others that wait for the lock ends in a standstill. The commit is thereby
before the answer by construction.
"""

import hashlib
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypedDict

from pydantic import BaseModel
from starlette.responses import JSONResponse

from server.kit.db.database import Database, Session
from server.kit.db.projects import DEFAULT
from server.kit.db.texts import JsonObject
from server.kit.errors import LudusError
from server.kit.http.bodies import declare_json
from server.kit.http.errors import (
    BodyInvalid,
    IdempotencyKeyInvalid,
    IdempotencyKeyReused,
    PreconditionFailed,
    RequestInFlight,
    Responses,
    UnsupportedMediaType,
    problems,
)
from server.kit.http.repository import IdempotencyRepository
from server.kit.http.resources import check_match, dump

COMMAND_PROBLEMS = (IdempotencyKeyInvalid, IdempotencyKeyReused, RequestInFlight)
"""The problems of any command."""
BODY_PROBLEMS = (UnsupportedMediaType, BodyInvalid, *COMMAND_PROBLEMS)
"""The problems of a command with a body."""

REPLAYED = "Idempotency-Replayed"
_KEY = re.compile(r"[\x21-\x7e]([\x20-\x7e]{0,253}[\x21-\x7e])?")


@dataclass(frozen=True)
class Answer:
    """The answer of a command."""

    status: int
    body: object
    """A resource of `ludus.schemas`."""
    location: str | None = None
    """Path of what was created."""
    secret: str | None = None
    """Field of the body that is sent once: it is not stored with the key, and a repetition has null in its place."""


class InFlight:
    """The keys of requests that this process is answering."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._keys: set[tuple[str, str]] = set()

    @contextmanager
    def hold(self, scope: str, key: str) -> Iterator[None]:
        """Hold a key for the length of a request. Raises RequestInFlight if it is held already."""
        with self._lock:
            if (scope, key) in self._keys:
                raise RequestInFlight(key)
            self._keys.add((scope, key))
        try:
            yield
        finally:
            with self._lock:
                self._keys.discard((scope, key))


class Command:
    """One POST or PATCH: runs its effect once."""

    def __init__(
        self, database: Database, in_flight: InFlight, *, scope: str, key: str | None, fingerprint: str
    ) -> None:
        """`scope` is that of `key_scope`; `key` the request's, if it has one; `fingerprint` its content's."""
        self._database = database
        self._in_flight = in_flight
        self._scope = scope
        self._key = key
        self._fingerprint = fingerprint
        self.if_match: str | None = None
        """ETags of the resource that is to be changed; None: whatever it is."""

    def run(self, effect: Callable[[Session], Answer]) -> JSONResponse:
        """Run `effect` in one transaction and answer, or answer again what the first request with this key got."""
        if self._key is None:
            with self._database.write() as session:
                answer = effect(session)
            return _respond(answer.status, dump(answer.body), answer.location)
        scope, key = self._scope, self._key
        with self._in_flight.hold(scope, key), self._database.write() as session:
            keys = IdempotencyRepository(session)
            first = keys.claim(scope, key, self._fingerprint)
            if first is not None:
                if first.fingerprint != self._fingerprint:
                    raise IdempotencyKeyReused(key)
                assert first.status is not None
                assert first.response is not None
                response = _respond(first.status, first.response["body"], first.response["location"])
                response.headers[REPLAYED] = "true"
                return response
            answer = effect(session)
            body = dump(answer.body)
            stored = body if answer.secret is None else {**body, answer.secret: None}
            keys.answer(scope, key, answer.status, {"body": stored, "location": answer.location})
        return _respond(answer.status, body, answer.location)

    def expects(self, present: Callable[[], object]) -> None:
        """Compare the locked resource with the request's `If-Match`, if it has one. Raises PreconditionFailed."""
        if self.if_match is not None:
            check_match(self.if_match, present())

    def preview(self, body: object) -> JSONResponse:
        """Answer what the command would do. Nothing is written, and the key is not used up."""
        return _respond(200, dump(body), None)


class JsonCommand(TypedDict):
    """Parameters of the decorator of a route."""

    responses: Responses
    openapi_extra: JsonObject


def json_command(model: type[BaseModel], *classes: type[LudusError], required: bool = True) -> JsonCommand:
    """Declare a command whose body is JSON: its model, and its problems besides those of any such command."""
    return {
        "responses": problems(*classes, *BODY_PROBLEMS),
        "openapi_extra": declare_json(model, required=required),
    }


def merge_patch(model: type[BaseModel], *classes: type[LudusError]) -> JsonCommand:
    """Declare a command that changes a resource: a merge patch (RFC 7396), also as plain JSON, and its problems."""
    command = json_command(model, PreconditionFailed, *classes)
    content = command["openapi_extra"]["requestBody"]["content"]
    content["application/merge-patch+json"] = content["application/json"]
    return command


def key_scope(project: str, method: str, path: str) -> str:
    """Return what a key belongs to: a project, a method and a path. Answers are never shared between projects."""
    return f"{'' if project == DEFAULT else project + ' '}{method} {path}"[:200]


def read_key(header: str | None) -> str | None:
    """Read the header: a structured-field string (quoted), or the bare text. Raises IdempotencyKeyInvalid."""
    if header is None:
        return None
    quoted = len(header) >= 2 and header[0] == header[-1] == '"'
    key = re.sub(r"\\(.)", r"\1", header[1:-1]) if quoted else header
    if not _KEY.fullmatch(key):
        raise IdempotencyKeyInvalid
    return key


def fingerprint_of(*parts: bytes) -> str:
    """Return the SHA-256 of a request's content."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(len(part).to_bytes(8, "big"))
        digest.update(part)
    return digest.hexdigest()


def _respond(status: int, body: object, location: str | None) -> JSONResponse:
    return JSONResponse(body, status, headers={} if location is None else {"Location": location})
