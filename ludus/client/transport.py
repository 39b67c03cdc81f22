"""Requests to the server: JSON in both directions, pages, files, event streams, and problems as exceptions."""

import hashlib
import json
import math
import os
import ssl
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import BinaryIO, Final, TypeVar
from urllib.parse import quote, urlsplit

import httpx2

from ludus.client.backoff import ServerBackoff, request_seconds
from ludus.client.errors import (
    ANOTHER_SERVER,
    ApiError,
    Busy,
    DownloadDamaged,
    NotFound,
    NotSendable,
    ProblemAnswer,
    ServerUnreachable,
)
from ludus.json_values import JsonObject
from ludus.paths import AnyPath, replaced
from ludus.protocol.credentials import CLIENT_TOKEN, Credential, unsendable
from ludus.protocol.options import GATEWAY_PORT, GATEWAY_VARIABLE
from ludus.protocol.proxies import proxy_of, without_password
from ludus.protocol.tls import CA_VARIABLE, CERTIFICATE_VARIABLE, KEY_VARIABLE
from ludus.reading import read_record
from ludus.schemas import ProblemDetail

Record = TypeVar("Record")

WORK_SECONDS: Final = 600.0
"""Read time-out of requests for which the server reads or writes large files before it answers."""
TRACEPARENT: Final = "TRACEPARENT"
"""Environment variable in which pipelines hand on the span that they are in (W3C Trace Context). Commands carry it."""
_USE_NAME: Final = "write a name into --server or LUDUS_SERVER that the certificate is for (its subjectAltName)"


class PartialDownload:
    """A file being downloaded: the bytes received so far, and their checksum.

    The rest of a file is requested with `Range` and `If-Range` (RFC 9110, section 14).
    """

    def __init__(self, file: BinaryIO) -> None:
        self.etag = ""
        """The server's name of the file: its SHA-256 in quotes. Empty until something was received."""
        self.size = 0
        """Bytes received."""
        self._file = file
        self._digest = hashlib.sha256()

    @property
    def headers(self) -> dict[str, str]:
        """Headers that request the missing rest, or all of the file if the server has another one by now."""
        part = {"Range": f"bytes={self.size}-", "If-Range": self.etag} if self.size else {}
        return {"Accept-Encoding": "identity", **part}

    @property
    def expected(self) -> str:
        """The SHA-256 that the server announced."""
        return self.etag.strip('"')

    @property
    def actual(self) -> str:
        """The SHA-256 of the received bytes."""
        return self._digest.hexdigest()

    def receive(self, answer: httpx2.Response, etag: str | None = None) -> None:
        """Write the body of an answer to the file. Raises httpx2.TransportError if the connection breaks.

        `etag` is the server's name of the file, if the answer comes from its artifact store.
        """
        if answer.status_code != httpx2.codes.PARTIAL_CONTENT:  # the server sends the file from its start
            self._file.seek(0)
            self._file.truncate()
            self._digest = hashlib.sha256()
            self.etag, self.size = answer.headers.get("etag", "") if etag is None else etag, 0
        for block in answer.iter_bytes():
            self._file.write(block)
            self._digest.update(block)
            self.size += len(block)


