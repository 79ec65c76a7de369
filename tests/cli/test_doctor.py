"""`dcnr-app doctor`: what it prints, and how it ends."""

from __future__ import annotations

import pytest

from dcnr_app.cluster import diagnosis_run
from dcnr_app.cluster.diagnosis import Finding
from tests.cli.calling import Cli


def finds(monkeypatch: pytest.MonkeyPatch, *findings: Finding) -> None:
    """Let the checks find this, whatever machine the tests run on."""
    monkeypatch.setattr(diagnosis_run, "diagnose", lambda folder: findings)


GOOD = Finding(check="clock", verdict="ok", what="steady")
POOR = Finding(
    check="firewall", verdict="warn", what="ufw filters", why="others wait", fix="sudo ufw allow x"
)
BAD = Finding(check="disk", verdict="fail", what="full", why="nothing fits", fix="dcnr-app checkpoint ls")


def test_each_check_is_a_line_and_what_is_wrong_has_its_reason_and_command(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    finds(monkeypatch, GOOD, POOR)
    done = cli("doctor")
    assert (done.code, done.err) == (0, "")
    assert done.out.splitlines() == [
        "ok    clock       steady",
        "warn  firewall    ufw filters",
        "      why: others wait",
        "      try: sudo ufw allow x",
    ]


def test_a_failed_check_ends_with_one(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    finds(monkeypatch, GOOD, BAD, POOR)
    assert cli("doctor").code == 1
    assert cli("doctor", "--json").code == 1


def test_json_holds_every_finding(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    finds(monkeypatch, POOR)
    assert cli("doctor", "--json").json == {
        "ok": True,
        "findings": [
            {
                "check": "firewall",
                "verdict": "warn",
                "what": "ufw filters",
                "why": "others wait",
                "fix": "sudo ufw allow x",
            }
        ],
    }


def test_on_this_machine_it_makes_all_checks_and_creates_no_home(cli: Cli) -> None:
    done = cli("doctor")
    assert done.code in (0, 1)
    assert len([line for line in done.out.splitlines() if not line.startswith(" ")]) == 8
    assert not cli.root.exists()
