"""The files of TLS, read once at the start: certificates and keys as the transports want them."""

import ssl
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    import grpc


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """TLS of a listening process: its certificate, and the clients that it accepts."""

    certificate: Path
    key: Path
    client_ca: Path | None = None
    """Given: clients must show a certificate that this authority signed."""

    def named(self) -> dict[str, str]:
        """Return the paths under the names of the settings."""
        files = {"tls_certificate": self.certificate, "tls_key": self.key, "tls_client_ca": self.client_ca}
        return {name: str(file.absolute()) for name, file in files.items() if file is not None}

    def check(self) -> None:
        """Raise ValueError with the file and its error, before a transport uses it."""
        for file in (self.certificate, self.client_ca):
            if file is not None:
                check_certificates(file)
        try:
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(self.certificate, self.key, self._no_pass_phrase)
        except ssl.SSLError as error:
            if error.reason == "KEY_VALUES_MISMATCH":
                raise ValueError(f"{self.key} is not the key of the certificate in {self.certificate}") from None
            raise ValueError(f"{self.key} holds no private key in PEM") from None
        except OSError as error:
            raise _unreadable(self.key, error) from None

    def _no_pass_phrase(self) -> NoReturn:
        raise ValueError(f"{self.key} is encrypted; Ludus cannot ask for a pass phrase: name a file without one")


def check_certificates(file: Path) -> None:
    """Raise ValueError where a file holds no certificate."""
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(file)
    except ssl.SSLError:
        raise ValueError(f"{file} holds no certificate in PEM") from None
    except OSError as error:
        raise _unreadable(file, error) from None


def _unreadable(file: Path, error: OSError) -> ValueError:
    return ValueError(f"{file} cannot be read ({error.strerror}); name a PEM file that this process may read")


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

    def credentials(self) -> "grpc.ServerCredentials":
        """Return the credentials of a gRPC server. With `client_ca`, clients must show a certificate that it signed."""
        import grpc  # noqa: PLC0415  the process above the embedded stack checks these files, and needs no gRPC

        return grpc.ssl_server_credentials(
            [(self.key, self.certificate)], self.client_ca, require_client_auth=self.client_ca is not None
        )
