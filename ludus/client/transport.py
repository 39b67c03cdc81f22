"""The way to the server and back: requests, answers as records or as errors, pages, files."""

import json
import math
import os
import tempfile
import uuid
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self, TypeVar
from urllib.parse import quote

import httpx

from ludus.client.downloads import Arriving
from ludus.client.errors import (
    ANOTHER_SERVER,
    ApiError,
    Busy,
    DownloadDamaged,
    NotFinite,
    NotFound,
    ProblemAnswer,
    ServerUnreachable,
)
from ludus.client.patience import Patience
from ludus.paths import AnyPath
from ludus.protocol.credentials import CLIENT_TOKEN, Credential, credential
from ludus.protocol.tls import CA_VARIABLE, CERTIFICATE_VARIABLE, KEY_VARIABLE, ClientTls
from ludus.schemas import ProblemDetail, read_record

Record = TypeVar("Record")

PROJECT_HEADER: Final = "Ludus-Project"
DEFAULT_SERVER: Final = "http://127.0.0.1:8080"
WORK_SECONDS: Final = 600.0
"""How long the server may take to read, merge or thin a demonstration."""
_WRITE_IT_SO: Final = "write it as https://ludus.example.org or http://127.0.0.1:8080 into --server or LUDUS_SERVER"
_CALL_IT_SO: Final = "write a name into --server or LUDUS_SERVER that the certificate is for (its subjectAltName)"


