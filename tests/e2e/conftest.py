"""The prepared home that every test here copies, and the runs that several tests compare with."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.place import Place, write_text

LONG = 60


@pytest.fixture(scope="session")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Place:
    """A home with a finished session of 30 steps on no workers: tokenizer and dataset are there."""
    root = tmp_path_factory.mktemp("prepared")
    place = Place(root, write_text(root / "text"))
    done = place.run(*place.demo(workers=0), "--json")
    assert (done.code, done.stderr) == (0, "")
    (root / "result.json").write_text(done.stdout)
    return place


@pytest.fixture
def place(prepared: Place, tmp_path: Path) -> Place:
    """A home of the test's own, with the prepared tokenizer and dataset and no session."""
    copy = Place(tmp_path, prepared.data)
    copy.home.ensure()
    for folder in ("tokenizers", "datasets"):
        shutil.copytree(prepared.home.root / folder, copy.home.root / folder, dirs_exist_ok=True)
    return copy


@pytest.fixture(scope="session")
def undisturbed(prepared: Place, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The result of LONG steps on no workers, with nothing in their way."""
    copy = Place(tmp_path_factory.mktemp("undisturbed"), prepared.data)
    done = copy.run(*copy.demo(workers=0, steps=LONG), "--json")
    assert (done.code, done.stderr) == (0, "")
    result: dict[str, Any] = done.result
    return result
