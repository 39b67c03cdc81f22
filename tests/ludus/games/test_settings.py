"""Where actions are computed is decided from what the run and this machine allow, and said with the reason."""

import asyncio
import logging
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest

from ludus.games.settings import collects_here, falls_back
from ludus.protocol import simulation_pb2 as pb
from ludus.protocol.options import COLLECTOR_SERVICE, REASON_METADATA
from ludus.sdk.errors import CannotConnect
from ludus.sdk.join import Target

NOWHERE = "127.0.0.1:1"


@pytest.fixture
def said(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    """What the module says: gRPC, too, logs something now and then."""
    caplog.set_level(logging.INFO, "ludus.games")
    with caplog.filtering(logging.Filter("ludus.games")):
        yield caplog


def ask(refusal: str | None) -> bool:
    """Decide for Unity games of a run whose gateway lets edge collectors wait, or refuses them."""

    def join(_: bytes, context: grpc.ServicerContext) -> bytes:
        if refusal is not None:
            context.set_trailing_metadata(((REASON_METADATA, refusal),))
            context.abort(grpc.StatusCode.FAILED_PRECONDITION, "there is no port")
        return pb.JoinResponse(wait=pb.Wait(reason="it opens", retry_after_seconds=0.1)).SerializeToString()

    server = grpc.server(ThreadPoolExecutor(1))
    handlers = {"Join": grpc.unary_unary_rpc_method_handler(join)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(COLLECTOR_SERVICE.strip("/"), handlers),))
    target = Target(f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}", "run", "")
    server.start()
    try:
        return asyncio.run(collects_here(target, "tests", None, bridged=True))
    finally:
        server.stop(0).wait()


def test_native_simulators_beside_the_server_are_served_by_the_worker(said: pytest.LogCaptureFixture) -> None:
    assert not asyncio.run(collects_here(Target(NOWHERE, "run", ""), "tests", None, bridged=False))

    (sentence,) = said.messages
    assert sentence.startswith("actions are computed by the worker: the server is on this machine")


def test_games_that_a_bridge_would_pass_on_are_served_here(said: pytest.LogCaptureFixture) -> None:
    assert ask(None)

    (sentence,) = said.messages
    assert sentence.startswith("actions are computed on this machine: no step is passed on by a bridge")


@pytest.mark.parametrize("refusal", ["no_places", "places_unavailable"])
def test_a_run_that_takes_no_edge_collectors_has_its_games_served_by_the_worker(
    said: pytest.LogCaptureFixture, refusal: str
) -> None:
    assert not ask(refusal)

    assert said.messages == ["actions are computed by the worker: there is no port"]


def test_another_refusal_ends_the_command() -> None:
    with pytest.raises(CannotConnect, match="there is no port"):
        ask("run_forbidden")


def test_what_was_asked_for_is_done_and_said(said: pytest.LogCaptureFixture) -> None:
    target = Target(NOWHERE, "run", "")

    assert asyncio.run(collects_here(target, "tests", "here", bridged=False))
    assert not asyncio.run(collects_here(target, "tests", "there", bridged=True))

    assert [sentence.partition(" (")[0] for sentence in said.messages] == [
        "actions are computed on this machine: --collect here",
        "actions are computed by the worker: --collect there",
    ]


def test_games_fall_back_only_where_nothing_else_was_asked_for_and_the_run_takes_none() -> None:
    refused = CannotConnect("places_unavailable", "there is no port")

    assert falls_back(refused, None)
    assert not falls_back(refused, "here")
    assert not falls_back(CannotConnect("unauthenticated", "no token"), None)
    assert not falls_back(None, None)


@pytest.mark.parametrize("missing", ["structlog", "onnxruntime"])
def test_an_installation_that_cannot_act_for_every_game_leaves_the_actions_to_the_worker(
    missing: str, monkeypatch: pytest.MonkeyPatch, said: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, missing, None)  # as if it were not installed
    assert not asyncio.run(collects_here(Target(NOWHERE, "run", ""), "tests", None, bridged=True))
    assert "the extras `collect` and `play`" in said.text
