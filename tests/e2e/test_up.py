"""The agent as a process: started, asked, joined, killed and ended from the command line."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from dcnr_app.cli.agent_client import AgentClient
from dcnr_app.cluster.agent_file import read_agent_file
from dcnr_app.settings import HOME_VARIABLE, Home
from tests.e2e.place import Ended, is_alive

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(120)]

LIMIT_S = 40.0
GONE_S = 15.0
_POLL_S = 0.05


class Machine:
    """A home on which the command line is called; whatever it has started is killed by `kill`."""

    def __init__(self, root: Path) -> None:
        self.home = Home(root)
        self.environment = {**os.environ, HOME_VARIABLE: str(root)}
        self._seen: list[psutil.Process] = []

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "dcnr_app", *arguments], env=self.environment, text=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip

    def run(self, *arguments: str) -> Ended:
        with self.start(*arguments) as process:
            try:
                stdout, stderr = process.communicate(timeout=LIMIT_S)
            finally:
                process.kill()
        self.note()
        return Ended(process.returncode, stdout, stderr)

    def json(self, *arguments: str) -> Any:
        """What a verb that goes well says."""
        done = self.run(*arguments, "--json")
        assert done.code == 0, done
        return json.loads(done.stdout)

    def ask(self, verb: str) -> Any:
        """What its agent says, without the second that a command takes to start."""
        return AgentClient.find(self.home).get(verb, object)

    def up(self, *arguments: str) -> psutil.Process:
        """A detached agent."""
        done = self.run("up", "--loopback", "--detach", *arguments)
        assert done.code == 0, done
        return self.agent()

    def agent(self) -> psutil.Process:
        found = read_agent_file(self.home)
        assert found is not None
        return psutil.Process(found.pid)

    def note(self) -> None:
        """Remember what runs, to end it later."""
        with suppress(psutil.NoSuchProcess):
            found = read_agent_file(self.home)
            if found is not None:
                agent = psutil.Process(found.pid)
                self._seen += [agent, *agent.children(recursive=True)]

    def kill(self) -> None:
        self.note()
        for process in self._seen:
            if is_alive(process):
                with suppress(psutil.NoSuchProcess):
                    process.kill()


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Callable[[str], Machine]]:
    """Makes machines; all their processes end with the test."""
    made: list[Machine] = []

    def make(name: str) -> Machine:
        made.append(Machine(tmp_path / name))
        return made[-1]

    yield make
    for each in made:
        each.kill()


def until(ask: Callable[[], Any], holds: Callable[[Any], bool]) -> Any:
    """Ask until the answer is as wanted."""
    deadline = time.monotonic() + LIMIT_S
    while not holds(answer := ask()):
        assert time.monotonic() < deadline, answer
        time.sleep(_POLL_S)
    return answer


def door(orchestrator: Machine) -> str:
    """Where to join: by address, since other worlds may be heard on this network."""
    return f"127.0.0.1:{orchestrator.ask('status')['front_door_port']}"


def pnode_of(orchestrator: Machine, machine: str, holds: Callable[[Any], bool]) -> Any:
    """The orchestrator's line of a machine's PNode, once it is as wanted."""
    return until(
        lambda: next((p for p in orchestrator.ask("pnodes") if p["machine"] == machine), None),
        lambda found: found is not None and holds(found),
    )


def test_an_agent_is_started_once_and_says_what_it_is_until_it_is_ended(
    machine: Callable[[str], Machine],
) -> None:
    here = machine("here")
    agent = here.up("--role", "orchestrator", "--name", "home")
    second = here.run("up", "--loopback", "--detach")
    assert second.code == 5
    assert f"process {agent.pid}" in second.stderr
    foreground = here.run("up", "--loopback")
    assert (foreground.code, str(agent.pid) in foreground.stderr) == (5, True)
    found = here.json("status")
    assert (found["role"], found["cluster_name"], found["pid"]) == ("orchestrator", "home", agent.pid)
    assert found["pnode"] == f"{found['machine']}-0"
    assert found["cluster"]
    assert "orchestrator of 'home'" in here.run().stdout
    pnode = pnode_of(here, found["machine"], lambda p: p["state"] == "idle")
    assert here.run("down").code == 0
    assert not is_alive(agent)
    assert not psutil.pid_exists(pnode["pid"]) or not is_alive(psutil.Process(pnode["pid"]))
    assert here.run("status", "--json").code == 3
    assert here.run("down").code == 3
    as_worker = here.run("up", "--loopback", "--role", "worker")
    assert (as_worker.code, "orchestrator of the cluster 'home'" in as_worker.stderr) == (5, True)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_a_foreground_agent_in_order(
    machine: Callable[[str], Machine], number: signal.Signals
) -> None:
    here = machine("here")
    with here.start("up", "--loopback", "--headless", "--role", "orchestrator") as process:
        try:
            until(lambda: read_agent_file(here.home) or process.poll(), lambda found: found is not None)
            assert process.poll() is None, process.communicate()
            (pnode,) = until(
                lambda: psutil.Process(process.pid).children(), lambda children: len(children) == 1
            )
            process.send_signal(number)
            _, stderr = process.communicate(timeout=10.0)
        finally:
            process.kill()
    assert (process.returncode, stderr) == (0, "")
    assert not is_alive(pnode)
    assert read_agent_file(here.home) is None


def test_a_machine_joins_by_code_and_comes_back_after_kill_9_as_the_same_one(
    machine: Callable[[str], Machine],
) -> None:
    first, second = machine("first"), machine("second")
    first.up("--role", "orchestrator", "--name", "home")
    agent = second.up()
    assert second.ask("status")["role"] == "none"
    invite = first.json("invite", "--code")
    joined = second.json("join", door(first), "--code", invite["code"])
    assert (joined["step"], joined["cluster_name"]) == ("joined", "home")
    again = second.run("join", door(first), "--code", invite["code"])
    assert (again.code, "already" in again.stderr) == (5, True)
    before = second.ask("status")
    assert (before["role"], before["cluster"]) == ("worker", first.ask("status")["cluster"])
    live = pnode_of(first, before["machine"], lambda p: p["presence"] == "live" and p["pid"])
    pnode = psutil.Process(live["pid"])
    assert first.ask("status")["n_live"] == 2
    agent.kill()
    killed_s = time.monotonic()
    until(lambda: is_alive(pnode), lambda lives: not lives)
    until(lambda: first.ask("status")["n_live"], lambda n_live: n_live == 1)
    assert time.monotonic() - killed_s < GONE_S
    assert second.run("status").code == 3
    second.up()
    after = second.ask("status")
    assert (after["machine"], after["pnode"], after["role"]) == (before["machine"], before["pnode"], "worker")
    pnode_of(
        first,
        before["machine"],
        lambda p: p["presence"] == "live" and p["pid"] not in (None, pnode.pid),
    )
    assert len(first.json("pnode", "ls")) == 2


def test_a_machine_is_rejected_then_admitted_by_its_digits(machine: Callable[[str], Machine]) -> None:
    first, second = machine("first"), machine("second")
    first.up("--role", "orchestrator", "--name", "home")
    second.up()
    place = door(first)

    asked = second.json("join", place)
    assert asked["step"] == "comparing"
    assert len(asked["digits"]) == 6
    assert second.run("join", place).code == 5, "one attempt at a time"
    assert first.run("reject", asked["digits"]).code == 0
    refused = second.run("join", "--answer", "match", "--json")
    assert refused.code == 5, refused
    assert second.ask("status")["role"] == "none"
    assert [p for p in first.ask("pending") if p["step"] == "comparing"] == []
    assert first.run("admit", "--yes").code == 5

    asked = second.json("join", place)
    (waiting,) = [p for p in first.json("admit", "--ls") if p["step"] == "comparing"]
    assert waiting["digits"] == asked["digits"]
    told = first.run("admit", asked["digits"], "--yes")
    assert told.code == 0
    assert second.ask("status")["role"] == "none"
    joined = second.json("join", "--answer", "match")
    assert joined["step"] == "joined"
    assert second.ask("status")["cluster_name"] == "home"
    assert sorted(p["machine"] for p in first.json("pnode", "ls")) == sorted(
        each.ask("status")["machine"] for each in (first, second)
    )
