"""Where an artifact store is: `s3://bucket/prefix?endpoint=http://host:9000&region=eu-central-1`."""

import re
from dataclasses import dataclass
from typing import Self
from urllib.parse import parse_qs, urlsplit

_BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
_PREFIX = re.compile(r"[A-Za-z0-9._=+-]+(/[A-Za-z0-9._=+-]+)*")
_EXAMPLE = "s3://bucket/prefix?endpoint=http://host:9000&region=us-east-1"


@dataclass(frozen=True)
class S3Address:
    """A bucket, and where in it."""

    bucket: str
    prefix: str = ""
    """Empty, or ending with `/`."""
    endpoint: str | None = None
    """Base address of a server other than AWS's."""
    region: str | None = None
    """None: the one that boto3 is configured with, or S3's first."""

    @classmethod
    def parse(cls, url: str) -> Self:
        """Read an address. Raises ValueError with what is wrong."""
        parts = urlsplit(url)
        prefix = parts.path.strip("/")
        if parts.scheme != "s3":
            raise ValueError(f"the artifact store's address begins with s3://, as in {_EXAMPLE}")
        if parts.username or parts.password:
            raise ValueError("keys don't belong into the address; set LUDUS_STORAGE__ACCESS_KEY and __SECRET_KEY")
        if not _BUCKET.fullmatch(parts.netloc):
            raise ValueError(f"{parts.netloc!r} is no name of a bucket; write {_EXAMPLE}")
        if prefix and (not _PREFIX.fullmatch(prefix) or ".." in prefix.split("/")):
            raise ValueError(f"the prefix {prefix!r} has other characters than letters, digits and ._=+-")
        query = parse_qs(parts.query, strict_parsing=bool(parts.query), max_num_fields=8)
        if unknown := query.keys() - {"endpoint", "region"}:
            raise ValueError(f"{', '.join(sorted(unknown))} in the address is unknown; it takes endpoint and region")
        endpoint = query.get("endpoint", [None])[-1]
        if endpoint is not None and urlsplit(endpoint).scheme not in {"http", "https"}:
            raise ValueError(f"the endpoint {endpoint!r} begins with neither http:// nor https://")
        return cls(parts.netloc, f"{prefix}/" if prefix else "", endpoint, query.get("region", [None])[-1])

    def __str__(self) -> str:
        where = f" at {self.endpoint}" if self.endpoint else ""
        return f"s3://{self.bucket}/{self.prefix}{where}"
