"""Uploads: the body is streamed to disk and hashed on the way, never whole in memory."""

import contextlib
import hashlib
import os
import tempfile
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final

from fastapi import Depends, Request

from server.kit.db.texts import JsonObject
from server.kit.http.auth import AuthDep
from server.kit.http.errors import UnsupportedFileType
from server.kit.http.idempotency import Command
from server.kit.http.services import IdempotencyKeyHeader, ServicesDep, command_on

MEDIA_TYPE = "application/octet-stream"
FILE_BODY: Final[JsonObject] = {
    "requestBody": {"required": True, "content": {MEDIA_TYPE: {"schema": {"type": "string", "format": "binary"}}}}
}
"""Declares the body for OpenAPI, for a route's `openapi_extra`."""
FORGOTTEN_SECONDS = 86400.0
"""No upload takes so long: the server was killed meanwhile."""


@dataclass(frozen=True)
class Upload:
    """A body on disk, until its request is answered."""

    path: Path
    sha256: str


async def receive_upload(request: Request, services: ServicesDep) -> AsyncIterator[Upload]:
    """Receive the body into a file. Raises UnsupportedFileType, BodyTooLarge."""
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media_type != MEDIA_TYPE:
        raise UnsupportedFileType(media_type)
    folder = services.settings.storage.root / ".uploads"  # the disk that it will stay on; the store ignores such names
    folder.mkdir(parents=True, exist_ok=True)
    for forgotten in folder.iterdir():  # by a server that was killed
        with contextlib.suppress(FileNotFoundError):  # another process sweeps, or its request is answered
            if time.time() - forgotten.stat().st_mtime > FORGOTTEN_SECONDS:
                forgotten.unlink()
    handle, name = tempfile.mkstemp(dir=folder)
    try:
        digest = hashlib.sha256()
        with os.fdopen(handle, "wb") as file:
            async for chunk in request.stream():
                digest.update(chunk)
                file.write(chunk)
        yield Upload(Path(name), digest.hexdigest())
    finally:
        Path(name).unlink(missing_ok=True)


UploadDep = Annotated[Upload, Depends(receive_upload)]


def upload_command_of(
    request: Request,
    services: ServicesDep,
    auth: AuthDep,
    upload: UploadDep,
    idempotency_key: IdempotencyKeyHeader = None,
) -> Command:
    """Return the command that this upload is."""
    return command_on(request, services, auth, idempotency_key, b"", upload.sha256.encode())


UploadCommandDep = Annotated[Command, Depends(upload_command_of)]
