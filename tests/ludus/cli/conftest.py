"""The command line against a real server."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from click.testing import CliRunner, Result

from ludus.cli import ludus
from tests.server.http.world import World

Invoke = Callable[..., Result]


@pytest.fixture
def cli(world: World) -> Invoke:
    """Run a command and return its result; a traceback is never an answer."""

    def invoke(*arguments: str, **options: Any) -> Result:
        result = CliRunner().invoke(ludus, arguments, env={"LUDUS_SERVER": world.server, "TZ": "UTC"}, **options)
        assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
        return result

    return invoke


def as_json(result: Result) -> Any:
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)
