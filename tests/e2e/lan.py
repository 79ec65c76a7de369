"""A local network of namespaces on one bridge, with real processes on its machines. Holds no test."""

from __future__ import annotations

import json
import os
import queue
import secrets
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

_ROOT = Path(__file__).parents[2]
_COMMAND_S = 10.0


class Announcer:
    """A process that announces itself, and the last thing that it said it sees."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.last: dict[str, Any] = {}
        self._lines: queue.Queue[dict[str, Any] | None] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        with suppress(ValueError):  # closed while reading
            for line in self.process.stdout:
                self._lines.put(json.loads(line))
        self._lines.put(None)

    def until(self, holds: Callable[[dict[str, Any]], bool], limit_s: float) -> float:
        """Wait until what it says is as wanted; returns when that was, on the system's monotonic clock."""
        end = time.monotonic() + limit_s
        while not (self.last and holds(self.last)):
            try:
                said = self._lines.get(timeout=max(0.0, end - time.monotonic()))
            except queue.Empty:
                raise AssertionError(f"after {limit_s} s it says {self.last}") from None
            assert said is not None, f"the process ended with {self.process.wait()}; last {self.last}"
            self.last = said
        return float(self.last["at_s"])

    def sees(self, name: str, limit_s: float = 10.0, state: str = "live") -> dict[str, Any]:
        """Wait until it sees this machine in this state; returns what it knows of it."""
        self.until(lambda said: any(s["name"] == name and s["state"] == state for s in said["seen"]), limit_s)
        return next(s for s in self.last["seen"] if s["name"] == name)

    def end(self) -> None:
        """Close its stdin, so that it says goodbye, and wait for its end."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait(timeout=_COMMAND_S)

    def kill(self) -> None:
        """kill -9."""
        self.process.kill()
        self.process.wait(timeout=_COMMAND_S)


@contextmanager
def announcing(
    service_type: str, name: str, prefix: tuple[str, ...] = (), **wanted: Any
) -> Iterator[Announcer]:
    """Start one, behind `prefix` (as `ip netns exec …`); it is killed at the end if it still runs."""
    arguments = json.dumps({"name": name, "service_type": service_type, **wanted})
    process = subprocess.Popen(
        [*prefix, sys.executable, "-m", "tests.e2e.announcer", arguments],
        cwd=_ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        try:
            yield Announcer(process)
        finally:
            if process.poll() is None:
                process.kill()


class Machine:
    """A namespace with a cable to the switch, and more interfaces if wanted."""

    def __init__(self, namespace: str, port: str) -> None:
        self.namespace = namespace
        self.port = port
        self.prefix = ("ip", "netns", "exec", namespace)

    def ip(self, *arguments: str) -> None:
        """`ip` inside the namespace."""
        _ip("-n", self.namespace, *arguments)


class Lan:
    """Machines on one switch."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack
        self._tag = secrets.token_hex(2)
        self._n = 0
        self.service_type = f"_dcnr-{secrets.token_hex(3)}._tcp.local."
        self.switch = self._namespace("switch")
        _ip("-n", self.switch, "link", "add", "lan", "type", "bridge")
        _ip("-n", self.switch, "link", "set", "lan", "up")

    def machine(self, address: str = "") -> Machine:
        """A machine whose eth0 is plugged in, with this address if one is given."""
        machine = Machine(self._namespace("m"), "")
        machine.ip("link", "set", "lo", "up")
        machine.port = self.plug(machine, "eth0", address)
        return machine

    def plug(self, machine: Machine, name: str, address: str = "") -> str:
        """One more cable from a machine to the switch; returns the port's name."""
        self._n += 1
        port = f"p{self._tag}{self._n}"
        _ip("link", "add", port, "type", "veth", "peer", "name", name, "netns", machine.namespace)
        _ip("link", "set", port, "netns", self.switch)
        _ip("-n", self.switch, "link", "set", port, "master", "lan", "up")
        machine.ip("link", "set", name, "up")
        if address:
            machine.ip("address", "add", f"{address}/24", "dev", name)
        return port

    def block_multicast(self, machine: Machine) -> None:
        """The switch passes no multicast to this machine, as access points with client isolation do."""
        _ip("-n", self.switch, "link", "set", machine.port, "type", "bridge_slave", "mcast_flood", "off")

    def announcer(self, machine: Machine, name: str, **wanted: Any) -> Announcer:
        """Start a process on that machine."""
        return self._stack.enter_context(announcing(self.service_type, name, machine.prefix, **wanted))

    def _namespace(self, kind: str) -> str:
        self._n += 1
        name = f"dcnr-{self._tag}-{kind}{self._n}"
        _ip("netns", "add", name)
        self._stack.callback(_ip, "netns", "delete", name)
        return name


@contextmanager
def lan() -> Iterator[Lan]:
    """A switch; everything on it goes at the end. Skips, with the reason, where that cannot be made."""
    if sys.platform != "linux" or os.geteuid() != 0 or shutil.which("ip") is None:
        pytest.skip("network namespaces need Linux, root and iproute2")
    with ExitStack() as stack:
        try:
            made = Lan(stack)
        except subprocess.CalledProcessError as error:
            pytest.skip(f"this system makes no network namespace with a bridge: {error.stderr.strip()}")
        yield made


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True, timeout=_COMMAND_S)
