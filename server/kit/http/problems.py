"""Answers with problems: RFC 9457 `application/problem+json` for each error, and for those of the framework."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Final

from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import Scope

from ludus.validation import in_words, place
from server.kit.errors import InvalidConfig, LudusError, ProblemList
from server.kit.http.errors import (
    MEDIA_TYPE,
    NotReady,
    RangeNotSatisfiable,
    RequestError,
    TooManyRequests,
    Unauthenticated,
    status_of,
)

PROBLEM_PATH: Final = "/problems/"
FRAMEWORK: Final[Mapping[str, tuple[int, str]]] = {
    "invalid_request": (422, "Parameters or body do not fit the description; all mistakes are listed."),
    "route_not_found": (404, "There is nothing at this path. See /docs for what there is."),
    "method_not_allowed": (405, "This path does not know this method. See the Allow header."),
    "internal": (500, "The server failed; this is a defect. Its log has the traceback under the request_id."),
}
"""The problems that are no error of ours: status and meaning."""

MAX_ERRORS = 100
"""Mistakes that an answer lists, at most."""


class ProblemItem(BaseModel):
    """One mistake among several."""

    path: str
    """Where: dotted keys, for instance `behaviors.CartPole.hyperparameters.batch_size`."""
    code: str
    """Stable name of the mistake."""
    message: str
    """The mistake and its correction."""
    location: str
    """The part of the request that `path` refers to: `config`, `body`, `query`, `path`, `header` or `server`."""
    line: int | None = None
    """Line of the key in the configuration, from 1, if that was sent as text; of a missing key, that of the nearest
    parent. Null also where an override has set the value."""
    column: int | None = None
    """Column of the key in this line, from 1."""


class Problem(BaseModel):
    """RFC 9457 problem details."""

    type: str
    """Path of a page that says what the code means: `/problems/` and the code."""
    title: str
    """The code in words."""
    status: int
    """HTTP status."""
    detail: str
    """The cause, then the remedy."""
    instance: str
    """Path of the request."""
    code: str
    """Stable name for programs."""
    request_id: str
    """Names the request in the server's log."""
    errors: list[ProblemItem] = []
    """The mistakes, where there can be several; at most 100."""
    details: dict[str, str] = {}
    """What programs need to know beside the code: of `run_ended` the run's id and its state."""


def problem_response(error: LudusError, scope: Scope) -> JSONResponse:
    """Answer with a domain error."""
    status = status_of(type(error))
    headers = dict(error.headers) if isinstance(error, RequestError) else {}
    if isinstance(error, TooManyRequests):
        headers["Retry-After"] = str(error.retry_seconds)
    if isinstance(error, RangeNotSatisfiable):
        headers["Content-Range"] = f"bytes */{error.size}"
    if status == 401:
        headers.update(Unauthenticated.headers)
    if status == 503:
        headers["Retry-After"] = "2"
    items: list[ProblemItem] = []
    if isinstance(error, NotReady):
        items = [
            ProblemItem(path=name, code=reason.code, message=str(reason), location="server")
            for name, reason in error.reasons.items()
        ]
    elif isinstance(error, ProblemList):
        location = "config" if isinstance(error, InvalidConfig) else "body"
        items = [ProblemItem(**asdict(problem), location=location) for problem in error.problems]
    details = {name: str(getattr(error, name)) for name in error.details}
    return _answer(scope, status, error.code, error.message, items, headers, details)


def internal_problem(scope: Scope) -> JSONResponse:
    """Answer that the server has a defect; the log has the traceback under the request's id."""
    return _answer(scope, 500, "internal", FRAMEWORK["internal"][1], [], {})


async def on_ludus_error(request: Request, error: Exception) -> JSONResponse:
    """Exception handler for the domain's errors."""
    assert isinstance(error, LudusError)
    return problem_response(error, request.scope)


async def on_validation_error(request: Request, error: Exception) -> JSONResponse:
    """Answer with the findings of FastAPI's validation. Values are not repeated: they could be secrets."""
    assert isinstance(error, RequestValidationError)
    errors = error.errors()
    items = [
        ProblemItem(
            path=".".join(place(mistake["loc"][1:])),
            code=mistake["type"],
            message=in_words(mistake),
            location=str(mistake["loc"][0]),
        )
        for mistake in errors[:MAX_ERRORS]
    ]
    first = items[0]
    count = f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
    detail = f"The request is not valid. {first.location} {first.path}: {first.message}{count}."
    return _answer(request.scope, 422, "invalid_request", detail, items, {})


async def on_http_exception(request: Request, error: Exception) -> Response:
    """Answer with the router's own exceptions: no such route, no such method; and OPTIONS, by the methods of a path."""
    assert isinstance(error, HTTPException)
    headers = dict(error.headers or {})
    if error.status_code == 405:  # the router itself names the methods of the first route only
        routes: Sequence[Route] = request.app.state.routes
        fitting = (route for route in routes if route.path_regex.match(request.url.path))
        methods = {method for route in fitting for method in route.methods or ()}
        headers["Allow"] = ", ".join(sorted({*methods, "OPTIONS", *({"HEAD"} if "GET" in methods else ())}))
        if request.method == "OPTIONS":
            return Response(status_code=204, headers=headers)
    code = {404: "route_not_found", 405: "method_not_allowed"}.get(error.status_code, "invalid_request")
    detail = FRAMEWORK[code][1] if error.status_code in {404, 405} else str(error.detail)
    return _answer(request.scope, error.status_code, code, detail, [], headers)


def _answer(
    scope: Scope,
    status: int,
    code: str,
    detail: str,
    items: Sequence[ProblemItem],
    headers: Mapping[str, str],
    details: dict[str, str] | None = None,
) -> JSONResponse:
    body = Problem(
        type=f"{PROBLEM_PATH}{code}",
        title=code.replace("_", " ").capitalize(),
        status=status,
        detail=detail,
        instance=scope["path"],
        code=code,
        request_id=scope.get("state", {}).get("request_id", ""),
        errors=list(items),
        details=details or {},
    )
    return JSONResponse(body.model_dump(), status, headers=dict(headers), media_type=MEDIA_TYPE)


def problem_types() -> dict[str, tuple[int, str]]:
    """Return status and meaning of each problem, by code."""
    types = dict(FRAMEWORK)
    classes = [LudusError]
    for error in classes:
        classes += error.__subclasses__()
        if hasattr(error, "code") and error.__doc__ and not error.__subclasses__():
            types.setdefault(error.code, (status_of(error), error.__doc__.split("\n\n")[0]))
    return types
