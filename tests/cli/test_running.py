"""Read and stop verbs beside a session that runs in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.calling import Cli, build_home

DCNR = (sys.executable, "-m", "dcnr_app")


@pytest.fixture
def training(tmp_path: Path) -> subprocess.Popen[bytes]:
    """A training process that would run for very long."""
    build_home(tmp_path)
    environment = {**os.environ, "DCNR_HOME": str(tmp_path / "home"), "OPENBLAS_NUM_THREADS": "1"}
    command = (*DCNR, "train", str(tmp_path / "tiny.yaml"), "--dataset", "latest", "--workers", "0")
    process = subprocess.Popen(
        (*command, "--steps", "1000000", "--json"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment,
    )
    assert process.stderr is not None
    # Its first words come after the record is made; without a terminal, that is the plan or an error.
    return process


def test_a_running_session_can_be_read_followed_and_stopped(
    cli: Cli, training: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    cli.on(tmp_path / "home")
    with training:
        try:
            session = wait_for_session(cli, training)
            with subprocess.Popen((*DCNR, "monitor", session), stdout=subprocess.PIPE) as monitor:
                assert monitor.stdout is not None
                first = json.loads(monitor.stdout.readline())
                shown = cli("session", "show", "latest", "--json").json
                assert shown["status"] == "running"
                assert shown["pid"] == training.pid
                assert shown["step"] >= first["step"] == 1
                assert f"process {training.pid}" in cli().out
                refused = cli("session", "resume", "latest", "--workers", "0")
                assert refused.code == 5
                assert str(training.pid) in refused.err
                assert cli("session", "ledger", "latest", "--json").json["lost"] == 0
                stopped = cli("session", "stop", "latest", "--json").json
                assert stopped["status"] == "stopped"
                rest = [json.loads(line) for line in monitor.stdout]
                assert monitor.wait(20) == 0
            assert rest[-1]["step"] == stopped["step"]
            out, _ = training.communicate(timeout=20)
            result = json.loads(out)
            assert training.returncode == 0
            assert len(result["losses"]) == stopped["step"]
            assert not list(cli.home.sessions.glob("*/stop.request"))
        finally:
            training.kill()
    assert cli("session", "stop", "latest").code == 3


def wait_for_session(cli: Cli, training: subprocess.Popen[bytes]) -> str:
    """The id of the second session, once it runs; fails if its process ends first."""
    while training.poll() is None:
        entries = cli("session", "ls", "--json").json
        if len(entries) > 1 and entries[-1]["status"] == "running":
            return str(entries[-1]["session"])
    raise AssertionError(training.stderr.read().decode() if training.stderr else "")
