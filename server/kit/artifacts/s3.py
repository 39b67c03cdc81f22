"""Artifacts in a bucket of S3, or of any server that speaks its protocol (MinIO, Ceph, Garage, JuiceFS, ...).

An object appears when it is complete, so a file is there or not. A folder is many objects, and becomes visible to users
by its row in the database, which is written after the last of them; what a killed publication leaves behind has no row,
and retention collects it. Every part that is sent carries its MD5, which the server holds against what arrived; what is
read back is compared with the SHA-256 of its row by the reader.

boto3 itself retries what may be retried (`standard` mode: time-outs, throttling, 5xx), with growing pauses.
"""

import hashlib
import io
import time
from base64 import b64encode
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError, NoCredentialsError, PartialCredentialsError

from ludus.protocol.proxies import reached_directly
from server.kit.artifacts.address import S3Address
from server.kit.artifacts.store import BLOCK, DOWNLOAD_SECONDS, FileRef, StoredFile, check_path, digest_of, files_of
from server.kit.db.texts import JsonObject
from server.kit.errors import ArtifactNotFound, LudusError, StorageFull, StorageRefused, StorageUnavailable

PART = 16 << 20
"""Larger files are sent in parts of at least so many bytes; a part is held in memory."""
MAX_PARTS = 10_000
"""S3's limit of parts of one object."""
_MISSING = frozenset({"NoSuchKey", "404", "NotFound"})
_FULL = frozenset(
    {"QuotaExceeded", "InsufficientStorage", "XMinioStorageFull", "XMinioAdminBucketQuotaExceeded", "507"}
)
_KEYS = frozenset(
    {"InvalidAccessKeyId", "SignatureDoesNotMatch", "InvalidToken", "ExpiredToken", "TokenRefreshRequired"}
)


