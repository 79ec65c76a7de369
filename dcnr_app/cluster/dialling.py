"""Finds the address at which a peer answers: all are tried, the better ones first, none waits for a dead one.
IO."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from dcnr_app.cluster.addresses import Interface, on_link
from dcnr_app.cluster.interfaces import usable_interfaces
from dcnr_app.errors import UnreachableError, UserError

STAGGER_S: Final = 0.2
"""How much later each next address is tried: a black hole (IPv6 that only looks configured) costs no more."""
_MAX_HOST_LENGTH: Final = 253


class Reached(msgspec.Struct, frozen=True):
    """The address that answered first, and how long its connection took to open."""

    address: str
    port: int
    connect_ms: float


async def first_reachable(addresses: Sequence[str], port: int, timeout_s: float) -> Reached:
    """Which of these addresses, best first, accepts a TCP connection; it is closed again at once.

    Each is tried STAGGER_S after the one before, or as soon as that one failed. Raises UnreachableError,
    which names every address and why, when none answered within `timeout_s`.
    """
    if not addresses:
        raise UnreachableError(
            "there is no address to dial",
            why="the other machine announced none that can be reached from here",
            fix="name it yourself: dcnr-app join HOST:PORT",
        )
    failures: dict[str, str] = {}
    try:
        async with asyncio.timeout(timeout_s):
            reached = await _race(addresses, port, failures)
    except TimeoutError:
        reached = None
        for address in addresses:
            failures.setdefault(address, f"no answer within {timeout_s:g} s")
    if reached is None:
        raise _unreachable(addresses, port, failures)
    return reached


async def resolve(host: str, timeout_s: float) -> tuple[str, ...]:
    """The addresses of a host name, or the address itself. Raises UnreachableError if there are none,
    UserError if it cannot be a name."""
    if not host or len(host) > _MAX_HOST_LENGTH or any(c.isspace() or ord(c) < 32 for c in host):
        raise UserError(f"{host[:64]!r} is no host name or address")
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(timeout_s):
            found = await loop.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError, TimeoutError) as error:
        raise UnreachableError(
            f"the name {host!r} leads to no address",
            why=getattr(error, "strerror", None) or str(error) or f"no answer within {timeout_s:g} s",
            fix="check the spelling, or use the machine's address; `dcnr-app status` there shows it",
        ) from error
    return tuple(dict.fromkeys(str(address[0]) for *_, address in found))


def explain_failure(number: int, address: str, interfaces: Sequence[Interface], system: str) -> str:
    """What the error number of a failed connection to `address` means, for people; `system` is sys.platform.

    macOS denies access to the local network by saying that there is no route to a machine that is directly
    joined. Elsewhere, and for addresses behind a router, the same number means what it says.
    """
    if number == errno.ECONNREFUSED:
        return "nothing listens there, or a firewall refuses"
    joined = on_link(address, interfaces)
    if number == errno.EHOSTUNREACH and joined is not None:
        if system == "darwin":
            return (
                f"no route, though it is on the network of {joined.name}: macOS denies this program the "
                "local network (System Settings > Privacy & Security > Local Network: switch it on for the "
                "program you started dcnr-app from, off and on again if it is on already)"
            )
        return f"no machine answers under this address on the network of {joined.name}"
    if number in (errno.EHOSTUNREACH, errno.ENETUNREACH):
        return "there is no route to this network from here"
    return os.strerror(number) if number else "it could not be dialled"


async def _race(addresses: Sequence[str], port: int, failures: dict[str, str]) -> Reached | None:
    """The first that opens; None once all failed."""
    waiting = list(addresses)
    trying: set[asyncio.Task[Reached | None]] = set()
    async with asyncio.TaskGroup() as tasks:
        try:
            while waiting or trying:
                if waiting:
                    trying.add(tasks.create_task(_try(waiting.pop(0), port, failures)))
                done, trying = await asyncio.wait(
                    trying, timeout=STAGGER_S if waiting else None, return_when=asyncio.FIRST_COMPLETED
                )
                opened = [reached for task in done if (reached := task.result()) is not None]
                if opened:
                    return min(opened, key=lambda reached: reached.connect_ms)
        finally:
            for task in trying:
                task.cancel()
    return None


async def _try(address: str, port: int, failures: dict[str, str]) -> Reached | None:
    loop = asyncio.get_running_loop()
    started_s = time.monotonic()
    try:
        family, kind, protocol, _, where = socket.getaddrinfo(
            address, port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST
        )[0]
        with socket.socket(family, kind, protocol) as connection:
            connection.setblocking(False)
            await loop.sock_connect(connection, where)
    except socket.gaierror:
        failures[address] = "it is no address"
        return None
    except OSError as error:
        failures[address] = explain_failure(
            error.errno or 0, address, usable_interfaces(with_loopback=True), sys.platform
        )
        return None
    return Reached(address, port, (time.monotonic() - started_s) * 1000.0)


def _unreachable(addresses: Sequence[str], port: int, failures: Mapping[str, str]) -> UnreachableError:
    told = "; ".join(f"{address}: {failures.get(address, 'not tried')}" for address in addresses)
    return UnreachableError(
        f"none of {len(addresses)} address{'es' if len(addresses) > 1 else ''} answers on port {port}",
        why=told,
        fix="check that dcnr-app runs there (`dcnr-app up`) and that its firewall admits the port; "
        "`dcnr-app doctor` on both machines says more",
    )
