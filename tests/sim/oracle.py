"""What an undisturbed run gives, and what must hold in a disturbed one after every event."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from dcnr_app.cluster.plan import Plan
from dcnr_app.engine.backend import Backend
from dcnr_app.nodes.graph.training import TrainingSettings
from tests.sim.actors import SimWorker
from tests.sim.samples import tiny
from tests.sim.world import Result, World, train

if TYPE_CHECKING:
    from tests.sim.storm import Storm

Bits = dict[tuple[str, str], bytes]


class Reference(NamedTuple):
    """The undisturbed run on one PNode: its result, the state after every step, its device class."""

    result: Result
    states: dict[int, Bits]
    device_class: str


@lru_cache(maxsize=64)
def reference_of(name: str, edit: str, settings: TrainingSettings, backend: Backend) -> Reference:
    """The undisturbed run of a tiny network."""
    every = msgspec.structs.replace(settings, checkpoint_every=1)
    world = World(tiny(name, edit=edit), every, backend)
    result = train(world)
    states = {step: kept.bits() for step, kept in world.journal.checkpoints.items()}
    (ready,) = world.lead.ready.values()
    return Reference(result, states, ready.device_class)


class Cluster:
    """The invariants of the whole: reliability.md I1 to I6."""

    def __init__(self, storm: Storm, reference: Reference) -> None:
        self._storm = storm
        self.reference = reference
        self._plans: dict[int, Plan] = {}
        self._n_rows = 0
        self._acknowledged: set[int] = set()

    def configured(self, process: SimWorker) -> None:
        """I1: one plan per generation, one process per PNode of it, so one owner per VNode."""
        configure = process.state.configure
        if configure is None:
            return
        generation = configure.generation
        plan = self._plans.setdefault(generation, configure.plan)
        assert plan == configure.plan, f"two plans of generation {generation}"
        assert generation <= self._storm.journal.newest_generation, "a generation before its row is durable"
        twins = [
            each
            for each in self._storm.workers.values()
            if each is not process and each.pnode == process.pnode
        ]
        assert not twins, f"two processes of {process.pnode}"

    def check_state(self, process: SimWorker) -> None:
        """I4: what a PNode has after a step, optimizer slots and shared weights included, is what the
        undisturbed run had."""
        step = process.state.step - 1
        if step < 1:
            return
        expected, runtime = self.reference.states[step], process.compute.runtime
        for name in process.state.runtime.owned:
            for slot, values in runtime.state(name).items():
                place = f"{name} {slot} of {process.pnode} after step {step}"
                assert values.tobytes() == expected[name, slot], f"other bits: {place}"
        for name in process.state.runtime.copies_from:
            assert runtime.parameter(name).tobytes() == expected[name, "weight"], f"{name} of {process.pnode}"

    def check(self) -> None:
        """After every event: what is durable is what the undisturbed run made, without gap or repeat."""
        journal = self._storm.journal
        if len(journal.rows) != self._n_rows:
            self._storm.n_deaths = 0
            self._n_rows += 1
            step = self._n_rows
            assert list(journal.rows) == list(range(1, step + 1)), "a gap in the committed steps"
            expected = self.reference.result.decisions[step - 1]
            assert journal.rows[step] == expected, f"step {step} has other bits: {journal.rows[step]}"
        for step in journal.checkpoints.keys() - self._acknowledged:
            self._acknowledged.add(step)
            kept = journal.checkpoints[step].bits()
            different = [key for key, bits in self.reference.states[step].items() if kept[key] != bits]
            assert not different, f"the state after step {step} has other bits: {different}"
        assert self._acknowledged <= journal.checkpoints.keys(), "a durable checkpoint is gone"

    def check_end(self) -> None:
        """The whole series, the ledger and the last state are those of the undisturbed run."""
        result = self._storm.result()
        assert result.decisions == self.reference.result.decisions
        assert result.validations == self.reference.result.validations
        assert result.ledger == self.reference.result.ledger, "samples are lost or counted twice"
        assert result.bits == self.reference.result.bits