class Transport:
    """HTTP connection to one server. Thread-safe."""

    def __init__(
        self, server: str, http: httpx2.Client, credential: Credential | None, proxy: str | None = None
    ) -> None:
        """`server`, `credential` (the token that `http` sends) and `proxy` (which it uses) are named in errors."""
        self.server = server
        self._proxy = proxy
        self._http = http
        self.credential = credential

    @property
    def gateway(self) -> str:
        """Where simulators of the server's runs join: `LUDUS_SIMULATOR_SERVER`, else its host, port 7070."""
        host = urlsplit(self.server).hostname or ""
        default = f"[{host}]:{GATEWAY_PORT}" if ":" in host else f"{host}:{GATEWAY_PORT}"
        return os.environ.get(GATEWAY_VARIABLE) or default

    def close(self) -> None:
        """Close all connections."""
        self._http.close()

    def document(self, path: str, parameters: JsonObject | None = None) -> JsonObject:
        """Get a JSON object. A parameter `timeout` (seconds of a long poll) extends the read time-out."""
        connect, read = self._http.timeout.connect, self._http.timeout.read
        poll_seconds = float((parameters or {}).get("timeout", 0.0))
        timeout = self._within(httpx2.Timeout(connect, read=None if read is None else read + poll_seconds))
        return self._send(self._http.build_request("GET", path, params=parameters, timeout=timeout))

    def get(self, kind: type[Record], path: str, parameters: JsonObject | None = None) -> Record:
        """Get one resource."""
        return self.read(kind, self.document(path, parameters))

    def pages(
        self, kind: type[Record], path: str, limit: int | None = None, *, field: str | None = None, **parameters: object
    ) -> Iterator[Record]:
        """Iterate over at most `limit` resources. Empty parameters are omitted.

        They are in one field of each page, which is called like the last segment of the path unless `field` is given.
        """
        query: JsonObject = {key: value for key, value in parameters.items() if value}
        remaining = limit
        while remaining is None or remaining > 0:
            if remaining is not None:
                query["page_size"] = min(remaining, 1000)
            page = self.document(path, query)
            items = self.read_all(kind, page, field or path.rpartition("/")[2])
            yield from items
            query["page_token"] = page.get("next_page_token", "")
            if not query["page_token"]:
                return
            remaining = None if remaining is None else remaining - len(items)

    def post(
        self,
        kind: type[Record],
        path: str,
        body: Mapping[str, object] | None = None,
        key: str | None = None,
        *,
        slow: bool = False,
    ) -> Record:
        """Post a JSON object. `key` is the idempotency key; `slow` allows the server WORK_SECONDS for its answer."""
        return self._write(kind, "POST", path, body, key, timeout=self._slow() if slow else None)

    def patch(self, kind: type[Record], path: str, body: Mapping[str, object]) -> Record:
        """Change a resource."""
        return self._write(kind, "PATCH", path, body)

    def put(self, kind: type[Record], path: str, body: Mapping[str, object]) -> Record:
        """Create or replace a resource."""
        return self._write(kind, "PUT", path, body)

    def delete(self, path: str) -> None:
        """Delete a resource."""
        with self._unreachable():
            answer = self._http.send(self._http.build_request("DELETE", path))
        self._raise_for_problem(answer)

    def upload(
        self, kind: type[Record], path: str, file: AnyPath, parameters: Mapping[str, str], key: str | None
    ) -> Record:
        """Post a file as it is, streamed."""
        headers = _idempotency(key) | {"Content-Type": "application/octet-stream"}
        with Path(file).open("rb") as content:
            request = self._http.build_request(
                "POST", path, params=parameters, content=content, headers=headers, timeout=self._slow()
            )
            return self.read(kind, self._send(request))

    def download(self, path: str, name: str, target: AnyPath) -> Path:
        """Download a file to `target`, which is replaced when all of it has arrived with the announced checksum.

        Once it has begun to arrive, a download that breaks off is resumed, until RETRY_SECONDS pass without a byte.
        """
        target = Path(target)
        target.parent.mkdir(parents=True, exist_ok=True)
        with replaced(target) as file:
            download, backoff = PartialDownload(file), ServerBackoff()
            while True:
                before = download.size
                try:
                    self._receive(path, download)
                    break
                except (ServerUnreachable, Busy) as error:
                    if not download.etag:
                        raise
                    if download.size > before:
                        backoff.reset()
                    backoff.wait(error)
            if download.actual != download.expected:
                raise DownloadDamaged(name, download.expected, download.actual)
        return target

    @contextmanager
    def stream(
        self, path: str, headers: Mapping[str, str], *, silence_seconds: float | None = None
    ) -> Iterator[httpx2.Response]:
        """Get an answer whose body is read by the caller. `silence_seconds` replaces the read time-out."""
        timeout = self._http.timeout
        if silence_seconds is not None:
            timeout = httpx2.Timeout(timeout.connect, read=silence_seconds)
        with self._unreachable(), self._http.stream("GET", path, headers=headers, timeout=timeout) as answer:
            self._raise_for_problem(answer)
            yield answer

    def read(self, kind: type[Record], data: object) -> Record:
        """Build a resource from its JSON form. Raises ServerUnreachable if it is none."""
        try:
            return read_record(kind, data)
        except ValueError as error:
            raise ServerUnreachable(self.server, f"it does not answer as a Ludus server: {error}") from error

    def read_all(self, kind: type[Record], answer: JsonObject, field: str) -> list[Record]:
        """Build the resources of one field of an answer."""
        return [self.read(kind, item) for item in answer.get(field, ())]

    def problem(self, document: bytes | str, status: int, retry_after: float | None = None) -> ApiError:
        """Return the exception for a problem document (RFC 9457)."""
        try:
            problem = json.loads(document)
            code, detail = problem["code"], problem["detail"]
        except (ValueError, KeyError, TypeError):
            return ServerUnreachable(self.server, f"it answers {status}, and not as a Ludus server")
        kind: type[ProblemAnswer] = {404: NotFound, 429: Busy, 503: Busy}.get(status, ProblemAnswer)
        if status == httpx2.codes.UNAUTHORIZED:
            shown = self.credential
            detail += (
                f" None was given: set {CLIENT_TOKEN}." if shown is None else f" It was shown the token {shown.origin}."
            )
        errors = [read_record(ProblemDetail, item) for item in problem.get("errors", [])]
        return kind(status, code, detail, errors, retry_after)

    def _write(
        self,
        kind: type[Record],
        method: str,
        path: str,
        body: Mapping[str, object] | None,
        key: str | None = None,
        *,
        timeout: httpx2.Timeout | None = None,
    ) -> Record:
        headers = _idempotency(key)
        if traceparent := os.environ.get(TRACEPARENT):
            headers["traceparent"] = traceparent
        timeout = self._within(timeout or self._http.timeout)
        request = self._http.build_request(method, path, json=as_json(body), headers=headers, timeout=timeout)
        return self.read(kind, self._send(request))

    def _slow(self) -> httpx2.Timeout:
        """Return time-outs for a request that the server works on before it answers."""
        usual = self._http.timeout
        read = None if usual.read is None else max(usual.read, WORK_SECONDS)
        return httpx2.Timeout(usual.connect, read=read, write=usual.write)

    @staticmethod
    def _within(usual: httpx2.Timeout) -> httpx2.Timeout:
        """Return time-outs that end with the deadline of the waiting call that a request is part of."""
        connect, read = request_seconds(usual.connect), request_seconds(usual.read)
        return httpx2.Timeout(connect, read=read, write=request_seconds(usual.write))

    def _receive(self, path: str, download: PartialDownload) -> None:
        """Receive the missing rest of a file: from the artifact store where the server sends us there, else from it.

        A store that we can't reach, or that refuses, is passed over: the server sends the file itself.
        """
        request = self._http.build_request("GET", path, params={"redirect": "true"}, headers=download.headers)
        with self._unreachable(), closing(self._http.send(request, stream=True)) as answer:
            if answer.status_code != httpx2.codes.TEMPORARY_REDIRECT:
                self._raise_for_problem(answer)
                download.receive(answer)
                return
            etag, url = answer.headers.get("etag", ""), answer.headers.get("location", "")
        before = download.size
        # The address is valid without the token, which is for the server alone. Files there never change, so a part of
        # the same file needs no `If-Range`, which would compare our name of the file with the store's.
        headers = {"Accept-Encoding": "identity"}
        if before and download.etag == etag:
            headers["Range"] = f"bytes={before}-"
        try:
            trusted, proxy = public_authorities(), proxy_of(url)
            store = httpx2.Client(timeout=self._http.timeout, verify=trusted, proxy=proxy, trust_env=False)
            with store, store.stream("GET", url, headers=headers) as content:
                content.raise_for_status()
                download.receive(content, etag)
        except (httpx2.HTTPError, httpx2.InvalidURL, ImportError, ValueError) as error:  # the last two: of the proxy
            if download.size > before:
                raise unreachable(str(httpx2.URL(url).copy_with(query=None)), error, proxy_of(url)) from error
            with self.stream(path, download.headers) as answer:
                download.receive(answer)

    def _send(self, request: httpx2.Request) -> JsonObject:
        with self._unreachable():
            answer = self._http.send(request)
        self._raise_for_problem(answer)
        try:
            data = answer.json()
        except ValueError:
            data = None
        if not isinstance(data, dict):
            raise ServerUnreachable(self.server, "it does not answer as a Ludus server")
        return data

    @contextmanager
    def _unreachable(self) -> Iterator[None]:
        """Raise ServerUnreachable for errors of the network."""
        try:
            yield
        except (httpx2.TransportError, httpx2.InvalidURL) as error:
            if self._http.is_closed:  # by another thread: as httpx2 says it of the next request
                raise RuntimeError("the client has been closed") from error
            raise unreachable(self.server, error, self._proxy) from error

    def _raise_for_problem(self, answer: httpx2.Response) -> None:
        if answer.is_success:
            return
        pause = float(seconds) if (seconds := answer.headers.get("retry-after", "")).isdecimal() else None
        raise self.problem(answer.read(), answer.status_code, pause)


