"""Files are named as text or as paths, wherever the client and the SDK take one."""

import inspect
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest

import ludus.demonstrations
import ludus.mlagents.results.folder
import ludus.play.model
import ludus.schemas
import ludus.sdk
from ludus.client import Client
from ludus.demonstrations import Recorder, read, write
from ludus.demonstrations.recorded import RecordedSimulation
from ludus.mlagents.results.folder import Folder
from ludus.play.model import ModelPlayer
from ludus.protocol.tls import ClientTls
from ludus.sdk.join import Target
from tests.ludus.demonstrations.shown import assert_equal, make_demonstration
from tests.toys.catch import Catch


def public() -> Iterator[Callable[..., Any]]:
    """Everything that users call with files."""
    with Client("http://127.0.0.1:1") as client:
        kinds = {Client, *(type(resource) for name, resource in vars(client).items() if not name.startswith("_"))}
    assert len(kinds) > 10, "the client is composed of its resources"
    for kind in sorted(kinds, key=lambda kind: kind.__qualname__):
        yield from (method for name, method in inspect.getmembers(kind, inspect.isfunction) if name[0] != "_")
    yield from (each for module in (ludus.demonstrations, ludus.sdk) for each in _functions(module))
    yield from (kind.__init__ for kind in (RecordedSimulation, Recorder, ModelPlayer, Folder, Target, ClientTls))


def _functions(module: Any) -> Iterator[Callable[..., Any]]:
    return (each for name in module.__all__ if inspect.isfunction(each := getattr(module, name)))


@pytest.mark.parametrize("function", list(public()), ids=lambda function: function.__qualname__)
def test_no_parameter_takes_paths_alone(function: Callable[..., Any]) -> None:
    # Resources of the API are imported for types only, where the process may do without them.
    for name, hint in get_type_hints(function, localns=vars(ludus.schemas)).items():
        kinds = get_args(hint) or (hint,)
        assert name == "return" or Path not in kinds or str in kinds, name


def test_a_recording_goes_to_the_server_and_back_by_names_of_files(client: Client, tmp_path: Path) -> None:
    shown, copy = make_demonstration(), tmp_path / "new" / "copy.npz"
    write(shown, str(tmp_path / "shown.npz"))

    stored = client.demonstrations.upload(str(tmp_path / "shown.npz"))

    assert client.demonstrations.download(stored.id, str(copy)) == copy
    assert_equal(read(str(copy)), shown)


def test_what_writes_files_takes_their_names(tmp_path: Path) -> None:
    assert RecordedSimulation(Catch(), str(tmp_path / "catch.npz")).behaviors == Catch.behaviors
    Recorder(str(tmp_path / "catch.npz")).close()
    assert Folder(str(tmp_path)).logs == tmp_path / "run_logs"


def test_tls_files_are_read_by_their_names() -> None:
    certificate = Path(__file__).parents[1] / "data" / "tls" / "localhost.pem"

    assert ClientTls(ca_file=str(certificate)).read()[0] == certificate.read_bytes()
