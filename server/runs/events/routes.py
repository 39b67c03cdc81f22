"""Events of a run: page by page, or as a stream that goes on as long as the run does."""

from typing import Annotated, Any

from fastapi import APIRouter, Header, Query, Response

from server.app.access import Visit, VisitDep
from server.app.repository import EventHeads
from server.app.services import Services, ServicesDep
from server.app.streams import MEDIA_TYPE
from server.kit.errors import RunNotFound
from server.kit.http.errors import Responses, TooManyStreams, problems
from server.kit.http.fields import RunKey
from server.runs.events.repository import EventRepository
from server.runs.events.schemas import EventPage, EventRead
from server.runs.repository import RunRepository
from server.runs.states import TERMINAL

router = APIRouter(prefix="/v1/runs/{run:name}", tags=["events"])

MAX_SEQ = 2**31 - 1
MAX_PAGE_SIZE = 1000

AfterSeq = Annotated[int, Query(ge=0, le=MAX_SEQ, description="Only events after this one.")]
LastEventId = Annotated[
    int | None,
    Header(ge=0, le=MAX_SEQ, description="As browsers send it when they reconnect; goes before `after_seq`."),
]
MESSAGES: dict[str, Any] = {
    MEDIA_TYPE: {
        "schema": {
            "type": "object",
            "description": "One message.",
            "properties": {
                "id": {"type": "string", "description": "The event's `seq`."},
                "event": {"enum": ["message", "end", "error"]},
                "data": {"type": "string", "contentMediaType": "application/json", "description": "An `EventRead`."},
            },
        }
    }
}
STREAM: Responses = {
    200: {
        "description": "Messages with the event's `seq` as id and its JSON as data; comments when nothing happens; a "
        "message `end` after the last event of a run that has ended; a message `error` with a problem where the token "
        "holds no longer.",
        "content": MESSAGES,
    },
    204: {"description": "The run has ended and there is no event after this one: don't reconnect."},
}


@router.get(
    "/events",
    response_model=EventPage,
    responses={204: STREAM[204], **problems(RunNotFound, TooManyStreams)},
    openapi_extra={"responses": {"200": {"content": MESSAGES}}},
)
def list_events(
    run: RunKey,
    services: ServicesDep,
    visit: VisitDep,
    after_seq: AfterSeq = 0,
    page_size: Annotated[int, Query(ge=0, description=f"0 = the default; at most {MAX_PAGE_SIZE}.")] = 100,
    accept: Annotated[str, Header(include_in_schema=False)] = "",
    last_event_id: LastEventId = None,
) -> EventPage | Response:
    """Return a run's events, oldest first; with `Accept: text/event-stream` the same as `/events:stream`."""
    if MEDIA_TYPE in accept:
        return _stream(services, visit, run, after_seq if last_event_id is None else last_event_id)
    limit = min(page_size or 100, MAX_PAGE_SIZE)
    with services.database.read() as session:
        run_id = RunRepository(session).id_of(run)
        found = EventRepository(session).page(run_id, after_seq, limit + 1)
    more = len(found) > limit
    events = [EventRead.model_validate(event) for event in found[:limit]]
    return EventPage(events=events, next_after_seq=events[-1].seq if more else None)


@router.get(
    "/events:stream",
    response_class=Response,
    status_code=200,
    responses={**STREAM, **problems(RunNotFound, TooManyStreams)},
)
def stream_events(
    run: RunKey, services: ServicesDep, visit: VisitDep, after_seq: AfterSeq = 0, last_event_id: LastEventId = None
) -> Response:
    """Stream a run's events as they happen (server-sent events), from the one after `Last-Event-ID`."""
    return _stream(services, visit, run, after_seq if last_event_id is None else last_event_id)


def _stream(services: Services, visit: Visit, run: str, after: int) -> Response:
    with services.database.read() as session:
        run_id = RunRepository(session).id_of(run)
        head = EventHeads(session).of([run_id])[run_id]
    if head.state in TERMINAL and head.seq <= after:
        return Response(status_code=204)
    return services.streams.stream(run_id, after, visit.principal.token_id)
