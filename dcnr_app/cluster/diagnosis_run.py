"""Runs the checks of `dcnr-app doctor`: probes, then judges. IO."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from dcnr_app.cluster import diagnosis as judge
from dcnr_app.cluster import diagnosis_probes as probe
from dcnr_app.cluster.addresses import is_usable
from dcnr_app.cluster.diagnosis import Finding, lan_networks
from dcnr_app.cluster.diagnosis_firewall import (
    RULE_NAME,
    FirewallFacts,
    judge_firewall,
    read_firewalld,
    read_iptables,
    read_macos,
    read_nft,
    read_ufw,
    read_windows,
)
from dcnr_app.cluster.interfaces import all_interfaces

_UFW_SETTINGS = Path("/etc/ufw/ufw.conf")
_MACOS_FIREWALL = "/usr/libexec/ApplicationFirewall/socketfilterfw"


def diagnose(folder: Path) -> tuple[Finding, ...]:
    """Every check, in the order in which they build on each other; `folder` is the home. Takes a few
    seconds."""
    interfaces = all_interfaces()
    used = [interface for interface in interfaces if is_usable(interface)]
    networks = lan_networks(interfaces)[:1]  # one command can admit one network: the best
    checks: dict[str, Callable[[], Finding]] = {
        "interfaces": lambda: judge.judge_interfaces(interfaces),
        "multicast": lambda: judge.judge_multicast(probe.probe_multicast(used), sys.platform),
        "ports": lambda: judge.judge_ports(probe.probe_ports(), sys.platform),
        "firewall": lambda: judge_firewall(probe_firewall(networks), networks, sys.executable),
        "clock": lambda: judge.judge_clock(probe.probe_clock(folder), sys.platform),
        "disk": lambda: judge.judge_disk(probe.probe_disk(folder)),
        "versions": lambda: judge.judge_versions(probe.probe_versions()),
        "devices": lambda: judge.judge_devices(probe.probe_devices(), sys.platform),
    }
    return tuple(_checked(name, check) for name, check in checks.items())


def probe_firewall(networks: Sequence[str], system: str = sys.platform) -> FirewallFacts:
    """Asks the firewall programs of this system, the friendlier ones first; most answer root only."""
    if system == "win32":
        return _windows_firewall()
    if system == "darwin":
        state = probe.output_of([_MACOS_FIREWALL, "--getglobalstate"])
        blocked = probe.output_of([_MACOS_FIREWALL, "--getappblocked", sys.executable])
        return read_macos(state, blocked or "") if state else FirewallFacts(tool="none", is_active=None)
    return _linux_firewall(networks)


def _linux_firewall(networks: Sequence[str]) -> FirewallFacts:
    found: list[FirewallFacts] = []
    if (status := probe.output_of(["ufw", "status"])) is not None:
        settings = _UFW_SETTINGS.read_text(encoding="utf-8") if _UFW_SETTINGS.is_file() else ""
        found.append(read_ufw(status, settings, networks))
    if (state := probe.output_of(["firewall-cmd", "--state"])) is not None:
        zones = [
            probe.output_of(["firewall-cmd", f"--get-zone-of-source={network}"]) or "" for network in networks
        ]
        found.append(read_firewalld(state, zones))
    if (ruleset := probe.output_of(["nft", "list", "ruleset"])) is not None:
        found.append(read_nft(ruleset, networks))
    if (rules := probe.output_of(["iptables", "-S", "INPUT"])) is not None:
        found.append(read_iptables(rules, networks))
    # What filters is worth more than what does not, and that more than what cannot be told.
    certainty = {True: 0, False: 1, None: 2}
    return min(
        found,
        key=lambda facts: certainty[facts.is_active],
        default=FirewallFacts(tool="none", is_active=None),
    )


def _windows_firewall() -> FirewallFacts:
    enabled = probe.output_of(
        ["powershell", "-NoProfile", "-Command", "(Get-NetFirewallProfile -Profile Private).Enabled"]
    )
    rule = probe.output_of(["netsh", "advfirewall", "firewall", "show", "rule", f"name={RULE_NAME}"])
    return read_windows(enabled or "", has_rule=RULE_NAME in (rule or ""))


def _checked(name: str, check: Callable[[], Finding]) -> Finding:
    """A check that cannot be made is told as such: the others still help."""
    try:
        return check()
    except OSError as error:
        return Finding(
            check=name,
            verdict="warn",
            what="this could not be checked",
            why=error.strerror or str(error),
            fix="dcnr-app doctor",
        )
