"""Bits that flip in a worker's memory behind TLS: the real command trains on as if nothing had been."""

from __future__ import annotations

import json

import pytest

from dcnr_app.settings import FAILPOINT_VARIABLE
from tests.e2e.place import Place

pytestmark = pytest.mark.e2e


def test_demo_with_flipped_bits_gives_the_undisturbed_series(
    place: Place, prepared: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(
        FAILPOINT_VARIABLE, "transport.receive#worker-1:corrupt@40,transport.receive#worker-2:corrupt@90"
    )
    done = place.run(*place.demo(workers=2), "--json")
    assert done.code == 0, done.stderr
    undisturbed = json.loads((prepared.home.root.parent / "result.json").read_text())
    assert done.result["losses"] == undisturbed["losses"]
    assert done.stderr.count("frame_damaged") == 2


def test_failpoint_that_is_not_understood_starts_nothing(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(FAILPOINT_VARIABLE, "nowhere:kill")
    done = place.run(*place.demo(workers=1), "--json")
    assert done.code == 1
    assert "failpoint 'nowhere:kill' is not understood" in done.stderr
    assert place.n_commits() == 0