class S3Store:
    """An ArtifactStore in a bucket, below a prefix. The bucket has to exist."""

    def __init__(
        self,
        address: S3Address,
        access_key: str | None = None,
        secret_key: str | None = None,
        *,
        timeout_seconds: float = 30.0,
        tries: int = 5,
        public_endpoint: str | None = None,
        redirect_bytes: int = 16 << 20,
    ) -> None:
        """Connect to nothing yet. Without keys boto3 looks for them: environment, shared files, the machine's role.

        Clients reach the store at `public_endpoint`; without one they reach AWS's own, and no other. They download
        files of at least `redirect_bytes` there.
        """
        self._address = address
        self._bucket = address.bucket
        self._redirect_bytes = redirect_bytes
        directly = address.endpoint is not None and reached_directly(urlsplit(address.endpoint).hostname or "")
        # Checksums that newer SDKs add by themselves are unknown to older servers; MD5 is known to all.
        make_client = partial(
            boto3.session.Session().client,
            "s3",
            region_name=address.region or ("us-east-1" if address.endpoint else None),
            aws_access_key_id=access_key,
            aws_secret_access_key=secret_key,
            config=Config(
                signature_version="s3v4",
                proxies={} if directly else None,
                connect_timeout=min(timeout_seconds, 10.0),
                read_timeout=timeout_seconds,
                retries={"mode": "standard", "total_max_attempts": tries},
                max_pool_connections=50,
                request_checksum_calculation="when_required",
                response_checksum_validation="when_required",
                s3={"addressing_style": "path" if address.endpoint else "auto"},
            ),
        )
        self._client = make_client(endpoint_url=address.endpoint)
        self._public: Any = None
        if public_endpoint is not None:
            self._public = make_client(endpoint_url=public_endpoint)
        elif address.endpoint is None:
            self._public = self._client

    def publish(self, source: Path, path: str) -> list[FileRef]:
        """Store a file or a folder; see ArtifactStore."""
        files = files_of(source)
        with self._translated_errors(path, sum(file.stat().st_size for _, file in files)):
            if not source.is_dir():
                return [self._put(source, source.name, check_path(path))]
            check_path(path)
            sizes = {stored.path.removeprefix(f"{path}/"): stored.size for stored in self.files(path)}
            published: list[FileRef] = []
            try:
                for name, file in files:
                    target = f"{path}/{name}"
                    published.append(self._same(file, name, target) if name in sizes else self._put(file, name, target))
            except (LudusError, ClientError, BotoCoreError):
                with suppress(ClientError, BotoCoreError):  # what can't be removed is for retention to find
                    for sent in published:
                        if sent.name not in sizes:
                            self._client.delete_object(Bucket=self._bucket, Key=self._key(f"{path}/{sent.name}"))
                raise
            if sizes.keys() - {name for name, _ in files}:
                raise FileExistsError(f"an artifact folder never changes; use a new path than {path}")
            return published

    def open(self, path: str, start: int = 0) -> io.BufferedIOBase:
        """Open a file for reading from a byte on. Raises ArtifactNotFound."""
        if start >= self.size(path):
            return io.BytesIO()  # a range behind the end is an error to S3
        extent = {"Range": f"bytes={start}-"} if start else {}
        with self._translated_errors(path):
            answer = self._client.get_object(Bucket=self._bucket, Key=self._key(path), **extent)
        return io.BufferedReader(_Body(answer["Body"], path, self._translated_errors), BLOCK)

    def size(self, path: str) -> int:
        """Return a file's size in bytes. Raises ArtifactNotFound."""
        with self._translated_errors(path):
            return int(self._client.head_object(Bucket=self._bucket, Key=self._key(path))["ContentLength"])

    def download_url(self, path: str, size: int) -> str | None:
        """Return a presigned address of a large file, signed here, without a request; see ArtifactStore."""
        if self._public is None or size < self._redirect_bytes:
            return None
        name = quote(path.rpartition("/")[2])
        parameters = {
            "Bucket": self._bucket,
            "Key": self._key(path),
            "ResponseContentDisposition": f"attachment; filename*=UTF-8''{name}",
        }
        with self._translated_errors(path):
            return str(self._public.generate_presigned_url("get_object", Params=parameters, ExpiresIn=DOWNLOAD_SECONDS))

    def delete(self, path: str) -> None:
        """Remove a file, or all files of a folder."""
        with self._translated_errors(path):
            for stored in list(self.files(path)):
                self._client.delete_object(Bucket=self._bucket, Key=self._key(stored.path))
            self._client.delete_object(Bucket=self._bucket, Key=self._key(path))

    def files(self, path: str) -> Iterator[StoredFile]:
        """Yield every file below a folder."""
        prefix = f"{self._key(path)}/"
        pages = self._client.get_paginator("list_objects_v2").paginate(Bucket=self._bucket, Prefix=prefix)
        with self._translated_errors(path):
            for page in pages:
                for entry in page.get("Contents", ()):
                    if not entry["Key"].endswith("/"):  # some servers show folders as objects
                        relative = entry["Key"].removeprefix(self._address.prefix)
                        yield StoredFile(relative, int(entry["Size"]), entry["LastModified"].timestamp())

    def sweep(self, older_than: float) -> int:
        """Abort uploads in parts that were begun so many seconds ago and never ended."""
        swept = 0
        oldest = time.time() - older_than
        pages = self._client.get_paginator("list_multipart_uploads").paginate(
            Bucket=self._bucket, Prefix=self._address.prefix
        )
        with self._translated_errors("unfinished uploads"):
            for page in pages:
                for upload in page.get("Uploads", ()):
                    if upload["Initiated"].timestamp() < oldest:
                        self._abort(upload["Key"], upload["UploadId"])
                        swept += 1
        return swept

    def _key(self, path: str) -> str:
        return self._address.prefix + check_path(path)

    def _put(self, file: Path, name: str, path: str) -> FileRef:
        """Send a file, whole or in parts."""
        size = file.stat().st_size
        digest = hashlib.sha256()
        key = self._key(path)
        with file.open("rb") as content:
            if size <= PART:
                data = content.read()
                digest.update(data)
                self._client.put_object(Bucket=self._bucket, Key=key, Body=data, ContentMD5=_md5(data))
                return FileRef(name, len(data), digest.hexdigest())
            upload = self._client.create_multipart_upload(Bucket=self._bucket, Key=key)["UploadId"]
            try:
                parts: list[JsonObject] = []
                sent = 0
                while data := content.read(max(PART, -(-size // MAX_PARTS))):
                    digest.update(data)
                    sent += len(data)
                    number = len(parts) + 1
                    answer = self._client.upload_part(
                        Bucket=self._bucket,
                        Key=key,
                        UploadId=upload,
                        PartNumber=number,
                        Body=data,
                        ContentMD5=_md5(data),
                    )
                    parts.append({"ETag": answer["ETag"], "PartNumber": number})
                self._client.complete_multipart_upload(
                    Bucket=self._bucket, Key=key, UploadId=upload, MultipartUpload={"Parts": parts}
                )
            except BaseException:
                self._abort(key, upload)
                raise
        return FileRef(name, sent, digest.hexdigest())

    def _same(self, file: Path, name: str, path: str) -> FileRef:
        """Describe a file that is stored already. Raises FileExistsError where the stored one is another."""
        with file.open("rb") as content:
            digest = hashlib.file_digest(content, "sha256").hexdigest()
        if digest_of(self, path) != digest:
            raise FileExistsError(f"an artifact folder never changes; use a new path than that of {path}")
        return FileRef(name, file.stat().st_size, digest)

    def _abort(self, key: str, upload: str) -> None:
        with suppress(ClientError, BotoCoreError):
            self._client.abort_multipart_upload(Bucket=self._bucket, Key=key, UploadId=upload)

    @contextmanager
    def _translated_errors(self, path: str, needed: int | None = None) -> Iterator[None]:
        """Raise an error of ours for one of the S3 server or of boto3."""
        try:
            yield
        except ClientError as error:
            raise self._meaning(error, path, needed) from error
        except (NoCredentialsError, PartialCredentialsError) as error:
            remedy = "set LUDUS_STORAGE__ACCESS_KEY and LUDUS_STORAGE__SECRET_KEY, or what boto3 reads (AWS_...)"
            raise StorageRefused(f"there are no keys for {self._address} ({error})", remedy) from error
        except BotoCoreError as error:
            raise StorageUnavailable(f"{self._address}: {error}") from error

    def _meaning(self, error: ClientError, path: str, needed: int | None) -> LudusError:
        answer: JsonObject = error.response.get("Error", {})
        code, message = str(answer.get("Code", "")), str(answer.get("Message", ""))
        status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
        text = f"{self._address} says {code}: {message}"
        if code in _FULL or status == 507 or "no space left" in message.lower():
            return StorageFull(path, needed)
        if code == "NoSuchBucket":
            return StorageRefused(
                f"there is no bucket {self._bucket!r} ({text})", "create it, or mend LUDUS_STORAGE__URL"
            )
        if code in _MISSING:
            return ArtifactNotFound(path)
        if code == "RequestTimeTooSkewed":
            return StorageRefused(
                f"this machine's clock and the store's differ too much ({text})", "set the clock (NTP)"
            )
        if code in _KEYS:
            return StorageRefused(f"it does not take the keys ({text})", "mend the access key and the secret key")
        if status in {401, 403}:
            remedy = f"allow these keys to read, write, list and delete in the bucket {self._bucket!r}"
            return StorageRefused(f"the keys may not do this to {path} ({text})", remedy)
        if status in {301, 307, 400}:
            return StorageRefused(text, "compare region and endpoint in LUDUS_STORAGE__URL with those of the bucket")
        return StorageUnavailable(text)


class _Body(io.RawIOBase):
    """An object's bytes as they arrive."""

    def __init__(self, body: Any, path: str, translated: Callable[[str], Any]) -> None:
        self._body = body
        self._path = path
        self._translated_errors = translated

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        with self._translated_errors(self._path):
            data = self._body.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def close(self) -> None:
        self._body.close()
        super().close()


def _md5(data: bytes) -> str:
    return b64encode(hashlib.md5(data, usedforsecurity=False).digest()).decode()
