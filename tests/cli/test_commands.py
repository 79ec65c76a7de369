from __future__ import annotations

import importlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from dcnr_app.cli.main import COMMANDS
from tests.cli.calling import Cli

HEAVY = ("numpy", "grpc", "rich", "tokenizers", "tiktoken", "sqlite3", "yaml", "psutil")


def leaves() -> Iterator[tuple[str, click.Command]]:
    for name, (module, _) in COMMANDS.items():
        command = importlib.import_module(f"dcnr_app.cli.{module}").command
        yield name, command
        if isinstance(command, click.Group):
            for sub_name, sub in command.commands.items():
                yield f"{name} {sub_name}", sub


@pytest.mark.parametrize(
    ("path", "command"), list(leaves()), ids=lambda value: value if isinstance(value, str) else ""
)
def test_every_command_says_what_it_does_and_shows_an_example(
    path: str, command: click.Command, cli: Cli
) -> None:
    result = cli(*path.split(), "--help")
    assert result.code == 0
    assert command.help
    assert f"Example: dcnr-app {path.split()[0]}" in result.out
    assert not cli.root.exists()


def test_every_command_bears_its_name() -> None:
    for path, command in leaves():
        assert command.name == path.split()[-1]


def run_python(*arguments: str, home: Path) -> subprocess.CompletedProcess[bytes]:
    environment = {**os.environ, "DCNR_HOME": str(home), "LC_ALL": "C", "PYTHONIOENCODING": "ascii"}
    return subprocess.run(
        [sys.executable, *arguments], capture_output=True, env=environment, timeout=50, check=False
    )


def test_help_imports_no_heavy_library(tmp_path: Path) -> None:
    code = (
        "import sys; from dcnr_app.cli.main import run; run(['--help']); "
        f"print(sorted(set(sys.modules) & set({HEAVY!r})), file=sys.stderr)"
    )
    done = run_python("-c", code, home=tmp_path / "home")
    assert done.stderr.decode().strip() == "[]"
    assert b"monitor" in done.stdout


def test_piped_output_is_utf8_without_colour_whatever_the_locale(finished: Path) -> None:
    shown = run_python("-m", "dcnr_app", "network", "show", "tiny-gpt", home=finished)
    assert shown.returncode == 0
    assert b"\x1b" not in shown.stdout
    assert "8×128×128" in shown.stdout.decode("utf-8")
    failed = run_python("-m", "dcnr_app", "session", "show", "s-unknown", home=finished)
    assert (failed.returncode, failed.stdout) == (2, b"")
    assert b"Traceback" not in failed.stderr


@pytest.mark.parametrize("arguments", [("sesion",), ("session", "shw"), ("network", "vaildate")])
def test_misspelt_commands_get_a_suggestion(cli: Cli, arguments: tuple[str, ...]) -> None:
    result = cli(*arguments)
    assert result.code == 2
    assert "did you mean" in result.err.lower()


def test_without_arguments_an_empty_home_is_told_how_to_begin(cli: Cli) -> None:
    result = cli()
    assert result.code == 0
    assert "running: nothing" in result.out
    assert "dcnr-app demo" in result.out
    assert not cli.root.exists()


def test_without_arguments_the_last_session_and_the_next_commands_are_shown(on_finished: Cli) -> None:
    result = on_finished()
    assert "finished at step 3 of 3" in result.out
    assert "dcnr-app generate latest" in result.out


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_output_that_cannot_be_written_is_an_error_in_words(tmp_path: Path) -> None:
    environment = {**os.environ, "DCNR_HOME": str(tmp_path / "home")}
    command = [sys.executable, "-m", "dcnr_app", "paths", "--json"]
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            command, stdout=full, stderr=subprocess.PIPE, env=environment, timeout=50, check=False
        )
    assert done.returncode == 1
    assert done.stderr.startswith(b"error: stdout: the result cannot be written")
