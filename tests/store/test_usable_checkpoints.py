"""Whole checkpoints of no use: facts from which nothing can go on, and what the asker cannot use."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from dcnr_app.errors import StoreError
from dcnr_app.settings import Home
from dcnr_app.store.checkpoints import load_checkpoint, verify_checkpoint, why_broken, write_checkpoint
from dcnr_app.store.manifest import Manifest
from dcnr_app.store.shelf import latest_checkpoint, list_checkpoints, resolve_checkpoint
from tests.store.checkpointing import ASSETS, SESSION, make_facts, make_state, never, write_step

OTHER = "s-20261130-120000-0001"


@pytest.fixture
def home(tmp_path: Path) -> Home:
    """A home with nothing in it."""
    return Home(tmp_path / "home")


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"loss_scale": {}}, "loss_scale"),
        ({"loss_scale": {"scale": 1.0}}, "loss_scale"),
        ({"loss_scale": {"scale": 0.0, "finite_steps": 1.0}}, "loss_scale"),
        ({"loss_scale": {"scale": 1.0, "finite_steps": -1.0}}, "loss_scale"),
        ({"n_applied": 11}, "11 updates in 10 steps"),
        ({"n_applied": -1}, "-1 updates"),
        ({"cursor_position": -5}, "cursor is at -5"),
    ],
)
def test_facts_from_which_nothing_can_go_on_are_refused_and_passed_over(
    home: Home, changes: dict[str, Any], reason: str
) -> None:
    older = write_step(home, 5)
    path = write_checkpoint(
        home,
        msgspec.structs.replace(make_facts(10), **changes),
        make_state(10),
        ASSETS,
        files=never(syncs=False),
    )
    for refuse in (verify_checkpoint, load_checkpoint):
        with pytest.raises(StoreError, match=r"manifest\.json is damaged") as caught:
            refuse(path)
        assert reason in caught.value.why
    found = latest_checkpoint(home)
    assert (found.path, len(found.passed_over)) == (older, 1)
    assert reason in list_checkpoints(home)[1].problem


def test_parameter_without_its_weight_is_refused(home: Home) -> None:
    state = {**make_state(10), "norm.gain": {"m": np.zeros(3, np.float32)}}
    path = write_checkpoint(home, make_facts(10), state, ASSETS, files=never(syncs=False))
    assert "'norm.gain' lacks its weight" in why_broken(path)


def test_latest_passes_over_what_its_asker_cannot_use(home: Home) -> None:
    paths = [write_step(home, step) for step in (10, 20, 30)]

    def why_unfit(path: Path, manifest: Manifest) -> str:
        assert path.name == f"step-{manifest.facts.step:08d}"
        return "too new" if manifest.facts.step > 10 else ""

    found = latest_checkpoint(home, SESSION, why_unfit)
    assert found.path == paths[0]
    assert [(item.id, item.why) for item in found.passed_over] == [
        (f"{SESSION}.30", "too new"),
        (f"{SESSION}.20", "too new"),
    ]
    assert resolve_checkpoint(home, "latest", why_unfit).path == paths[0]
    with pytest.raises(StoreError, match=r"none of 3 checkpoints verifies(.|\n)*never"):
        latest_checkpoint(home, SESSION, lambda *_: "never")


def test_checkpoint_of_a_broken_clock_is_not_the_latest_for_ever(home: Home) -> None:
    facts = msgspec.structs.replace(make_facts(50, OTHER), created_ms=10**18)
    write_checkpoint(home, facts, make_state(50), ASSETS, files=never(syncs=False))
    newer = write_step(home, 10)
    assert latest_checkpoint(home).path == newer
    assert [entry.problem for entry in list_checkpoints(home)] == ["", ""]
