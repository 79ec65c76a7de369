"""`dcnr-app doctor`: what keeps this machine from working with others, and the command that helps."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from dcnr_app.cli.output import json_option, write_json, write_text

if TYPE_CHECKING:
    from dcnr_app.cluster.diagnosis import Finding


@click.command("doctor", epilog="Example: dcnr-app doctor --json")
@json_option
def command(*, as_json: bool) -> int:
    """Check interfaces, multicast, ports, firewall, clock, disk, versions and devices.

    Each check is ok, warn or fail; what is not ok comes with one command that helps. Ends with 1 if a check
    failed, else with 0. Changes nothing.
    """
    from dcnr_app.cluster.diagnosis_run import diagnose
    from dcnr_app.settings import find_home

    findings = diagnose(find_home().root)
    has_failed = any(finding.verdict == "fail" for finding in findings)
    if as_json:
        write_json({"ok": not has_failed, "findings": findings})
    else:
        write_text("\n".join(_shown(finding) for finding in findings))
    return 1 if has_failed else 0


def _shown(finding: Finding) -> str:
    lines = [f"{finding.verdict.ljust(5)} {finding.check.ljust(11)} {finding.what}"]
    if finding.why:
        lines.append(f"      why: {finding.why}")
    if finding.fix:
        lines.append(f"      try: {finding.fix}")
    return "\n".join(lines)
