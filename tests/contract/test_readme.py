"""proto/README.md says what the code does: codes, limits, time-outs, and every byte of its examples."""

import re
from pathlib import Path

import grpc
import numpy as np

from ludus import websocket
from ludus.collector.settings import CollectorSettings
from ludus.collector.visual_encoders import MINIMUM_SIZES
from ludus.protocol import contract, options, specs
from ludus.protocol import simulation_pb2 as pb
from ludus.protocol.codec import decode_actions, decode_step
from ludus.protocol.codes import CloseCode
from ludus.protocol.contract import read_join
from ludus.protocol.specs import BehaviorLayout, spec_from_message
from ludus.sdk.contract.kit import SCENARIOS
from server.gateway import errors as gateway_errors
from server.gateway import service as gateway_service
from server.gateway.errors import STATUS
from server.kit.errors import DatabaseUnavailable, LudusError, RunNotFound, TokenRefused
from server.kit.listening import GatewaySettings
from server.simulators.models import NoPlaces, PlacesUnavailable, RunClosed

FOLDER = Path(__file__).parents[2] / "proto"
README = (FOLDER / "README.md").read_text()


def section(title: str) -> str:
    _, _, rest = README.partition(f"\n## {title}\n")
    assert rest, title
    return rest.partition("\n## ")[0]


def rows(text: str) -> list[list[str]]:
    """Cells of all tables, headings left out."""
    table = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line.startswith("|")
    ]
    return [
        cells
        for cells, below in zip(table, [*table[1:], [""]], strict=True)
        if not set("".join(cells + below)) <= {"-"}
    ]


def test_every_close_code_is_explained_in_its_own_words() -> None:
    documented = {cells[0]: tuple(cells[1:]) for cells in rows(section("8. Close")) if cells[0].startswith("`")}

    assert documented == {f"`{code}`": ("yes" if code.rejoin else "no", code.sentence) for code in CloseCode}


def test_every_reason_of_a_failed_join_is_listed_with_its_status() -> None:
    refusals = [
        error
        for error in vars(gateway_errors).values()
        if isinstance(error, type) and issubclass(error, LudusError) and error.__module__ == gateway_errors.__name__
    ]
    expected = {
        error.code: STATUS[error.kind].name
        for error in [*refusals, NoPlaces, PlacesUnavailable, RunClosed, RunNotFound, TokenRefused, DatabaseUnavailable]
    }
    expected |= {code: contract.CallRefused(code, "").status.name for code in ("bad_join", "protocol_version")}
    expected[websocket.FOREIGN_ORIGIN] = "PERMISSION_DENIED"

    table = rows(section("3. Joining").partition("**Errors.**")[2])
    documented = {cells[0].strip("`"): cells[1] for cells in table if cells[0].startswith("`") and "†" not in cells[0]}

    assert documented == {**expected, "internal_error": "INTERNAL"}


def test_each_scenario_of_the_kit_names_a_section_of_the_page() -> None:
    for scenario in SCENARIOS:
        assert section(scenario.section)
        assert not scenario.rule.endswith(".")


def test_the_smallest_pictures_of_each_encoder_are_those_of_the_code() -> None:
    text = " ".join(section("5. Specs and tensors").split())

    for encoder, minimum in MINIMUM_SIZES.items():
        assert f"{minimum} for `{encoder}`" in text


