"""The files of TLS, read once at the start: certificates and keys as the transports want them."""

from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """What a listening process shows, and whom it lets in."""

    certificate: Path
    key: Path
    client_ca: Path | None = None
    """Given: clients must show a certificate that this authority signed."""

    def named(self) -> dict[str, str]:
        """Return the paths under the names of the settings."""
        files = {"tls_certificate": self.certificate, "tls_key": self.key, "tls_client_ca": self.client_ca}
        return {name: str(file.absolute()) for name, file in files.items() if file is not None}


@dataclass(frozen=True, slots=True)
class TlsPair:
    """The contents of the files, for gRPC."""

    certificate: bytes
    key: bytes = field(repr=False)
    client_ca: bytes | None = None

    @classmethod
    def read(cls, files: TlsFiles) -> "TlsPair":
        """Read the files."""
        client_ca = None if files.client_ca is None else files.client_ca.read_bytes()
        return cls(files.certificate.read_bytes(), files.key.read_bytes(), client_ca)
