"""Names of files after behaviors: a user's own names, wherever a file system takes them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ludus.protocol.spec import file_name
from server.config.resolution import resolve
from server.kit.artifacts.store import check_path
from server.kit.errors import InvalidConfig

ANNOUNCED = st.text(min_size=1, max_size=40).filter(str.isprintable)


@pytest.mark.parametrize("name", ["3DBall", "My Behavior", "Jäger 1", "猫", "100%", "a.b", "a=b", "A-1_b"])
def test_a_file_has_the_behaviors_own_name(name: str) -> None:
    assert file_name(name) == name


@pytest.mark.parametrize(
    ("name", "file"), [("Team/Red", "Team=2FRed"), (".a", "=2Ea"), ("a.", "a=2E"), ("C:", "C=3A"), ("a=2Fb", "a=3D2Fb")]
)
def test_what_a_file_system_refuses_is_replaced(name: str, file: str) -> None:
    assert file_name(name) == file


@given(ANNOUNCED)
def test_every_announced_name_can_be_stored(name: str) -> None:
    assert check_path(f"{file_name(name)}.onnx")


@given(ANNOUNCED, ANNOUNCED)
def test_no_two_behaviors_share_a_file(one: str, other: str) -> None:
    assert (file_name(one) == file_name(other)) is (one == other)


@given(ANNOUNCED)
def test_every_name_of_a_configuration_is_its_files(name: str) -> None:
    try:
        resolve({"behaviors": {name: {}}})
    except InvalidConfig:
        return
    assert file_name(name).replace("=3D", "=") == name or name.endswith(".")