class Transport:
    """Connection to one server. Thread-safe; close it, or use it as a context manager."""

    def __init__(
        self,
        server: str | None = None,
        token: str | None = None,
        *,
        project: str | None = None,
        tls: ClientTls | None = None,
        timeout: float = 30.0,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        """Connect to `server` (default: `LUDUS_SERVER`, else port 8080 of this machine) with `token` (`LUDUS_TOKEN`).

        `project` (`LUDUS_PROJECT`) is the one to act in, where the token is bound to none; `*` reads all of them. `tls`
        (`LUDUS_CA_FILE`, `LUDUS_CLIENT_CERTIFICATE`, `LUDUS_CLIENT_KEY`) has the files for an https server of one's own
        authority. `timeout` is in seconds, per network operation. `transport` replaces the network.
        """
        self.server = (server or os.environ.get("LUDUS_SERVER") or DEFAULT_SERVER).rstrip("/")
        if not self.server.lower().startswith(("http://", "https://")):
            # Refused at once: httpx would say so with each request, and `wait` would bear with that for a minute.
            raise ServerUnreachable(self.server, "the address has no http:// or https://", _WRITE_IT_SO)
        self._credential = credential(token or None, (CLIENT_TOKEN,))
        project = project or os.environ.get("LUDUS_PROJECT")
        headers = {"User-Agent": "ludus"} | (
            {"Authorization": f"Bearer {self._credential.token}"} if self._credential else {}
        )
        headers |= {PROJECT_HEADER: project} if project else {}
        tls = tls or ClientTls.from_environment()
        try:
            trusted = tls.context()
        except ValueError as error:
            raise ServerUnreachable(self.server, "TLS cannot be spoken", str(error)) from error
        try:
            self._http = httpx.Client(
                base_url=self.server, headers=headers, timeout=timeout, transport=transport, verify=trusted
            )
        except (httpx.InvalidURL, ValueError) as error:
            raise ServerUnreachable(self.server, f"not a URL: {error}") from error

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close all connections."""
        self._http.close()

    # For the resources

    def _items(
        self,
        kind: type[Record],
        path: str,
        field: str,
        parameters: Mapping[str, str | Sequence[str]] | None = None,
        limit: int | None = None,
    ) -> Iterator[Record]:
        token = ""
        left = limit
        while left is None or left > 0:
            query = {key: value for key, value in (parameters or {}).items() if value}
            query |= {"page_token": token} if token else {}
            query |= {} if left is None else {"page_size": str(min(left, 1000))}
            page = self._get(path, query)
            items = self._all(kind, page, field)
            yield from items
            token = page.get("next_page_token", "")
            if not token:
                return
            left = None if left is None else left - len(items)

    def _all(self, kind: type[Record], answer: Mapping[str, Any], field: str) -> list[Record]:
        return [self._read(kind, item) for item in answer.get(field, ())]

    def _read(self, kind: type[Record], data: Any) -> Record:
        try:
            return read_record(kind, data)
        except ValueError as error:
            raise ServerUnreachable(self.server, f"it does not answer as a Ludus server: {error}") from error

    def _get(self, path: str, parameters: Mapping[str, str | Sequence[str]] | None = None) -> dict[str, Any]:
        seconds = self._http.timeout.read
        announced = (parameters or {}).get("timeout", "0")
        waits = float(announced) if isinstance(announced, str) else 0.0
        timeout = httpx.Timeout(self._http.timeout.connect, read=None if seconds is None else seconds + waits)
        return self._send(self._http.build_request("GET", path, params=parameters, timeout=timeout))

    def _post(self, path: str, body: Mapping[str, Any] | None = None, key: str | None = None) -> dict[str, Any]:
        return self._send(self._with_body("POST", path, body, key))

    def _patch(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        return self._send(self._with_body("PATCH", path, body))

    def _put(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        return self._send(self._with_body("PUT", path, body))

    def _make(self, path: str, body: Mapping[str, Any], key: str | None) -> dict[str, Any]:
        """Post what takes the server a while."""
        return self._send(self._with_body("POST", path, body, key, timeout=self._patient()))

    def _with_body(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None,
        key: str | None = None,
        *,
        timeout: httpx.Timeout | None = None,
    ) -> httpx.Request:
        check_finite(body)
        headers = {"Idempotency-Key": key or str(uuid.uuid4())}
        return self._http.build_request(method, path, json=body, headers=headers, timeout=timeout or self._http.timeout)

    def _upload(self, path: str, file: AnyPath, parameters: Mapping[str, str], key: str | None) -> dict[str, Any]:
        """Post a file as it is, streamed."""
        headers = {"Idempotency-Key": key or str(uuid.uuid4()), "Content-Type": "application/octet-stream"}
        with Path(file).open("rb") as content:
            request = self._http.build_request(
                "POST", path, params=parameters, content=content, headers=headers, timeout=self._patient()
            )
            return self._send(request)

    def _delete(self, path: str) -> None:
        try:
            answer = self._http.send(self._http.build_request("DELETE", path))
        except httpx.TransportError as error:
            raise unreachable(self.server, error) from error
        self._raise_for_problem(answer)

    def _patient(self) -> httpx.Timeout:
        """Return time-outs for a request that the server works on before it answers."""
        given = self._http.timeout
        read = None if given.read is None else max(given.read, WORK_SECONDS)
        return httpx.Timeout(given.connect, read=read, write=given.write)

    def _download(self, path: str, name: str, target: AnyPath) -> Path:
        target = Path(target)
        target.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.", suffix=".part")
        try:
            with os.fdopen(handle, "wb") as file:
                arriving = Arriving(file)
                self._fetch(path, arriving)
                if arriving.actual != arriving.expected:
                    raise DownloadDamaged(name, arriving.expected, arriving.actual)
                file.flush()
                os.fsync(file.fileno())
            Path(temporary).replace(target)
        finally:
            Path(temporary).unlink(missing_ok=True)
        return target

    def _fetch(self, path: str, arriving: Arriving) -> None:
        """Get all of a file. Once it has begun to arrive, what breaks off is resumed, for as long as patience lasts."""
        patience = Patience()
        while True:
            there = arriving.size
            try:
                self._fetch_on(path, arriving)
            except (ServerUnreachable, Busy) as error:
                if not arriving.etag:
                    raise
                if arriving.size > there:
                    patience.reset()
                patience.bear(error)
            else:
                return

    def _fetch_on(self, path: str, arriving: Arriving) -> None:
        try:
            with self._http.stream("GET", path, headers=arriving.headers) as answer:
                self._raise_for_problem(answer)
                arriving.take(answer)
        except httpx.TransportError as error:
            raise unreachable(self.server, error) from error

    def _send(self, request: httpx.Request) -> dict[str, Any]:
        try:
            answer = self._http.send(request)
        except (httpx.TransportError, httpx.InvalidURL) as error:
            raise unreachable(self.server, error) from error
        self._raise_for_problem(answer)
        try:
            data = answer.json()
        except ValueError:
            data = None
        if not isinstance(data, dict):
            raise ServerUnreachable(self.server, "it does not answer as a Ludus server")
        return data

    def _raise_for_problem(self, answer: httpx.Response) -> None:
        """Raise what the server answers, if that is a problem."""
        if answer.is_success:
            return
        pause = float(seconds) if (seconds := answer.headers.get("retry-after", "")).isdecimal() else None
        raise self._problem_of(answer.read(), answer.status_code, pause)

    def _problem_of(self, document: bytes | str, status: int, retry_after: float | None = None) -> ApiError:
        return problem_of(document, status, self.server, retry_after=retry_after, shown=self._credential)


def without_none(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return what was given."""
    return {key: value for key, value in values.items() if value is not None}


def segment(text: str) -> str:
    """Return a text as one segment of a path."""
    return quote(text, safe="")


def check_finite(body: Any, path: str = "") -> None:
    """Raise NotFinite for a number that JSON cannot hold, with the way to it."""
    if isinstance(body, float) and not math.isfinite(body):
        raise NotFinite(path, body)
    if isinstance(body, Mapping):
        for key, value in body.items():
            check_finite(value, f"{path}.{key}" if path else str(key))
    elif isinstance(body, list | tuple):
        for index, value in enumerate(body):
            check_finite(value, f"{path}[{index}]")


def unreachable(server: str, error: Exception) -> ServerUnreachable:
    """Say what a failed request means, and what to do. OpenSSL tells it in prose alone, so this reads the prose."""
    reason = str(error) or type(error).__name__
    if "CERTIFICATE_VERIFY_FAILED" in reason:
        named = "not valid for" in reason
        return ServerUnreachable(server, reason, _CALL_IT_SO if named else f"name its authority in {CA_VARIABLE}")
    if "WRONG_VERSION_NUMBER" in reason:
        return ServerUnreachable(server, reason, "it speaks no TLS: write http://")
    if isinstance(error, httpx.ReadError | httpx.RemoteProtocolError) and not server.startswith("https:"):
        return ServerUnreachable(server, reason, f"if it speaks TLS, write https://; else {ANOTHER_SERVER}")
    if isinstance(error, httpx.ReadError | httpx.RemoteProtocolError):
        wanted = f"it may want a certificate of this client, which {CERTIFICATE_VARIABLE} and {KEY_VARIABLE} name"
        return ServerUnreachable(server, reason, wanted)
    return ServerUnreachable(server, reason)


def problem_of(
    document: bytes | str,
    status: int,
    server: str,
    *,
    retry_after: float | None = None,
    shown: Credential | None = None,
) -> ApiError:
    """Return what a problem document says, as the error to raise. `shown` is the token that the request had."""
    try:
        problem = json.loads(document)
        code, detail = problem["code"], problem["detail"]
    except (ValueError, KeyError, TypeError):
        return ServerUnreachable(server, f"it answers {status}, and not as a Ludus server")
    kind: type[ProblemAnswer] = {404: NotFound, 429: Busy, 503: Busy}.get(status, ProblemAnswer)
    if status == httpx.codes.UNAUTHORIZED:
        detail += (
            f" None was given: set {CLIENT_TOKEN}." if shown is None else f" It was shown the token {shown.origin}."
        )
    errors = [read_record(ProblemDetail, item) for item in problem.get("errors", [])]
    return kind(status, code, detail, errors, retry_after)
