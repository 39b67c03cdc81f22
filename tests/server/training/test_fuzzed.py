"""Whatever the document, it resolves or is refused with problems that point at it; nothing else happens."""

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from server.errors import InvalidConfig
from server.training.config import RunConfig, apply_overrides, resolve
from server.training.foreign import KEYS, SECTIONS
from server.training.problems import CODES
from server.training.reference import PATHS

LEGAL = {key for section in PATHS for key in section.model_fields}
FOREIGN = {key for keys in (*KEYS.values(), *SECTIONS.values(), SECTIONS) for key in keys}
INNER = {"sampler_type", "sampler_parameters", "curriculum", "value", "demo_path"}
KEY = st.sampled_from(sorted(LEGAL | FOREIGN | INNER)) | st.text(max_size=4)
LEAF = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.sampled_from(["ppo", "sac", "linear", "constant", "3e-4", "uniform", "cpu", "false", "", "nan"])
    | st.text(max_size=4)
)
VALUE = st.recursive(
    LEAF, lambda inner: st.lists(inner, max_size=2) | st.dictionaries(KEY, inner, max_size=5), max_leaves=15
)
SECTION = st.dictionaries(KEY, VALUE, max_size=6)
BEHAVIOR = st.fixed_dictionaries(
    {},
    optional={
        "trainer_type": VALUE,
        "hyperparameters": SECTION,
        "network_settings": SECTION,
        "reward_signals": SECTION,
        "max_steps": VALUE,
        "keep_checkpoints": LEAF,
        "even_checkpoints": LEAF,
        "self_play": VALUE,
    },
)
DOCUMENT = st.dictionaries(KEY, VALUE, max_size=4) | st.fixed_dictionaries(
    {"behaviors": st.dictionaries(st.text(max_size=5), BEHAVIOR | VALUE, max_size=3)},
    optional={"default_settings": BEHAVIOR | VALUE, "environment_parameters": VALUE, "env_settings": SECTION},
)


@settings(deadline=None, max_examples=300)
@given(DOCUMENT, st.dictionaries(KEY | st.just("behaviors.A.max_steps"), VALUE, max_size=2))
def test_any_document_is_resolved_or_refused(document: dict[str, Any], overrides: dict[str, Any]) -> None:
    problems = []
    try:
        config = resolve(apply_overrides(document, overrides))
    except InvalidConfig as error:
        problems = list(error.problems)
    else:
        assert RunConfig.model_validate(config.model_dump(mode="json")) == config

    assert {problem.code for problem in problems} <= CODES.keys()
    assert len({(problem.path, problem.message) for problem in problems}) == len(problems)
    assert all(problem.message and len(problem.message) < 1000 for problem in problems)