class Resource:
    """The requests about one kind of resource."""

    def __init__(self, transport: Transport) -> None:
        """Send requests through `transport`."""
        self._transport = transport
        self._get, self._post, self._pages = transport.get, transport.post, transport.pages


def texts(values: Sequence[str]) -> list[str]:
    """Return texts as a list. Raises TypeError for a single text, whose letters would be taken for texts."""
    if isinstance(values, str):
        raise TypeError(f"{values!r} is one text, and several are asked for: write [{values!r}]")
    return list(values)


def without_none(**values: object) -> JsonObject:
    """Return the arguments that are not None."""
    return {key: value for key, value in values.items() if value is not None}


def route(*segments: str | int) -> str:
    """Return a path of the API; its segments are quoted. Raises NotSendable for a name that would be another path."""
    for kind, name in pairwise(segments):
        if name in {"", ".", ".."}:
            raise NotSendable(f"the name behind {kind}/", f"is {name!r}, which names nothing (an unset variable?)")
    return "/v1/" + "/".join(quote(str(segment), safe="") for segment in segments)


def as_json(value: object, path: str = "") -> object:
    """Return a value as JSON holds it: numbers, arrays and series of numpy, torch and pandas as numbers and lists.

    Raises NotSendable, with the path to it, for a value without such a form, and for a number that is not finite.
    """
    match value:
        case None | str() | bool() | int():
            return value
        case float():
            if not math.isfinite(value):
                raise NotSendable(path, f"is {value}: only finite numbers can be sent")
            return value
        case Mapping():
            return {str(key): as_json(item, f"{path}.{key}" if path else str(key)) for key, item in value.items()}
        case list() | tuple():
            return [as_json(item, f"{path}[{index}]") for index, item in enumerate(value)]
    if hasattr(value, "tolist"):
        return as_json(value.tolist(), path)
    raise NotSendable(path, f"is a {type(value).__name__}, for which JSON has no form")


