"""Firewalls are read from what their programs print; the command that admits the local network is exact."""

from __future__ import annotations

import pytest

from dcnr_app.cluster.diagnosis_firewall import (
    FirewallFacts,
    judge_firewall,
    read_firewalld,
    read_iptables,
    read_macos,
    read_nft,
    read_ufw,
    read_windows,
)

LAN = ("192.168.1.0/24",)
PYTHON = "/usr/bin/python3"

UFW_CLOSED = """Status: active

To                         Action      From
--                         ------      ----
22/tcp                     ALLOW       Anywhere
22/tcp (v6)                ALLOW       Anywhere (v6)
"""
UFW_OPEN = UFW_CLOSED + "Anywhere                   ALLOW       192.168.1.0/24\n"
NFT_CLOSED = """table inet filter {
	chain input {
		type filter hook input priority filter; policy drop;
		ct state { established, related } accept
		iif "lo" accept
		tcp dport { 22, 443 } accept
	}

	chain forward {
		type filter hook forward priority filter; policy drop;
	}

	chain output {
		type filter hook output priority filter; policy accept;
	}
}
"""
NFT_OPEN = NFT_CLOSED.replace('iif "lo" accept', "ip saddr 192.168.1.0/24 accept")
NFT_REJECTS = """table ip mine {
	chain guard {
		type filter hook input priority 0; policy accept;
		tcp dport 22 accept
		counter packets 3 bytes 180 reject with icmp port-unreachable
	}
}
"""
NFT_HARMLESS = NFT_CLOSED.replace("policy drop", "policy accept", 1)
IPTABLES_CLOSED = "-P INPUT DROP\n-A INPUT -i lo -j ACCEPT\n-A INPUT -p tcp -m tcp --dport 22 -j ACCEPT\n"
IPTABLES_OPEN = IPTABLES_CLOSED + "-A INPUT -s 192.168.1.0/24 -j ACCEPT\n"
IPTABLES_REJECTS = "-P INPUT ACCEPT\n-A INPUT -j REJECT --reject-with icmp-host-prohibited\n"
MACOS_ON = "Firewall is enabled. (State = 1)\n"
NOT_ROOT = "Operation not permitted (you must be root)\n"

NEEDS_RULE: dict[str, tuple[FirewallFacts, str]] = {
    "ufw": (read_ufw(UFW_CLOSED, "", LAN), "sudo ufw allow from 192.168.1.0/24"),
    "ufw without root": (
        read_ufw("ERROR: You need to be root to run this script\n", "ENABLED=yes\n", LAN),
        "sudo ufw allow from 192.168.1.0/24",
    ),
    "firewalld": (
        read_firewalld("running\n", ["no zone\n"]),
        "sudo sh -c 'firewall-cmd --permanent --zone=trusted --add-source=192.168.1.0/24 "
        "&& firewall-cmd --reload'",
    ),
    "nft": (
        read_nft(NFT_CLOSED, LAN),
        "sudo nft insert rule inet filter input ip saddr 192.168.1.0/24 accept",
    ),
    "nft with a last rule": (
        read_nft(NFT_REJECTS, LAN),
        "sudo nft insert rule ip mine guard ip saddr 192.168.1.0/24 accept",
    ),
    "iptables": (read_iptables(IPTABLES_CLOSED, LAN), "sudo iptables -I INPUT -s 192.168.1.0/24 -j ACCEPT"),
    "iptables with a last rule": (
        read_iptables(IPTABLES_REJECTS, LAN),
        "sudo iptables -I INPUT -s 192.168.1.0/24 -j ACCEPT",
    ),
    "windows": (
        read_windows("True\r\n", has_rule=False),
        "netsh advfirewall firewall add rule name=dcnr-app dir=in action=allow profile=private "
        'program="/usr/bin/python3"',
    ),
    "macos": (
        read_macos(MACOS_ON, "The application is blocked"),
        "sudo /usr/libexec/ApplicationFirewall/socketfilterfw --add '/usr/bin/python3' "
        "--unblockapp '/usr/bin/python3'",
    ),
}
NO_TROUBLE: dict[str, FirewallFacts] = {
    "no firewall": FirewallFacts(tool="none", is_active=None),
    "ufw off": read_ufw("Status: inactive\n", "ENABLED=no\n", LAN),
    "ufw off, without root": read_ufw("ERROR: You need to be root\n", "ENABLED=no\n", LAN),
    "ufw admits": read_ufw(UFW_OPEN, "", LAN),
    "ufw admits all": read_ufw(UFW_CLOSED + "Anywhere      ALLOW IN    Anywhere\n", "", LAN),
    "firewalld off": read_firewalld("not running\n", []),
    "firewalld admits": read_firewalld("running\n", ["trusted\n"]),
    "nft empty": read_nft("", LAN),
    "nft admits": read_nft(NFT_OPEN, LAN),
    "nft filters only what it forwards": read_nft(NFT_HARMLESS, LAN),
    "iptables off": read_iptables("-P INPUT ACCEPT\n", LAN),
    "iptables admits": read_iptables(IPTABLES_OPEN, LAN),
    "windows off": read_windows("False\r\n", has_rule=False),
    "windows admits": read_windows("True\r\n", has_rule=True),
    "macos off": read_macos("Firewall is disabled. (State = 0)\n", ""),
    "macos admits": read_macos(MACOS_ON, "Incoming connection to the application is permitted"),
}
UNKNOWN: dict[str, FirewallFacts] = {
    "nft": read_nft(NOT_ROOT, LAN),
    "iptables": read_iptables(NOT_ROOT, LAN),
    "firewalld": read_firewalld("Authorization failed.\n", []),
    "windows": read_windows("", has_rule=False),
}


@pytest.mark.parametrize(("facts", "command"), NEEDS_RULE.values(), ids=NEEDS_RULE)
def test_a_firewall_that_keeps_others_out_comes_with_the_exact_command(
    facts: FirewallFacts, command: str
) -> None:
    found = judge_firewall(facts, LAN, PYTHON)
    assert (found.verdict, found.fix) == ("warn", command)
    assert "filters what comes in" in found.what


@pytest.mark.parametrize("facts", NO_TROUBLE.values(), ids=NO_TROUBLE)
def test_a_firewall_that_lets_others_in_is_no_trouble(facts: FirewallFacts) -> None:
    assert judge_firewall(facts, LAN, PYTHON).verdict == "ok"


@pytest.mark.parametrize("facts", UNKNOWN.values(), ids=UNKNOWN)
def test_a_firewall_that_does_not_tell_is_said_not_to_tell(facts: FirewallFacts) -> None:
    found = judge_firewall(facts, LAN, PYTHON)
    assert (found.verdict, "does not tell" in found.what) == ("warn", True)


def test_a_rule_for_another_network_does_not_admit_this_one() -> None:
    facts = read_ufw(UFW_CLOSED + "Anywhere                   ALLOW       10.0.0.0/8\n", "", LAN)
    assert judge_firewall(facts, LAN, PYTHON).verdict == "warn"
