"""Checkpoints whose hashes are right and whose contents are not what their network needs."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from dcnr_app.store.checkpoints import Checkpoint, load_checkpoint, write_checkpoint
from dcnr_app.store.manifest import NETWORK_FILE, TOKENIZER_FILE
from tests.cli.calling import Cli

State = dict[str, dict[str, Any]]


def rewrite(cli: Cli, change: Callable[[State], None], **facts: Any) -> str:
    """Write the newest checkpoint again with another state or facts; returns its id."""
    newest = cli("checkpoint", "ls", "--json").json[-1]
    loaded: Checkpoint = load_checkpoint(Path(newest["path"]))
    state = {name: dict(slots) for name, slots in loaded.state.items()}
    change(state)
    assets: Mapping[str, bytes] = {NETWORK_FILE: loaded.network, TOKENIZER_FILE: loaded.tokenizer}
    shutil.rmtree(newest["path"])
    write_checkpoint(cli.home, msgspec.structs.replace(loaded.manifest.facts, **facts), state, assets)
    return str(newest["id"])


def _lacks_a_parameter(state: State) -> None:
    del state["embed.weight"]


def _lacks_a_slot(state: State) -> None:
    del state["norm.gain"]["v"]


def _has_another_shape(state: State) -> None:
    state["norm.gain"]["m"] = np.zeros(17, np.float32)


def _has_a_foreign_one(state: State) -> None:
    state["other.weight"] = {"weight": np.zeros(2, np.float32)}


def _is_whole(state: State) -> None:
    """Change nothing."""


UNFIT = {
    "parameter": (_lacks_a_parameter, "it lacks embed.weight/weight, embed.weight/m"),
    "slot": (_lacks_a_slot, "it lacks norm.gain/v"),
    "shape": (_has_another_shape, "norm.gain/m has the shape (17,), its network needs (16,)"),
    "foreign": (_has_a_foreign_one, "its network has no other.weight/weight"),
}


@pytest.mark.parametrize(("change", "why"), UNFIT.values(), ids=UNFIT.keys())
def test_a_checkpoint_that_its_network_cannot_use_is_refused_and_passed_over(
    on_copy: Callable[[], Cli], change: Callable[[State], None], why: str
) -> None:
    cli = on_copy()
    name = rewrite(cli, change)
    result = cli("checkpoint", "verify", name, "--json")
    assert result.code == 1
    assert json.loads(result.out)["ok"] is False
    assert why in result.err
    assert cli("generate", name, "--tokens", "2").code == 1
    latest = cli("checkpoint", "verify", "latest", "--json")
    assert latest.json["step"] == 2
    assert f"passed over {name}: {why}" in latest.err
    assert cli("generate", "latest", "--tokens", "2").code == 0


def test_a_checkpoint_of_another_network_is_refused(on_copy: Callable[[], Cli]) -> None:
    cli = on_copy()
    name = rewrite(cli, _is_whole, network="0123456789abcdef")
    assert "the manifest says 0123456789abcdef" in cli("checkpoint", "verify", name).err


def test_resume_passes_over_a_checkpoint_without_a_loss_scale(on_copy: Callable[[], Cli]) -> None:
    cli = on_copy()
    name = rewrite(cli, _is_whole, loss_scale={})
    found = cli("session", "resume", "latest", "--workers", "0", "--json").json
    assert (found["resumed_from_step"], len(found["losses"])) == (2, 3)
    assert [item["checkpoint"] for item in found["passed_over"]] == [name]
    assert "loss_scale" in found["passed_over"][0]["why"]


def test_ls_shows_a_moment_that_no_calendar_has_as_unknown(on_copy: Callable[[], Cli]) -> None:
    cli = on_copy()
    rewrite(cli, _is_whole, created_ms=10**18)
    assert "unknown" in cli("checkpoint", "ls").out
    assert [entry["problem"] for entry in cli("checkpoint", "ls", "--json").json] == ["", "", ""]


def test_resume_passes_over_a_checkpoint_that_lacks_a_parameter(on_copy: Callable[[], Cli]) -> None:
    cli = on_copy()
    name = rewrite(cli, _lacks_a_parameter)
    found = cli("session", "resume", "latest", "--workers", "0", "--json").json
    assert (found["resumed_from_step"], len(found["losses"])) == (2, 3)
    assert [item["checkpoint"] for item in found["passed_over"]] == [name]