def header_value(name: str, text: str) -> str:
    """Return a text that a header can carry: printable ASCII. Raises NotSendable, which does not repeat the text."""
    if (character := unsendable(text)) is not None:
        raise NotSendable(name, f"has the character {character!r}; write letters without accents, digits and signs")
    return text


def _idempotency(key: str | None) -> dict[str, str]:
    return {"Idempotency-Key": str(uuid.uuid4()) if key is None else header_value("the idempotency key", key)}


@cache
def public_authorities() -> ssl.SSLContext:
    """Return the TLS context that clients of this process share: reading the authorities takes 20 ms."""
    return httpx2.create_ssl_context()


def unreachable(server: str, error: Exception, proxy: str | None) -> ServerUnreachable:
    """Return the exception for a network error, with advice. OpenSSL names the cause only in its message."""
    reason = str(error) or type(error).__name__
    if proxy is not None and isinstance(error, httpx2.ConnectError | httpx2.ConnectTimeout | httpx2.ProxyError):
        through = f"through the proxy {without_password(proxy)}: {reason}"
        return ServerUnreachable(
            server, through, f"where it needs no proxy, name its host in no_proxy; {ANOTHER_SERVER}"
        )
    if "CERTIFICATE_VERIFY_FAILED" in reason:
        named = "not valid for" in reason
        return ServerUnreachable(server, reason, _USE_NAME if named else f"name its authority in {CA_VARIABLE}")
    if "WRONG_VERSION_NUMBER" in reason:
        return ServerUnreachable(server, reason, "it speaks no TLS: write http://")
    if isinstance(error, httpx2.ReadError | httpx2.RemoteProtocolError) and not server.startswith("https:"):
        return ServerUnreachable(server, reason, f"if it speaks TLS, write https://; else {ANOTHER_SERVER}")
    if isinstance(error, httpx2.ReadError | httpx2.RemoteProtocolError):
        advice = f"it may want a certificate of this client, which {CERTIFICATE_VARIABLE} and {KEY_VARIABLE} name"
        return ServerUnreachable(server, reason, advice)
    return ServerUnreachable(server, reason)
