"""`dcnr-app chaos`: what it refuses before it starts, and that its child is not for people."""

from __future__ import annotations

import pytest

from tests.cli.calling import Cli


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        (("--minutes", "0.1", "--every", "30"), "no room for a fault every 30 s"),
        (("--kinds", "earthquake"), "no kind of fault 'earthquake'"),
        (("--kinds", "stop"), "more than one silent fault in five"),
        (("--minutes", "nan"), "not a finite number"),
        (("--workers", "0"), "0 is not in the range"),
        (("--network", "no-such-network"), "there is no network 'no-such-network'"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_starts(
    cli: Cli, arguments: tuple[str, ...], what: str
) -> None:
    result = cli("chaos", *arguments)
    assert (result.code, result.out) == (2, "")
    assert what in result.err
    assert not cli.root.exists()