def test_limits_are_those_of_the_code() -> None:
    limits = {cells[0]: cells[1] for cells in rows(section("11. Limits and versions"))}

    assert str(CollectorSettings(run_id="", attempt=1, seed=0).max_message_bytes) in limits["message on a stream"]
    assert str(contract.MAX_JOIN_BYTES) in limits["`JoinRequest`"]
    assert limits["behaviors of a simulator"].startswith(f"{specs.MAX_BEHAVIORS},")
    assert limits["observations of a behavior"] == str(specs.MAX_OBSERVATIONS)
    assert limits["dimensions of an observation"].startswith(f"1 to {specs.MAX_DIMENSIONS},")
    assert limits["elements of an observation"] == str(specs.MAX_ELEMENTS)
    assert limits["continuous actions"] == str(specs.MAX_CONTINUOUS)
    assert limits["discrete branches"].startswith(f"{specs.MAX_BRANCHES},")
    assert f"at most {specs.MAX_CHOICES} choices" in limits["discrete branches"]
    assert limits["agents of a simulator, per behavior"].startswith(f"{contract.MAX_AGENTS} ")
    assert limits["name of a behavior, key of a stat"].startswith(f"1 to {specs.MAX_NAME_BYTES} ")
    assert limits["stats of a step"] == str(specs.MAX_STATS)
    assert limits["steps before the first answer"].startswith(f"{contract.MAX_UNADMITTED_STEPS} ")


def test_the_comments_of_the_fields_have_the_limits_of_the_code() -> None:
    comments: dict[str, str] = {}
    message = comment = ""
    for line in (FOLDER / "ludus" / "v1" / "simulation.proto").read_text().splitlines():
        if line.startswith("message "):
            message = line.split()[1]
        if line.lstrip().startswith("//"):
            comment += line.strip(" /") + " "
            continue
        if field := re.fullmatch(r"\s+(?:repeated |optional )?\w+ (\w+) = \d+;", line):
            comments[f"{message}.{field[1]}"] = comment
        comment = ""
    limit = re.compile(r"\b(?:at most|\d+ to) (\d+)", re.IGNORECASE)

    assert {field: int(found[1]) for field, text in comments.items() if (found := limit.search(text))} == {
        "JoinRequest.run": contract.MAX_RUN,
        "JoinRequest.session_id": 64,
        "JoinRequest.label": contract.MAX_LABEL,
        "JoinRequest.client": contract.MAX_CLIENT,
        "JoinRequest.max_wait_seconds": contract.MAX_WAIT_SECONDS,
        "ReportRequest.code": 64,
        "ReportRequest.sentence": contract.MAX_SENTENCE,
        "Hello.behaviors": specs.MAX_BEHAVIORS,
        "BehaviorSpec.name": specs.MAX_NAME_BYTES,
        "BehaviorSpec.observations": specs.MAX_OBSERVATIONS,
        "BehaviorSpec.game_layout": specs.MAX_GAME_LAYOUT,
        "ObservationSpec.shape": specs.MAX_DIMENSIONS,
        "ActionSpec.continuous_size": specs.MAX_CONTINUOUS,
        "ActionSpec.discrete_branches": specs.MAX_BRANCHES,
        "Step.stats": specs.MAX_STATS,
        "Stat.key": specs.MAX_NAME_BYTES,
        "Saved.position": contract.MAX_POSITION_BYTES >> 20,
    }
    assert "may be 0" in comments["ObservationSpec.shape"]  # as the worked Announce, which is read below


def test_times_are_those_of_the_code() -> None:
    times = section("9. Time-outs and keepalive")
    settings = CollectorSettings(run_id="", attempt=1, seed=0)

    assert f"| reaching a collector's address | {options.DIRECT_SECONDS:g} s |" in times
    assert f"`Hello` | {contract.HELLO_SECONDS:g} s |" in times
    assert f"({settings.startup_timeout:g} s; may be off)" in times
    assert f"({settings.step_timeout:g} s unless configured)" in times
    assert f"nothing for {options.KEEPALIVE_SECONDS} s sends a ping" in times
    assert f"unanswered for\n{options.KEEPALIVE_TIMEOUT_SECONDS} s" in times
    assert f"more often than every {options.MIN_PING_SECONDS} s" in times
    assert f"port {GatewaySettings().port} unless" in README


