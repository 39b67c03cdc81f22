"""The files of TLS, of clients and servers: checked before a transport uses them, with our own words for mistakes."""

import ipaddress
import os
import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, NoReturn

from ludus.paths import AnyPath

if TYPE_CHECKING:
    import grpc

CA_VARIABLE: Final = "LUDUS_CA_FILE"
CERTIFICATE_VARIABLE: Final = "LUDUS_CLIENT_CERTIFICATE"
KEY_VARIABLE: Final = "LUDUS_CLIENT_KEY"


def named_by(variable: str) -> Path | None:
    """Return the file that a variable of the environment names."""
    text = os.environ.get(variable)
    return Path(text) if text else None


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches `host`."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def is_this_machine(address: str) -> bool:
    """Whether host:port is certainly an address that does not leave this machine."""
    return is_loopback(address.rpartition(":")[0].strip("[]")) or address.startswith("unix:")


@dataclass(frozen=True)
class ClientTls:
    """PEM files."""

    ca_file: AnyPath | None = None
    """The authority that servers' certificates are signed by; None: those that the system trusts."""
    certificate: AnyPath | None = None
    """The client's own, with its chain; with `key`."""
    key: AnyPath | None = None

    @classmethod
    def from_environment(cls) -> "ClientTls":
        """Return the files of LUDUS_CA_FILE, LUDUS_CLIENT_CERTIFICATE and LUDUS_CLIENT_KEY."""
        return cls(named_by(CA_VARIABLE), named_by(CERTIFICATE_VARIABLE), named_by(KEY_VARIABLE))

    def context(self) -> ssl.SSLContext | None:
        """Return the TLS context of an HTTP client; None: its own. Raises ValueError for a file that cannot be used."""
        if self == ClientTls():
            return None
        if self.certificate is None and self.key is not None:
            raise ValueError(f"the key {self.key} is of no use without its certificate ({CERTIFICATE_VARIABLE})")
        try:
            context = ssl.create_default_context(cafile=self.ca_file)
        except OSError as error:
            raise ValueError(f"the authority {self.ca_file} cannot be used ({_why(error)})") from error
        if self.certificate is not None:
            try:
                context.load_cert_chain(self.certificate, self.key)
            except OSError as error:
                files = f"{self.certificate} with the key {self.key or 'in the same file'}"
                raise ValueError(f"the certificate {files} cannot be used ({_why(error)})") from error
        return context

    def read(self) -> tuple[bytes | None, bytes | None, bytes | None]:
        """Return the authority, the key and the certificate, in gRPC's order. Raises ValueError as `context` does."""
        self.context()  # gRPC itself would say of wrong files that the handshake failed
        authority, key, certificate = (
            None if file is None else Path(file).read_bytes() for file in (self.ca_file, self.key, self.certificate)
        )
        return authority, key, certificate


def _why(error: OSError) -> str:
    """Say in the system's words why a file cannot be used; OpenSSL's are of no help to a person where it has none."""
    if not isinstance(error, ssl.SSLError):
        return error.strerror or str(error)
    mismatch = error.reason == "KEY_VALUES_MISMATCH"
    return "the key is that of another certificate" if mismatch else "it is not the expected kind of PEM file"


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

        def pass_phrase() -> NoReturn:
            raise ValueError(f"{self.key} is encrypted; Ludus cannot ask for a pass phrase: name a file without one")

        try:
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(self.certificate, self.key, pass_phrase)
        except ssl.SSLError as error:
            if error.reason == "KEY_VALUES_MISMATCH":
                raise ValueError(f"{self.key} is not the key of the certificate in {self.certificate}") from None
            raise ValueError(f"{self.key} holds no private key in PEM") from None
        except OSError as error:
            raise _unreadable(self.key, error) from None

    def context(self) -> ssl.SSLContext:
        """Return the TLS context of a server. With `client_ca`, clients must show a certificate that it signed."""
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=self.client_ca)
        context.load_cert_chain(self.certificate, self.key)
        if self.client_ca is not None:
            context.verify_mode = ssl.CERT_REQUIRED
        return context

    def credentials(self) -> "grpc.ServerCredentials":
        """Return the credentials of a gRPC server. With `client_ca`, clients must show a certificate that it signed."""
        import grpc  # noqa: PLC0415  the process above the embedded stack checks these files, and needs no gRPC

        client_ca = None if self.client_ca is None else self.client_ca.read_bytes()
        pair = (self.key.read_bytes(), self.certificate.read_bytes())
        return grpc.ssl_server_credentials([pair], client_ca, require_client_auth=client_ca is not None)


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
