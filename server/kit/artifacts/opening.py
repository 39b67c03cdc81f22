"""The store that the settings name."""

from server.kit.artifacts.address import S3Address
from server.kit.artifacts.folder import FolderStore
from server.kit.artifacts.store import ArtifactStore
from server.kit.settings import StorageSettings


def open_store(settings: StorageSettings) -> ArtifactStore:
    """Return the artifact store of a deployment. Nothing is connected before it is used."""
    if settings.url is None:
        return FolderStore(settings.root)
    from server.kit.artifacts.s3 import S3Store  # noqa: PLC0415  # boto3 takes a quarter of a second to import

    return S3Store(
        S3Address.parse(settings.url),
        settings.access_key.get_secret_value() if settings.access_key else None,
        settings.secret_key.get_secret_value() if settings.secret_key else None,
        timeout_seconds=settings.timeout_seconds,
        tries=settings.tries,
        public_endpoint=settings.public_endpoint,
        redirect_bytes=settings.redirect_bytes,
    )