def example(name: str) -> bytes:
    """Read the bytes of an example: everything on the left of its comments."""
    found = re.search(rf"\*\*{name}\*\*:.*?```text\n(.*?)```", section("13. Worked examples"), re.DOTALL)
    assert found is not None
    return bytes.fromhex("".join(line.strip().partition("   ")[0] for line in found[1].splitlines()))


def test_the_worked_session_is_what_the_codec_reads() -> None:
    hello = pb.ConnectRequest.FromString(example("Hello")).hello
    welcome = pb.ConnectResponse.FromString(example("Welcome")).welcome
    spec = spec_from_message(hello.behaviors[0])
    layouts = {spec.name: BehaviorLayout(spec)}

    (first,) = decode_step(pb.ConnectRequest.FromString(example("Step 1")).step, layouts)
    (answer,) = decode_actions(pb.ConnectResponse.FromString(example("Actions")).actions, layouts)
    (second,) = decode_step(pb.ConnectRequest.FromString(example("Step 2")).step, layouts)
    close = pb.ConnectResponse.FromString(example("Close")).close

    assert (hello.ticket, hello.protocol_version, hello.session_id) == ("t", 1, "i")
    assert (welcome.seed, welcome.step_timeout_seconds) == (45, 60)
    assert first.decisions is not None
    np.testing.assert_array_equal(first.decisions.observations[0], [[0.5, 1], [0.25, -1]])
    assert answer.discrete.tolist() == [[2], [0]]
    assert second.decisions is not None
    assert second.decisions.rewards.tolist() == [0.5, 0]
    assert second.terminals is not None
    assert second.terminals.agent_ids.tolist() == [1]
    assert not second.terminals.truncated.any()
    assert (close.code, close.rejoin) == (CloseCode.RUN_FINISHED, False)


def test_the_worked_reset_and_what_goes_beside_it_are_what_the_codec_reads() -> None:
    spec = spec_from_message(pb.ConnectRequest.FromString(example("Hello")).hello.behaviors[0])
    reset = pb.ConnectResponse.FromString(example("Reset")).reset
    step = pb.ConnectRequest.FromString(example("Step 3")).step
    ((_, decisions, terminals),) = decode_step(step, {spec.name: BehaviorLayout(spec)})
    wait = pb.ConnectResponse.FromString(example("Wait")).wait
    blind = spec_from_message(pb.ConnectRequest.FromString(example("Announce")).announce.behaviors[0])

    assert (reset.reset_id, dict(reset.environment_parameters)) == (1, {"size": 3, "wind": 0})
    assert (step.step_id, step.reset_id, terminals) == (3, 1, None)
    assert decisions is not None
    np.testing.assert_array_equal(decisions.observations[0], [[0.25, 1]])
    assert [(stat.key, stat.value, stat.aggregation) for stat in step.stats] == [("Caught", 2, pb.AGGREGATION_SUM)]
    assert (wait.reason, wait.retry_after_seconds) == ("paused", 0)
    assert (blind.name, blind.observations[0].shape, blind.actions.continuous_size) == ("Moth", (0,), 1)


def test_the_example_with_a_picture_and_mixed_actions_is_what_the_codec_reads() -> None:
    hello = pb.ConnectRequest.FromString(example("Hello with a picture")).hello
    spec = spec_from_message(hello.behaviors[0])
    layouts = {spec.name: BehaviorLayout(spec)}
    step = pb.ConnectRequest.FromString(example("Step with a picture")).step

    ((_, decisions, _),) = decode_step(step, layouts)
    (answer,) = decode_actions(pb.ConnectResponse.FromString(example("Actions of both kinds")).actions, layouts)

    assert decisions is not None
    assert decisions.action_masks is not None
    picture, speed = decisions.observations
    assert (picture.shape, picture.dtype, picture.max()) == ((1, 1, 5, 5), np.uint8, 255)
    np.testing.assert_array_equal(speed, [[0.5, -1.0]])
    np.testing.assert_array_equal(decisions.action_masks, [[True, False]])
    assert step.game_seconds == 0.125
    assert (answer.continuous.tolist(), answer.discrete.tolist()) == ([[0.5, -0.25]], [[0]])


