"""The home's place and its folders, and where bundled files are found."""

from __future__ import annotations

import os
import stat
import sys
from pathlib import Path

import pytest

from dcnr_app.errors import StoreError, UserError
from dcnr_app.settings import Home, asset_path, environment_of, find_home, is_home_named

posix_only = pytest.mark.skipif(sys.platform == "win32", reason="folder modes are POSIX")


def test_home_is_where_the_variable_says(tmp_path: Path) -> None:
    home = find_home({"DCNR_HOME": str(tmp_path / "h")})
    assert home.root == tmp_path / "h"
    assert home.control == tmp_path / "h" / "control.sqlite"
    assert home.metrics == tmp_path / "h" / "metrics.sqlite"


def test_home_without_the_variable_is_the_users_data_folder() -> None:
    assert find_home({}).root.name == "dcnr-app"
    assert find_home({"DCNR_HOME": ""}) == find_home({})


def test_a_home_is_named_only_by_a_variable_that_says_something(tmp_path: Path) -> None:
    assert is_home_named({"DCNR_HOME": str(tmp_path)})
    assert not is_home_named({"DCNR_HOME": ""})
    assert not is_home_named({})


def test_a_child_process_works_in_the_home_that_it_is_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DCNR_HOME", "/somewhere/else")
    monkeypatch.setenv("KEPT", "yes")
    environment = environment_of(Home(tmp_path))
    assert find_home(environment).root == tmp_path
    assert environment["KEPT"] == "yes"


def test_relative_home_becomes_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert find_home({"DCNR_HOME": "here"}).root == tmp_path / "here"


def test_finding_a_home_creates_nothing(tmp_path: Path) -> None:
    home = find_home({"DCNR_HOME": str(tmp_path / "h")})
    assert not home.sessions.exists()
    assert list(tmp_path.iterdir()) == []


@posix_only
def test_ensure_makes_private_folders_under_any_umask(tmp_path: Path) -> None:
    home = Home(tmp_path / "a" / "h")
    before = os.umask(0)
    try:
        home.ensure()
    finally:
        os.umask(before)
    for folder in (home.root, home.tokenizers, home.datasets, home.sessions, home.networks):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    home.ensure()


def test_ensure_refuses_a_file_in_its_place(tmp_path: Path) -> None:
    (tmp_path / "h").write_text("mine")
    with pytest.raises(UserError, match="cannot be a folder"):
        Home(tmp_path / "h").ensure()
    assert (tmp_path / "h").read_text() == "mine"


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs a file system that refuses folders: /proc")
def test_ensure_says_why_a_folder_cannot_be_made() -> None:
    with pytest.raises(StoreError, match=r"cannot create /proc/self/dcnr(.|\n)*DCNR_HOME"):
        Home(Path("/proc/self/dcnr")).ensure()


def test_unknown_user_in_the_variable_is_refused() -> None:
    with pytest.raises(UserError, match="DCNR_HOME"):
        find_home({"DCNR_HOME": "~no-such-user-here/x"})


def test_assets_are_found_in_the_source_tree() -> None:
    assert asset_path("networks").is_dir()


@pytest.mark.parametrize("name", ["nothing-here.yaml", "../pyproject.toml", "/etc/passwd"])
def test_what_is_not_an_asset_is_refused(name: str) -> None:
    with pytest.raises(UserError, match="no bundled file"):
        asset_path(name)
