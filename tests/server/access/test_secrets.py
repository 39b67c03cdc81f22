"""The texts of tokens."""

from server.access.secrets import digest_of, draw, parse, same


def test_a_token_names_its_row_and_only_its_text_has_the_secret() -> None:
    new = draw()

    assert new.text.startswith(f"ludus_{new.token_id.removeprefix('tok_')}_")
    assert parse(new.text) == (new.token_id, new.digest)
    secret = new.text.rpartition(new.token_id.removeprefix("tok_") + "_")[2]
    assert len(secret) == 43  # 256 bits in base64
    assert secret not in repr(new)
    assert new.digest == digest_of(secret) != secret


def test_no_two_tokens_are_alike() -> None:
    assert len({draw().digest for _ in range(100)}) == 100


def test_other_texts_are_no_tokens() -> None:
    text = draw().text
    for wrong in ("", "ludus", text[:-1], text + "x", text.upper(), text.replace("ludus", "sudul"), text + "\n"):
        assert parse(wrong) is None, wrong


def test_secrets_are_compared_whole() -> None:
    assert same("abc", "abc")
    assert not same("abc", "abx")
    assert not same("abc", "ab")
