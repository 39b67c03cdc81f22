"""Events of a run: page by page, or as a stream until the run's end; and the stream of all runs of a project."""

from typing import Annotated

from fastapi import APIRouter, Depends, Header, Query, Response

from ludus import schemas
from server.kit.db.database import Database
from server.kit.errors import RunNotFound
from server.kit.http.auth import AuthDep, AuthenticatedRequest
from server.kit.http.errors import PageTokenInvalid, Responses, TooManyStreams, problems
from server.kit.http.event_stream import MEDIA_TYPE
from server.kit.http.listing import ListPage, PagingDep, next_token
from server.kit.http.parameters import RunKey
from server.kit.http.resources import list_of, resource
from server.kit.http.services import DatabaseDep, shared
from server.kit.states import TERMINAL
from server.runs.events.repository import EventRepository
from server.runs.events.streams import EventStreams
from server.runs.repository import RunRepository

router = APIRouter(prefix="/v1/runs/{run:name}", tags=["events"])
of_project = APIRouter(prefix="/v1", tags=["events"])

StreamsDep = Annotated[EventStreams, Depends(shared(EventStreams))]

MAX_SEQ = 2**31 - 1
MAX_POSITION = 2**53

AfterSeq = Annotated[int, Query(ge=0, le=MAX_SEQ, description="Only events after this one.")]
LastEventId = Annotated[
    int | None,
    Header(ge=0, le=MAX_SEQ, description="As browsers send it when they reconnect; goes before `after_seq`."),
]
Position = Annotated[
    int | None,
    Header(
        alias="Last-Event-ID",
        ge=0,
        le=MAX_POSITION,
        description="The `id` of the last message of an earlier stream, as browsers send it when they reconnect.",
    ),
]


def _messages(ids: str, kinds: list[str], data: str) -> dict[str, object]:
    """Describe the messages of a stream."""
    properties = {
        "id": {"type": "string", "description": ids},
        "event": {"enum": kinds},
        "data": {"type": "string", "contentMediaType": "application/json", "description": data},
    }
    return {MEDIA_TYPE: {"schema": {"type": "object", "description": "One message.", "properties": properties}}}


MESSAGES = _messages("The event's `seq`.", ["message", "end", "error"], "An `Event`.")
STREAM: Responses = {
    200: {
        "description": "Messages with the event's `seq` as id and its JSON as data; comments when nothing happens; a "
        "message `end` after the last event of a run that has ended; a message `error` with a problem where the token "
        "holds no longer.",
        "content": MESSAGES,
    },
    204: {"description": "The run has ended and there is no event after this one: don't reconnect."},
}
PROJECT_STREAM: Responses = {
    200: {
        "description": "Messages with a `ProjectEvent` as data; comments when nothing happens; a message `reset` where "
        "events are missing; a message `error` with a problem where the token holds no longer.",
        "content": _messages("A position in time.", ["message", "reset", "error"], "A `ProjectEvent`."),
    },
}


@router.get(
    "/events",
    response_model=list_of("EventPage", schemas.Event, "events", ListPage),
    responses={204: STREAM[204], **problems(RunNotFound, PageTokenInvalid, TooManyStreams)},
    openapi_extra={"responses": {"200": {"content": MESSAGES}}},
)
def list_events(
    run: RunKey,
    database: DatabaseDep,
    streams: StreamsDep,
    auth: AuthDep,
    paging: PagingDep,
    after_seq: AfterSeq = 0,
    accept: Annotated[str, Header(include_in_schema=False)] = "",
    last_event_id: LastEventId = None,
) -> dict[str, object] | Response:
    """Return a run's events, oldest first; with `Accept: text/event-stream` the same as `/events:stream`."""
    if MEDIA_TYPE in accept:
        return _stream(database, streams, auth, run, after_seq if last_event_id is None else last_event_id)
    with database.read() as session:
        run_id = RunRepository(session).id_of(run)
        page = EventRepository(session).page(run_id, max(after_seq, paging.after("events")), paging.size + 1)
    events = [resource(schemas.Event, event) for event in page[: paging.size]]
    return {"events": events, "next_page_token": next_token("events", events[-1].seq if page[paging.size :] else None)}


@router.get(
    "/events:stream",
    response_class=Response,
    status_code=200,
    responses={**STREAM, **problems(RunNotFound, TooManyStreams)},
)
def stream_events(
    run: RunKey,
    database: DatabaseDep,
    streams: StreamsDep,
    auth: AuthDep,
    after_seq: AfterSeq = 0,
    last_event_id: LastEventId = None,
) -> Response:
    """Stream a run's events as they happen (server-sent events), from the one after `Last-Event-ID`."""
    return _stream(database, streams, auth, run, after_seq if last_event_id is None else last_event_id)


@of_project.get(
    "/events:stream", response_class=Response, status_code=200, responses={**PROJECT_STREAM, **problems(TooManyStreams)}
)
def stream_project_events(streams: StreamsDep, auth: AuthDep, last_event_id: Position = None) -> Response:
    """Stream the events of all runs of the project as they happen (server-sent events), from now on.

    With `Last-Event-ID` it begins with what has happened since that message, of which some may come a second time:
    drop what you have by `run_id` and `seq`. The order of a run's events is that of their `seq`; the order between runs
    is not defined. After `reset` (too much happened meanwhile) events are missing: read your lists again, then go on
    reading the stream.
    """
    return streams.of_project(auth.project, last_event_id, auth.principal.credential_id)


def _stream(database: Database, streams: EventStreams, auth: AuthenticatedRequest, run: str, after: int) -> Response:
    with database.read() as session:
        run_id = RunRepository(session).id_of(run)
        head = EventRepository(session).heads([run_id])[run_id]
    if head.state in TERMINAL and head.seq <= after:
        return Response(status_code=204)
    return streams.of_run(run_id, after, auth.principal.credential_id)
