"""Codes and invites: unique, one use, three tries, an end; links and addresses as people type them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dcnr_app.cluster.joining_codes import (
    CODE_LIFE_MS,
    INVITE_LIFE_MS,
    MAX_LIVE_CODES,
    MAX_LIVE_INVITES,
    CodeBook,
    Invite,
    JoiningCode,
    code_added,
    code_finder,
    found,
    invite_added,
    invite_finder,
    read_code,
    read_link,
    read_target,
    tidied,
    tried_wrong,
    used,
    write_link,
)
from dcnr_app.errors import RefusedError, UserError

TOKEN = "A" * 22


def full_book() -> tuple[CodeBook, list[JoiningCode]]:
    book, codes = CodeBook(), []
    for number in range(MAX_LIVE_CODES):
        book, code = code_added(book, number, 0)
        codes.append(code)
    return book, codes


def test_live_codes_are_unique_and_found_by_their_first_digit() -> None:
    book, codes = full_book()
    assert len({code.finder for code in codes}) == MAX_LIVE_CODES
    for code in codes:
        assert read_code(code.secret) == code.secret
        assert found(book, code_finder(code.secret), 1) == code


def test_too_many_live_codes_are_refused_until_one_is_spent() -> None:
    book, codes = full_book()
    with pytest.raises(RefusedError, match="8 codes are waiting"):
        code_added(book, 1, 0)
    code_added(used(book, codes[0]), 1, 0)
    code_added(book, 1, CODE_LIFE_MS)


def test_all_five_secret_digits_come_from_the_random_number() -> None:
    assert code_added(CodeBook(), 12345, 0)[1].secret[1:] == "12-345"
    assert code_added(CodeBook(), 7, 0)[1].secret[1:] == "00-007"


def test_code_expires_exactly_at_its_time() -> None:
    book, code = code_added(CodeBook(), 1, 1000)
    assert found(book, code.finder, 1000 + CODE_LIFE_MS - 1) == code
    with pytest.raises(RefusedError, match="the code has expired"):
        found(book, code.finder, 1000 + CODE_LIFE_MS)


def test_third_wrong_try_burns_the_code() -> None:
    book, code = code_added(CodeBook(), 1, 0)
    for left in (2, 1, 0):
        book, code = tried_wrong(book, found(book, code.finder, 0))
        assert code.tries_left == left
    with pytest.raises(RefusedError, match="burnt") as told:
        found(book, code.finder, 0)
    assert "dcnr-app invite" in told.value.fix


def test_used_code_says_so_and_a_new_one_takes_another_slot() -> None:
    book, code = code_added(CodeBook(), 1, 0)
    book = used(book, code)
    with pytest.raises(RefusedError, match="used already"):
        found(book, code.finder, 0)
    _, fresh = code_added(book, 1, 0)
    assert fresh.finder != code.finder


def test_secrets_of_spent_codes_are_gone_and_few_are_remembered() -> None:
    book = CodeBook()
    for number in range(100):
        book, code = code_added(book, number, 0)
        book = used(book, code)
    book = tidied(book, 0)
    assert len(book.codes) == 32
    assert {code.secret for code in book.codes} == {""}
    burnt, code = code_added(CodeBook(), 1, 0)
    for _ in range(3):
        burnt, code = tried_wrong(burnt, code if code.state != "live" else found(burnt, code.finder, 0))
    assert {entry.secret for entry in burnt.codes} == {""}


def test_unknown_code_is_a_friendly_refusal() -> None:
    with pytest.raises(RefusedError, match="the code is not known here") as told:
        found(CodeBook(), "7", 0)
    assert "get a new one" in told.value.fix
    with pytest.raises(RefusedError, match="the invite is not known here"):
        found(CodeBook(), invite_finder(TOKEN), 0)


def test_invite_is_found_by_a_hash_that_gives_nothing_of_its_token_away() -> None:
    book, invite = invite_added(CodeBook(), TOKEN, 0)
    assert found(book, invite_finder(TOKEN), INVITE_LIFE_MS - 1).secret == TOKEN
    assert invite.finder not in TOKEN
    assert invite_finder("B" * 22) != invite.finder
    with pytest.raises(RefusedError, match="the invite has expired"):
        found(book, invite.finder, INVITE_LIFE_MS)


def test_too_many_live_invites_are_refused() -> None:
    book = CodeBook()
    for number in range(MAX_LIVE_INVITES):
        book, _ = invite_added(book, f"{number:022d}", 0)
    with pytest.raises(RefusedError, match="64 invites"):
        invite_added(book, TOKEN, 0)


def test_secrets_are_in_no_repr() -> None:
    book, code = code_added(CodeBook(), 98765, 0)
    assert "98-765" not in repr(code) + repr(book)


@pytest.mark.parametrize("typed", ["123-456", " 123456 ", "123 456"])
def test_code_is_read_as_people_type_it(typed: str) -> None:
    assert read_code(typed) == "123-456"


@pytest.mark.parametrize("typed", ["", "12-3456", "123-45", "abc-def", "123-4567", "١٢٣-٤٥٦", "123\n456"])
def test_what_is_no_code_is_refused(typed: str) -> None:
    with pytest.raises(UserError, match="is not a code"):
        read_code(typed)


_HOSTS = st.sampled_from(["192.168.1.5", "desk.local", "fd00::1", "fe80::1%eth0", "a-b"])


@given(
    st.lists(_HOSTS, min_size=1, max_size=5),
    st.integers(1, 65535),
    st.binary(min_size=32, max_size=32),
    st.from_regex(r"[A-Za-z0-9_-]{22}", fullmatch=True),
)
def test_link_says_again_what_it_was_made_from(
    hosts: list[str], port: int, digest: bytes, token: str
) -> None:
    invite = Invite(tuple(hosts), port, digest.hex(), token)
    link = write_link(invite)
    assert read_link(f" {link}\n") == invite
    assert token not in link.partition("#")[0]


def test_link_has_the_documented_form() -> None:
    link = write_link(Invite(("10.0.0.1", "fd00::1"), 47621, "ab" * 32, TOKEN))
    assert link == f"dcnr://10.0.0.1,[fd00::1]:47621/#{'ab' * 32}.{TOKEN}"


GOOD = f"dcnr://10.0.0.1:47621/#{'ab' * 32}.{TOKEN}"


@pytest.mark.parametrize(
    ("link", "wanted"),
    [
        ("", "is not an invite"),
        (GOOD.replace("dcnr", "https"), "is not an invite"),
        (GOOD[:-1], "not whole"),
        (GOOD.partition("#")[0], "not whole"),
        (GOOD.replace("ab", "zz"), "not whole"),
        (GOOD.replace("10.0.0.1", ""), "names no machine"),
        (GOOD.replace("10.0.0.1", "a b"), "names no machine"),
        (GOOD.replace("10.0.0.1", "evil@host"), "names no machine"),
        (GOOD.replace("47621", "0"), "is not a port"),
        (GOOD.replace("47621", "99999"), "is not a port"),
        (GOOD + "x" * 5000, "is not an invite"),
    ],
)
def test_broken_link_is_refused_with_what_is_wrong(link: str, wanted: str) -> None:
    with pytest.raises(UserError, match=wanted):
        read_link(link)


@given(st.text(max_size=80))
def test_any_text_as_a_link_is_read_or_refused(text: str) -> None:
    try:
        read_link("dcnr://" + text)
    except UserError:
        return
    raise AssertionError("a random text was taken for an invite")


@pytest.mark.parametrize(
    ("typed", "host", "port"),
    [
        ("desk", "desk", 9),
        ("192.168.1.5:80", "192.168.1.5", 80),
        ("fd00::1", "fd00::1", 9),
        ("[fd00::1]:80", "fd00::1", 80),
        ("[fe80::1%eth0]", "fe80::1%eth0", 9),
        (" desk.local:1 ", "desk.local", 1),
    ],
)
def test_addresses_are_read_as_people_type_them(typed: str, host: str, port: int) -> None:
    assert read_target(typed, 9) == (host, port)


@pytest.mark.parametrize(
    "typed", ["", ":80", "a b", "desk:0", "desk:65536", "desk:x", "http://desk/", "[]:1"]
)
def test_what_is_no_address_is_refused(typed: str) -> None:
    with pytest.raises(UserError):
        read_target(typed, 9)
