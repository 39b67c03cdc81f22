"""Serves the pages: `index.html` at `/` and `/ui/...`, and static files below `/ui/static/RELEASE/`.

They hold no data, so they need no token. RELEASE is a hash of all files: what is below it never changes, and a new
release has new addresses. All addresses in the pages are relative to `<base>`, which has as many steps up as the
address of the page is deep; a proxy may therefore serve the pages below any prefix.
"""

import base64
import gzip
import hashlib
import re
from collections.abc import Mapping
from functools import cache, cached_property
from pathlib import Path
from typing import Final

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

STATIC: Final = Path(__file__).parent / "static"
MEDIA_TYPES: Final = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
    ".txt": "text/plain; charset=utf-8",
}
"""Files with other endings are not sent."""
INDEX: Final = "index.html"
BASE: Final = b'<base href="./">'
RELEASE: Final = b"RELEASE"
"""`index.html` has this word where the addresses of files have the hash."""
DEEPEST: Final = 16
"""Most steps from the address of a page up to the root."""


class StaticFile:
    """A file in memory. It is compressed when a client first accepts that."""

    def __init__(self, content: bytes, media_type: str) -> None:
        self.content = content
        self.media_type = media_type
        self.etag = f'W/"{hashlib.sha256(content).hexdigest()[:32]}"'
        """Weak: it is the same for the compressed file."""

    @cached_property
    def compressed(self) -> bytes:
        """The content in gzip's format."""
        return gzip.compress(self.content, mtime=0)


class Pages:
    """The files of a folder, with the headers that let a browser trust this server alone."""

    def __init__(self, folder: Path) -> None:
        """Read the folder. Files whose ending is not in `MEDIA_TYPES` are left out."""
        contents = {
            path.relative_to(folder).as_posix(): path.read_bytes()
            for path in sorted(folder.rglob("*"))
            if path.suffix in MEDIA_TYPES
        }
        parts = (
            part for name, content in contents.items() for part in (name.encode(), hashlib.sha256(content).digest())
        )
        self.release = hashlib.sha256(b"\0".join(parts)).hexdigest()[:16]
        index = contents.pop(INDEX).replace(RELEASE, self.release.encode())
        self._files = {name: StaticFile(content, MEDIA_TYPES[Path(name).suffix]) for name, content in contents.items()}
        (import_map,) = re.findall(rb'<script type="importmap">(.*?)</script>', index, re.DOTALL)
        self._headers = {
            "Content-Security-Policy": _policy(import_map),
            "X-Frame-Options": "DENY",
            "Referrer-Policy": "no-referrer",
            "Cross-Origin-Opener-Policy": "same-origin",
            "Vary": "Accept-Encoding",
        }
        self.index = cache(
            lambda depth: StaticFile(
                index.replace(BASE, b'<base href="%s">' % (b"../" * depth or b"./")), MEDIA_TYPES[".html"]
            )
        )
        """Return `index.html` for an address that is so many slashes deep."""

    def page(self, request: Request) -> Response:
        """Answer with `index.html`. Raises HTTPException (404) for an address that is too deep."""
        # Counted before percent-decoding: to a browser an encoded slash is no step.
        depth = request.scope["raw_path"].count(b"/") - 1
        if depth > DEEPEST:
            raise HTTPException(404)
        return self._answer(request, self.index(depth), "no-cache")

    def file(self, request: Request) -> Response:
        """Answer with a file of this release. Raises HTTPException (404)."""
        file = self._files.get(request.path_params["name"])
        if file is None or request.path_params["release"] != self.release:
            raise HTTPException(404)
        return self._answer(request, file, "public, max-age=31536000, immutable")

    def _answer(self, request: Request, file: StaticFile, caching: str) -> Response:
        headers = {**self._headers, "ETag": file.etag, "Cache-Control": caching}
        if file.etag in request.headers.get("if-none-match", ""):
            return Response(status_code=304, headers=headers)
        codings = re.sub(r"\s", "", request.headers.get("accept-encoding", "").lower()).split(",")
        if any(re.fullmatch(r"gzip(;.*)?", coding) and not re.search(r";q=0(\.0*)?$", coding) for coding in codings):
            return Response(
                file.compressed, headers={**headers, "Content-Encoding": "gzip"}, media_type=file.media_type
            )
        return Response(file.content, headers=headers, media_type=file.media_type)


@cache
def pages() -> Pages:
    """Return the pages of this package. The applications of a process share them."""
    return Pages(STATIC)


def add_pages(app: Starlette) -> None:
    """Add the routes of the pages. Routes that were added before take precedence."""
    served = pages()
    app.add_route("/ui/static/{release}/{name:path}", served.file, include_in_schema=False)
    for path in ("/", "/ui", "/ui/{page:path}"):
        app.add_route(path, served.page, include_in_schema=False)


def is_page(path: str) -> bool:
    """Whether a path is that of a page or of its files."""
    return path in {"/", "/ui"} or path.startswith("/ui/")


def _policy(import_map: bytes) -> str:
    """Return a content security policy that lets a page ask its origin alone, and run no script but its files."""
    digest = base64.b64encode(hashlib.sha256(import_map).digest()).decode()
    sources: Mapping[str, str] = {
        "default-src": "'none'",
        "script-src": f"'self' 'sha256-{digest}'",
        "style-src": "'self'",
        "img-src": "'self' data: blob:",
        "connect-src": "'self'",
        "base-uri": "'self'",
        "form-action": "'self'",
        "frame-ancestors": "'none'",
    }
    return "; ".join(f"{directive} {source}" for directive, source in sources.items())
