"""Strong ETags of JSON documents, and `If-Match` (RFC 9110, section 13.1.1): what was read is changed, or nothing."""

import hashlib

from starlette.responses import JSONResponse

from server.kit.http.errors import PreconditionFailed
from server.kit.http.resources import dump


def etag_of(body: bytes) -> str:
    """Return the ETag of a document."""
    return f'"{hashlib.sha256(body).hexdigest()[:32]}"'


def check_match(if_match: str, present: object) -> None:
    """Compare what a request names with the resource that there is, as GET answers it. Raises PreconditionFailed."""
    named = {each.strip() for each in if_match.split(",")}
    if named != {"*"} and etag_of(bytes(JSONResponse(dump(present)).body)) not in named:
        raise PreconditionFailed
