"""Invite links as QR codes for a terminal."""

from __future__ import annotations

from dcnr_app.cluster.joining_codes import Invite, write_link
from dcnr_app.cluster.qr_code import qr_text

LINK = write_link(Invite(("192.168.1.5", "10.0.0.2", "fd00::1"), 47621, "ab" * 32, "A" * 22))


def modules(text: str) -> list[list[bool]]:
    """The dark modules that the block characters stand for, border included."""
    rows: list[list[bool]] = []
    for line in text.splitlines():
        rows.append([character in " ▄" for character in line])
        rows.append([character in " ▀" for character in line])
    return rows


def test_code_of_an_invite_fits_a_terminal_and_has_the_three_finder_patterns() -> None:
    text = qr_text(LINK)
    assert all(len(line) <= 80 for line in text.splitlines())
    assert len(text.splitlines()) <= 32
    rows = modules(text)
    size = len(rows[0]) - 4
    assert (size - 17) % 4 == 0
    finder = ["1111111", "1000001", "1011101", "1011101", "1011101", "1000001", "1111111"]
    for top, left in ((2, 2), (2, 2 + size - 7), (2 + size - 7, 2)):
        found = ["".join(str(int(dark)) for dark in rows[top + y][left : left + 7]) for y in range(7)]
        assert found == finder


def test_codes_of_different_links_differ() -> None:
    assert qr_text(LINK) != qr_text(LINK[:-1] + "B")
