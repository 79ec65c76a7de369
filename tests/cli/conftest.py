"""Homes and a way to call the command line in this process."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.calling import Cli, build_home


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home with a tokenizer, a dataset and a finished session of 3 steps. Only read it."""
    folder = tmp_path_factory.mktemp("finished")
    build_home(folder)
    return folder / "home"


@pytest.fixture
def cli(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Cli:
    """The command line on an empty home that does not exist yet."""
    return Cli(monkeypatch, capsys, tmp_path / "home")


@pytest.fixture
def on_finished(cli: Cli, finished: Path) -> Cli:
    """The command line on the finished home; for commands that only read."""
    return cli.on(finished)


@pytest.fixture
def on_copy(cli: Cli, finished: Path, tmp_path: Path) -> Callable[[], Cli]:
    """The command line on a copy of the finished home, which may be changed."""

    def make() -> Cli:
        return cli.on(shutil.copytree(finished, tmp_path / "copy"))

    return make
