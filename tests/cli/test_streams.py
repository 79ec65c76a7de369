"""Standard streams that are closed, full or terminals: an exit code and words, never a traceback."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from dcnr_app.cli.main import run
from dcnr_app.settings import quiet_libraries
from tests.cli.calling import TINY, Cli

needs_full = pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")


def shell(home: Path, line: str, **more: str) -> subprocess.CompletedProcess[str]:
    """Run `line`, in which DCNR is the command line, in a shell: only that can close streams."""
    environment: Mapping[str, str] = {**os.environ, "DCNR_HOME": str(home), **more}
    return subprocess.run(
        ["/bin/sh", "-c", line.replace("DCNR", f"{sys.executable} -m dcnr_app")],
        capture_output=True, text=True, env=environment, timeout=60, check=False,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("line", "code"),
    [
        ("DCNR session ls >&-", 1),
        ("DCNR session ls --json >&-", 1),
        ("DCNR --help >&-", 0),
        ("DCNR session ls 2>&-", 0),
        ("DCNR session show none 2>&-", 2),
        ("DCNR session shw 2>&-", 2),
        ("DCNR session ls <&- >&- 2>&-", 1),
        ("DCNR tokenizer encode - <&-", 2),
    ],
)
def test_closed_streams_cause_no_traceback(finished: Path, line: str, code: int) -> None:
    done = shell(finished, line)
    assert done.returncode == code, done
    assert "Traceback" not in done.stderr
    if "2>&-" in line:
        assert "error" not in done.stdout.lower()


@needs_full
@pytest.mark.parametrize(
    ("line", "code"),
    [
        ("DCNR --help >/dev/full", 1),
        ("DCNR session ls --json >/dev/full", 1),
        ("DCNR session show none 2>/dev/full", 2),
        ("DCNR session shw 2>/dev/full", 2),
    ],
)
def test_full_streams_keep_the_exit_code(finished: Path, line: str, code: int) -> None:
    done = shell(finished, line)
    assert done.returncode == code, done
    assert "Traceback" not in done.stderr
    if "2>" not in line:
        assert done.stderr.startswith("error: stdout: ")


def test_a_session_trains_with_all_streams_closed(finished: Path, cli: Cli, tmp_path: Path) -> None:
    del cli
    (tmp_path / "tiny.yaml").write_text(TINY, encoding="utf-8")
    home = tmp_path / "own"
    copied = shell(home, f"cp -r {finished} {home}")
    assert copied.returncode == 0
    line = f"DCNR train {tmp_path}/tiny.yaml --dataset latest --workers 1 <&- >&- 2>&-"
    assert shell(home, line).returncode == 1  # its result went nowhere
    assert '"status":"finished","step":3' in shell(home, "DCNR session ls --json").stdout


def test_escape_sequences_in_a_name_do_not_reach_the_terminal(cli: Cli) -> None:
    for arguments in (("generate", "\x1b[31mred"), ("session", "\x1b[31mred"), ("demo", "--\x1b[31m")):
        result = cli(*arguments)
        assert result.code == 2
        assert "\x1b" not in result.err
        assert "x1b[31m" in result.err


def test_a_sample_does_not_command_the_terminal(finished: Path) -> None:
    ours, theirs = pty.openpty()
    command = [
        sys.executable,
        "-m",
        "dcnr_app",
        "generate",
        "latest",
        "--prompt",
        "\x1b[31m",
        "--tokens",
        "1",
    ]
    environment = {**os.environ, "DCNR_HOME": str(finished)}
    with subprocess.Popen(command, stdout=theirs, stderr=subprocess.DEVNULL, env=environment) as process:
        assert process.wait(60) == 0
    shown = os.read(ours, 10_000)
    os.close(ours)
    os.close(theirs)
    assert rb"\x1b[31m" in shown
    assert b"\x1b" not in shown


def test_libraries_are_quiet_unless_the_user_wants_to_hear_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GRPC_VERBOSITY", raising=False)
    assert run(["--version"]) == 0
    assert os.environ["GRPC_VERBOSITY"] == "ERROR"
    monkeypatch.setenv("GRPC_VERBOSITY", "DEBUG")
    quiet_libraries()
    assert os.environ["GRPC_VERBOSITY"] == "DEBUG"
