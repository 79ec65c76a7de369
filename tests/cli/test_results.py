"""What `demo`, `train` and `session resume` refuse beforehand, and how their results leave the process."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.calling import TINY, Cli

TRAINING = (
    ("demo", "--workers", "0"),
    ("train", "tiny-gpt", "--dataset", "latest", "--workers", "0"),
    ("session", "resume", "latest", "--workers", "0"),
    ("generate", "latest"),
)


def made_by(cli: Cli) -> list[Path]:
    """All files of a home, but those that a reader of the database makes."""
    return sorted(path for path in cli.root.rglob("*") if not path.name.endswith(("-shm", "-wal")))


@pytest.mark.parametrize("prompt", ["", "\udcff", "a\ud800"])
@pytest.mark.parametrize("arguments", TRAINING, ids=lambda arguments: arguments[0])
def test_an_impossible_prompt_is_refused_before_anything_starts(
    on_finished: Cli, arguments: tuple[str, ...], prompt: str
) -> None:
    before = made_by(on_finished)
    result = on_finished(*arguments, "--prompt", prompt)
    assert (result.code, result.out) == (2, "")
    assert "--prompt" in result.err
    assert made_by(on_finished) == before


@pytest.fixture
def resume(on_copy: Callable[[], Cli]) -> tuple[Cli, list[str]]:
    """A finished session on a home of its own, and the command that gives its result again."""
    return on_copy(), [sys.executable, "-m", "dcnr_app", "session", "resume", "latest", "--workers", "0"]


def run_in(home: Path, command: list[str], **more: str) -> subprocess.CompletedProcess[bytes]:
    environment = {**os.environ, "DCNR_HOME": str(home), **more}
    return subprocess.run(command, env=environment, capture_output=True, timeout=60, check=False)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.parametrize("more", [[], ["--json"]])
def test_a_result_that_cannot_be_written_is_told_and_the_session_stays_finished(
    resume: tuple[Cli, list[str]], more: list[str]
) -> None:
    cli, command = resume
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            [*command, *more], env={**os.environ, "DCNR_HOME": str(cli.root)}, stdout=full,
            stderr=subprocess.PIPE, timeout=60, check=False,
        )  # fmt: skip
    assert done.returncode == 1
    assert b"error: stdout: the result cannot be written" in done.stderr
    assert b"Traceback" not in done.stderr
    assert cli("session", "ls", "--json").json[-1]["status"] == "finished"


def test_a_result_is_utf8_whatever_the_locale(resume: tuple[Cli, list[str]]) -> None:
    cli, command = resume
    ascii_only = {"LC_ALL": "C", "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    done = run_in(cli.root, command, **ascii_only)
    assert done.returncode == 0, done.stderr
    assert "│" in done.stdout.decode("utf-8")


def test_a_home_whose_path_is_not_utf8_trains_and_gives_its_result(finished: Path, tmp_path: Path) -> None:
    home = Path(os.fsdecode(os.fsencode(tmp_path) + b"/h\xff"))
    shutil.copytree(finished, home)
    (tmp_path / "tiny.yaml").write_text(TINY, encoding="utf-8")
    train = ["train", str(tmp_path / "tiny.yaml"), "--dataset", "latest", "--workers", "0", "--json"]
    done = run_in(home, [sys.executable, "-m", "dcnr_app", *train])
    assert done.returncode == 0, done.stderr
    assert "\ufffd" in json.loads(done.stdout)["checkpoint"]
    shown = run_in(home, [sys.executable, "-m", "dcnr_app"])
    assert shown.returncode == 0, shown.stderr
