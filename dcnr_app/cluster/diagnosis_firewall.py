"""Whether a firewall keeps other machines out, read from what its own program prints; and the command that
lets the local network in. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final, Literal

import msgspec

from dcnr_app.cluster.diagnosis import Finding

Tool = Literal["ufw", "firewalld", "nft", "iptables", "windows", "macos", "none"]

RULE_NAME: Final = "dcnr-app"
_UFW_OPEN: Final = re.compile(r"^Anywhere(?: on \S+)?\s+ALLOW(?: IN)?\s+(\S+)", re.MULTILINE)
_NFT_SOURCE: Final = re.compile(r"^ip saddr (\S+) (?:counter .* )?accept$")
_NFT_CLOSED: Final = re.compile(r"policy drop|\bdrop\b|\breject\b")


class FirewallFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Which firewall is there, whether it filters what comes in, whether it admits the local network; None
    stands for what cannot be told. `chain` is where nft filters: family, table and chain."""

    tool: Tool
    is_active: bool | None
    admits: bool | None = None
    chain: str = "inet filter input"


def read_ufw(status: str, settings: str, networks: Sequence[str]) -> FirewallFacts:
    """From `ufw status`, or where only root may ask, from /etc/ufw/ufw.conf."""
    if "Status:" not in status:
        return FirewallFacts(tool="ufw", is_active="ENABLED=yes" in settings)
    sources = set(_UFW_OPEN.findall(status))
    return FirewallFacts(
        tool="ufw",
        is_active="Status: active" in status,
        admits="Anywhere" in sources or _all_in(networks, sources),
    )


def read_firewalld(state: str, zones: Sequence[str]) -> FirewallFacts:
    """From `firewall-cmd --state`, and the zone of each local network (else the default zone)."""
    admits = bool(zones) and all(zone.strip() == "trusted" for zone in zones)
    told = {"running": True, "not running": False}
    return FirewallFacts(tool="firewalld", is_active=told.get(state.strip()), admits=admits)


def read_nft(ruleset: str, networks: Sequence[str]) -> FirewallFacts:
    """From `nft list ruleset`, which only root may ask: of the chains that see what comes in, the first that
    keeps something out."""
    if ruleset.strip() and not ruleset.startswith("table "):
        return FirewallFacts(tool="nft", is_active=None)
    for chain, lines in _nft_chains(ruleset).items():
        if any("hook input" in line for line in lines) and any(map(_NFT_CLOSED.search, lines)):
            sources = {found[1] for line in lines if (found := _NFT_SOURCE.match(line))}
            return FirewallFacts(tool="nft", is_active=True, admits=_all_in(networks, sources), chain=chain)
    return FirewallFacts(tool="nft", is_active=False)


def read_iptables(rules: str, networks: Sequence[str]) -> FirewallFacts:
    """From `iptables -S INPUT`, which only root may ask."""
    if "-P INPUT" not in rules:
        return FirewallFacts(tool="iptables", is_active=None)
    sources = set(re.findall(r"^-A INPUT -s (\S+) -j ACCEPT$", rules, re.MULTILINE))
    return FirewallFacts(
        tool="iptables",
        is_active=bool(re.search(r"^-P INPUT DROP|-j (?:DROP|REJECT)", rules, re.MULTILINE)),
        admits=_all_in(networks, sources),
    )


def read_windows(enabled: str, *, has_rule: bool) -> FirewallFacts:
    """From PowerShell's word on the private profile, and whether this app's rule is there."""
    told = enabled.strip().lower()
    return FirewallFacts(tool="windows", is_active=told in {"true", "1"} if told else None, admits=has_rule)


def read_macos(state: str, blocked: str) -> FirewallFacts:
    """From socketfilterfw's global state and its word on this program."""
    return FirewallFacts(
        tool="macos",
        is_active="State = 0" not in state and "disabled" not in state,
        admits="permitted" in blocked,
    )


def judge_firewall(facts: FirewallFacts, networks: Sequence[str], program: str) -> Finding:
    """A warning at most: a rule that nobody can read may well let others in. `program` is the path of the
    Python that runs this app."""
    if facts.tool == "none":
        return Finding(check="firewall", verdict="ok", what="no firewall program was found")
    if facts.is_active is False:
        return Finding(check="firewall", verdict="ok", what=f"{facts.tool} lets everything in")
    if facts.is_active and facts.admits:
        return Finding(check="firewall", verdict="ok", what=f"{facts.tool} lets the local network in")
    if facts.is_active is None:
        return Finding(
            check="firewall",
            verdict="warn",
            what=f"{facts.tool} is there, and does not tell whether it filters what comes in",
            why="only an administrator may ask it",
            fix='sudo "$(command -v dcnr-app)" doctor',
        )
    return Finding(
        check="firewall",
        verdict="warn",
        what=f"{facts.tool} filters what comes in",
        why="other machines can then neither find this one nor connect to it",
        fix=admitting_command(facts, networks, program),
    )


def admitting_command(facts: FirewallFacts, networks: Sequence[str], program: str) -> str:
    """The one command that lets the local network reach this app: it needs UDP 5353 and TCP ports that the
    system chooses, so the network or the program is admitted rather than a port."""
    network = networks[0] if networks else "192.168.0.0/16"
    commands: dict[Tool, str] = {
        "ufw": f"sudo ufw allow from {network}",
        "firewalld": f"sudo sh -c 'firewall-cmd --permanent --zone=trusted --add-source={network} "
        "&& firewall-cmd --reload'",
        "nft": f"sudo nft insert rule {facts.chain} ip saddr {network} accept",
        "iptables": f"sudo iptables -I INPUT -s {network} -j ACCEPT",
        "windows": f"netsh advfirewall firewall add rule name={RULE_NAME} dir=in action=allow "
        f'profile=private program="{program}"',
        "macos": f"sudo /usr/libexec/ApplicationFirewall/socketfilterfw --add '{program}' "
        f"--unblockapp '{program}'",
        "none": "",
    }
    return commands[facts.tool]


def _nft_chains(ruleset: str) -> dict[str, list[str]]:
    """The lines of every chain, by family, table and chain name. nft prints one rule a line, and a closing
    brace alone."""
    chains: dict[str, list[str]] = {}
    table, lines = "", list[str]()
    for line in map(str.strip, ruleset.splitlines()):
        if line.startswith("table "):
            table = line.removeprefix("table ").removesuffix("{").strip()
        elif line.startswith("chain "):
            name = line.removeprefix("chain ").removesuffix("{").strip()
            lines = chains.setdefault(f"{table} {name}", [])
        elif line != "}":
            lines.append(line)
    return chains


def _all_in(networks: Sequence[str], sources: set[str]) -> bool:
    return bool(networks) and set(networks) <= sources
