import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from server.kit.http.errors import PageTokenInvalid
from server.kit.http.listing import _check, _text, decode_token, encode_token

Keysets = st.lists(
    st.one_of(st.text(max_size=200), st.integers(), st.floats(allow_nan=False), st.none()), min_size=1, max_size=3
)


@given(Keysets, st.text())
def test_a_token_brings_its_keyset_back(keyset: list[str | int | float | None], query: str) -> None:
    assert decode_token(encode_token(keyset, query), query) == tuple(keyset)


def test_a_row_with_the_longest_and_strangest_names_has_a_token() -> None:
    keyset = ("\x00" * 200, "\U0001f3ae" * 200, 1e300)

    assert decode_token(encode_token(keyset, ""), "") == keyset


def test_a_token_of_another_query_is_refused() -> None:
    with pytest.raises(PageTokenInvalid):
        decode_token(encode_token([1, "a"], "runs|state = RUNNING"), "runs|state = PAUSED")


@given(st.integers(min_value=0), st.characters(codec="ascii"))
@example(8, "+")
def test_an_edited_token_is_refused(position: int, character: str) -> None:
    token = encode_token([12.5, "run_1"], "runs")
    index = position % len(token)
    edited = token[:index] + character + token[index + 1 :]

    if edited != token:
        with pytest.raises(PageTokenInvalid):
            decode_token(edited, "runs")


@given(st.text(max_size=50))
def test_any_other_text_is_refused(text: str) -> None:
    with pytest.raises(PageTokenInvalid):
        decode_token(text, "runs")


@pytest.mark.parametrize("body", [b"nonsense", b"[1,", b"[" * 3000, b'{"a": 1}', b"[[1]]", b"[" + b"9" * 4400 + b"]"])
def test_a_token_that_somebody_has_made_up_is_refused_whatever_it_holds(body: bytes) -> None:
    with pytest.raises(PageTokenInvalid):
        decode_token(_text(_check(body, "runs") + body), "runs")