def test_the_examples_are_written_as_protobuf_writes_them() -> None:
    for name, message in [
        ("Hello", pb.ConnectRequest),
        ("Welcome", pb.ConnectResponse),
        ("Step 1", pb.ConnectRequest),
        ("Actions", pb.ConnectResponse),
        ("Step 2", pb.ConnectRequest),
        ("Reset", pb.ConnectResponse),
        ("Step 3", pb.ConnectRequest),
        ("Wait", pb.ConnectResponse),
        ("Announce", pb.ConnectRequest),
        ("Close", pb.ConnectResponse),
        ("Hello with a picture", pb.ConnectRequest),
        ("Step with a picture", pb.ConnectRequest),
        ("Actions of both kinds", pb.ConnectResponse),
    ]:
        assert message.FromString(example(name)).SerializeToString(deterministic=True) == example(name)


def test_the_close_codes_of_websockets_are_those_of_the_code() -> None:
    table = rows(section("15. WebSockets"))
    documented = {cells[0] for cells in table if len(cells) == 3}
    numbers = {int(row[at]): row[at + 1] for row in table if len(row) == 4 for at in (0, 2) if row[at].isdigit()}

    assert {str(websocket.DONE), str(websocket.AWAY), f"{websocket.FAILED} + n"} <= documented
    assert numbers.items() <= {status.value[0]: status.name for status in grpc.StatusCode}.items()
    used = {*STATUS.values(), *contract._STATUSES.values(), grpc.StatusCode.UNIMPLEMENTED, grpc.StatusCode.INTERNAL}
    assert {status.name for status in used} <= set(numbers.values())
    text = section("15. WebSockets")
    assert f"`{websocket.SUBPROTOCOL}`" in text
    assert f"within {contract.HELLO_SECONDS:g} seconds" in text
    assert f"at most {websocket.MOST_METADATA_BYTES} characters" in text
    assert f"pings every {options.KEEPALIVE_SECONDS} s" in text


def test_the_exchange_over_websockets_is_what_the_codec_reads() -> None:
    messages = list[bytes]()
    for line in section("15. WebSockets").partition("**A whole exchange**")[2].splitlines():
        matched = re.match(r"([<>]?) +((?:[0-9a-f]{2} ?)+)(?:  |$)", line)
        if matched and matched[1]:
            messages.append(b"")
        if matched:
            messages[-1] += bytes.fromhex(matched[2])
    request, assigned, waiting = messages
    join = read_join(request)
    assignment = pb.JoinResponse.FromString(assigned).assignment
    wait = pb.JoinResponse.FromString(waiting).wait

    assert (join.run, join.session_id, join.client, join.max_wait_seconds) == ("catch", "i", "c/1", 30)
    assert (assignment.address, assignment.ticket, assignment.run_id) == ("127.0.0.1:7100", "t", "r-1")
    assert (assignment.ticket_valid_seconds, assignment.simulator_number) == (120, 3)
    assert (wait.reason, wait.retry_after_seconds) == ("queued", 0.5)
    assert [join.SerializeToString(), pb.JoinResponse(wait=wait).SerializeToString()] == [request, waiting]
    assert pb.JoinResponse(assignment=assignment).SerializeToString() == assigned


def test_the_metadata_of_unity_players_are_all_listed() -> None:
    named = {name for name in vars(options) if name.endswith("_METADATA")} - {
        "REASON_METADATA",
        "STATE_METADATA",
        "WAITS_METADATA",
    }
    table = rows(section("14. Bridges of Unity players"))
    documented = {cells[0].strip("`") for cells in table if cells[0].startswith("`")}

    assert documented == {vars(options)[name] for name in named}
    assert options.EXCHANGE in section("14. Bridges of Unity players")
    assert f"no call for {gateway_service.IDLE_SECONDS / 60:.0f} minutes" in README
