"""Simulated machines: their agents start, end and offer PNode processes. Knows no session."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dcnr_app.cluster.effects import Drained, Evict
from dcnr_app.cluster.inputs import Slept
from dcnr_app.cluster.messages import Address
from dcnr_app.cluster.sleeping import LEASE_MS
from dcnr_app.ids import PNodeId
from tests.sim.actors import SimWorker
from tests.sim.lead import SimOrchestrator
from tests.sim.network import SILENCE_MS
from tests.sim.process import Process

if TYPE_CHECKING:
    from tests.sim.storm import Storm


class Machine:
    """One machine with one PNode."""

    def __init__(self, pnode: PNodeId) -> None:
        self.pnode = pnode
        self.process: SimWorker | None = None
        self.is_wanted = True
        self.is_asleep = False
        self.n_processes = 0
        self.told: dict[str, str] = {}
        """The process that each orchestrator was offered last."""
        self.evicted: dict[str, str] = {}
        """The process that each orchestrator has given up: it must end."""


class Machines:
    """All agents. They do what they are told as soon as they can be reached."""

    def __init__(self, storm: Storm, restart_ms: float) -> None:
        self._storm = storm
        self._restart_ms = restart_ms
        self._all: dict[PNodeId, Machine] = {}

    @property
    def pnodes(self) -> tuple[PNodeId, ...]:
        """All PNodes that there ever were."""
        return tuple(self._all)

    def wanted(self) -> list[PNodeId]:
        """PNodes of machines that nobody took out."""
        return [machine.pnode for machine in self._all.values() if machine.is_wanted]

    def add(self, pnode: PNodeId) -> None:
        """A machine joins the cluster, or comes back into it."""
        machine = self._all.setdefault(pnode, Machine(pnode))
        machine.is_wanted = True
        self._start(machine)
        self._tend(machine)

    def _start(self, machine: Machine) -> None:
        if machine.process is not None or machine.is_asleep or self._storm.is_closing:
            return
        storm = self._storm
        machine.n_processes += 1
        address = f"sim:{machine.pnode}:{machine.n_processes}"
        machine.process = SimWorker(storm, machine.pnode, storm.backend, address)
        machine.process.set_clock(storm.chance.choice([0.0, 1e8, -1e8]))
        storm.workers[machine.pnode] = machine.process
        storm.wires.open[address] = machine.process
        storm.report_regularly(machine.process)

    # ---- what happens to processes

    def crash(self, pnode: PNodeId) -> None:
        """A process ends; another one starts after a while."""
        machine = self._all[pnode]
        process, machine.process = machine.process, None
        if process is None:
            return
        process.end()
        self._storm.wires.close(process)
        del self._storm.workers[pnode]
        self._storm.after(self._restart_ms, lambda: self._back(machine))

    def _back(self, machine: Machine) -> None:
        self._start(machine)
        self._tend(machine)

    def get_stuck(self, pnode: PNodeId, kind: type = object) -> None:
        """The next compute effect of a kind never ends."""
        process = self._all[pnode].process
        if process is not None:
            process.stuck_in = kind

    def sleep(self, pnode: PNodeId, for_ms: float, *, clock_stops: bool) -> None:
        """A machine stands still, its agent too; its peers hear nothing of it meanwhile."""
        machine = self._all[pnode]
        process = machine.process
        if process is None or machine.is_asleep:
            return
        machine.is_asleep = True
        self.stand_still(process, for_ms, clock_stops=clock_stops)
        self._storm.after(for_ms, lambda: self._wake(machine))

    def _wake(self, machine: Machine) -> None:
        machine.is_asleep = False
        self._back(machine)

    def stand_still(self, process: Process, for_ms: float, *, clock_stops: bool) -> None:
        """A process sleeps. When it goes on, it notices sooner or later if its lease is over."""
        storm = self._storm
        process.freeze()
        storm.after(storm.chance.uniform(0.7, 1.0) * SILENCE_MS, lambda: give_up())

        def give_up() -> None:
            if process.is_frozen:
                storm.wires.lose_all(process)

        def notice() -> None:
            if isinstance(process, SimWorker) and for_ms > LEASE_MS:
                process.take(Slept(for_ms))

        def wake() -> None:
            if process.is_running:
                process.thaw(for_ms if clock_stops else 0.0, notice, storm.chance.random())

        storm.after(for_ms, wake)

    # ---- what agents and orchestrators say to each other

    def unwanted(self, pnode: PNodeId) -> None:
        """A machine leaves the cluster: it is offered no more."""
        self._all[pnode].is_wanted = False

    def offered(self, lead: SimOrchestrator, members: list[Address]) -> None:
        """An orchestrator begins with these."""
        for member in members:
            self._all[member.pnode].told[lead.address] = member.address

    def dismissed(self, lead: SimOrchestrator, effect: Evict | Drained) -> None:
        """An orchestrator gives a PNode up, or has drained it."""
        machine = self._all[effect.pnode]
        told = machine.told.pop(lead.address, "")
        if isinstance(effect, Evict):
            machine.evicted[lead.address] = told
            self._storm.after(1.0, lambda: self._tend(machine))

    def reachable_from(self, where: str) -> list[Address]:
        """PNodes that an orchestrator on that machine can use."""
        return [
            Address(machine.pnode, machine.process.address)
            for machine in self._all.values()
            if machine.process is not None
            and machine.is_wanted
            and not machine.is_asleep
            and not self._storm.wires.is_cut(machine.pnode, where)
        ]

    def tend(self) -> None:
        """Agents look around."""
        for machine in self._all.values():
            self._tend(machine)

    def _tend(self, machine: Machine) -> None:
        storm = self._storm
        for lead in [each for each in (storm.orchestrator, *storm.retired) if each is not None]:
            is_cut = storm.wires.is_cut(machine.pnode, lead.machine)
            if (
                not lead.is_running
                or lead.is_frozen
                or machine.is_asleep
                or is_cut
                or machine.process is None
            ):
                continue
            address = machine.process.address
            if machine.evicted.get(lead.address) == address:
                self.crash(machine.pnode)
            elif (
                machine.is_wanted and machine.told.get(lead.address) != address and not self._storm.is_closing
            ):
                machine.told[lead.address] = address
                machine.evicted.pop(lead.address, None)
                lead.offer(Address(machine.pnode, address))

    def is_at_work(self, pnode: PNodeId) -> bool:
        """Whether its process is there and awake."""
        machine = self._all[pnode]
        return machine.process is not None and not machine.is_asleep
