"""Files of TLS that settings name: all that is needed is there, and can be read."""

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from server.kit.listening import GatewaySettings
from server.kit.settings import Settings
from tests.ludus.protocol.test_tls import CERTIFICATE, PRIVATE, SERVED, TLS


@pytest.mark.parametrize(
    ("files", "problem"),
    [
        ({"tls_ca": CERTIFICATE}, "tls_ca needs"),
        ({"tls_name": "ludus.example.com"}, "tls_name needs"),
        ({**SERVED, "tls_ca": TLS / "missing.pem"}, "missing.pem cannot be read"),
        ({**SERVED, "tls_ca": PRIVATE}, "localhost.key holds no certificate"),
    ],
)
def test_an_authority_of_collectors_that_is_of_no_use_is_refused(files: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValidationError, match=problem):
        GatewaySettings(**files)


def test_without_files_nothing_speaks_tls(tmp_path: Path) -> None:
    settings = Settings(home=tmp_path)

    assert settings.api.tls is None
    assert settings.gateway.tls is None
