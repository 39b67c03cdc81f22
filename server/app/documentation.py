"""The page at /docs: Swagger UI, from files of an installed package, so that it works where there is no internet.

FastAPI's own page takes its scripts from a CDN. The policy that is sent with this one lets the browser ask this server
alone.
"""

import base64
import re
from hashlib import sha256
from pathlib import Path
from typing import Final

import fastapi_offline
from fastapi import FastAPI, Request
from fastapi.openapi.docs import get_swagger_ui_html
from starlette.responses import FileResponse, HTMLResponse, Response

PAGE: Final = "/docs"
FILES: Final = {
    f"{PAGE}/{name}": Path(fastapi_offline.__file__).parent / "static" / name
    for name in ("swagger-ui-bundle.js", "swagger-ui.css", "favicon.png")
}
OPEN: Final = frozenset({PAGE, *FILES})
"""Paths that need no token."""


def add_documentation(app: FastAPI) -> None:
    """Add the routes of the page and of its files."""
    # Relative addresses, so that the page works behind a proxy that serves the API under a path of its own.
    html = bytes(
        get_swagger_ui_html(
            openapi_url="openapi.json",
            title=f"{app.title} API",
            swagger_js_url="docs/swagger-ui-bundle.js",
            swagger_css_url="docs/swagger-ui.css",
            swagger_favicon_url="docs/favicon.png",
        ).body
    )
    scripts = [
        base64.b64encode(sha256(script).digest()).decode()
        for script in re.findall(rb"<script>(.*?)</script>", html, re.DOTALL)
    ]
    policy = "; ".join(
        [
            "default-src 'none'",
            "connect-src 'self'",
            "img-src 'self' data:",
            "style-src 'self' 'unsafe-inline'",  # Swagger UI styles its elements one by one
            " ".join(["script-src 'self'", *(f"'sha256-{script}'" for script in scripts)]),
            "base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
        ]
    )

    def page(_request: Request) -> Response:
        return HTMLResponse(html, headers={"Content-Security-Policy": policy})

    def file(request: Request) -> Response:
        return FileResponse(FILES[request.scope["path"]], headers={"Cache-Control": "max-age=3600"})

    app.add_route(PAGE, page, include_in_schema=False)
    for path in FILES:
        app.add_route(path, file, include_in_schema=False)
