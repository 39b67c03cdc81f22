"""`simulators.record`: short forms, ranges, and that it is off by default."""

import pytest

from ludus.config.recording import RecordConfig
from server.config.resolution import resolve
from tests.server.config.checks import behavior, codes_of


@pytest.mark.parametrize(
    ("written", "share"), [(True, 1.0), (False, 0.0), (0.25, 0.25), (1, 1.0), ({}, 0.0), ({"share": 0.5}, 0.5)]
)
def test_true_false_and_a_number_are_shares(written: object, share: float) -> None:
    config = resolve(behavior() | {"simulators": {"record": written}})

    assert config.simulators.record == RecordConfig(share=share)
    assert type(config).model_validate(config.model_dump(mode="json")) == config


def test_recording_is_off_by_default_but_for_errors() -> None:
    record = resolve(behavior()).simulators.record

    assert (record.share, record.errors) == (0.0, True)


@pytest.mark.parametrize(
    ("record", "key"),
    [
        ({"share": 1.5}, "share"),
        ({"share": -0.1}, "share"),
        (2, "share"),
        ({"sessions": 0}, "sessions"),
        ({"max_seconds": 0}, "max_seconds"),
        ({"max_bytes": 1}, "max_bytes"),
        ({"total_bytes": 1}, "total_bytes"),
    ],
)
def test_a_value_out_of_range_is_refused(record: object, key: str) -> None:
    assert codes_of(behavior() | {"simulators": {"record": record}}) == {f"simulators.record.{key}": "out_of_range"}


@pytest.mark.parametrize("record", ["yes please", [True], {"shares": 1}])
def test_what_is_no_form_of_it_is_refused_with_its_path(record: object) -> None:
    (path,) = codes_of(behavior() | {"simulators": {"record": record}})

    assert path.startswith("simulators.record")
