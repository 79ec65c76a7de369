"""Sequences of faults that Hypothesis makes up, and makes short when one fails.

Unlike the drawn scenarios these bring faults together: several at one moment, or one in the middle of what
the last one caused. Restated from public reports: dask#6228, dask#5480, dask#6391.
"""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    precondition,
    rule,
    run_state_machine_as_test,
)

from dcnr_app.engine.backend import Backend
from dcnr_app.ids import ORCHESTRATOR, PNodeId
from tests.sim.begun import events
from tests.sim.fuzz import NETWORKS, Fault, cause, patience_ms
from tests.sim.network import Weather
from tests.sim.oracle import reference_of
from tests.sim.samples import tiny, with_settings
from tests.sim.storm import Climate, Storm

MAX_PNODES = 4
ANY_PNODE = st.integers(0, MAX_PNODES - 1)
ANY_MACHINE = st.integers(0, MAX_PNODES)
SHORT_OR_LONG = st.sampled_from([100.0, 2_000.0, 8_000.0, 60_000.0])
CLIMATES = st.builds(
    Climate,
    seed=st.integers(0, 1_000),
    weather=st.builds(
        Weather,
        late_ms=st.sampled_from([1.0, 50.0]),
        twice=st.sampled_from([0.0, 0.2]),
        in_order=st.booleans(),
        notice_ms=st.sampled_from([1.0, 1_000.0]),
    ),
    slow=st.sampled_from([1.0, 30.0, 1_000.0]),
    disk_ms=st.sampled_from([0.5, 50.0]),
    restart_ms=st.sampled_from([10.0, 3_000.0]),
    grace_ms=st.sampled_from([0.0, 5_000.0]),
    stall_ms=st.just(30_000.0),
)


class Session(RuleBasedStateMachine):
    """A session to which things happen. In the end all cuts heal, and it must get to its end."""

    def __init__(self, backend: Backend) -> None:
        super().__init__()
        self.backend = backend
        self.storm: Storm
        self.longest_ms = 0.0
        self.n_faults = 0
        self.cuts: list[tuple[str, str]] = []

    @initialize(
        network=st.sampled_from(NETWORKS),
        n_pnodes=st.integers(1, 3),
        checkpoint_every=st.integers(1, 3),
        in_flight=st.integers(0, 1),
        climate=CLIMATES,
    )
    def begin(self, network: tuple[str, str], n_pnodes: int, climate: Climate, **changes: Any) -> None:
        """A session starts."""
        name, edit = network
        made = with_settings(steps=4, batch=4, microbatches=2, validate_every=2, **changes)
        reference = reference_of(name, edit, msgspec.structs.replace(made, checkpoint_every=1), self.backend)
        self.storm = Storm(tiny(name, edit=edit), made, self.backend, climate, reference)
        self.storm.begin(n_pnodes)

    @rule(n_events=st.integers(1, 80))
    def run(self, n_events: int) -> None:
        """Some events pass; when the session is at its end, nothing does."""
        self.storm.run(until=events(self.storm, n_events))

    @precondition(lambda self: not self.storm.is_done)
    @rule(at=ANY_PNODE, kind=st.sampled_from(["crash", "stuck", "leave"]))
    def end(self, at: int, kind: str) -> None:
        """A process ends or hangs, or its machine is taken out."""
        self._cause(kind, self._pnode(at))

    @precondition(lambda self: not self.storm.is_done)
    @rule(at=ANY_PNODE, kind=st.sampled_from(["sleep", "pause"]), for_ms=SHORT_OR_LONG)
    def stand_still(self, at: int, kind: str, for_ms: float) -> None:
        """A machine sleeps, or its processes stop."""
        self._cause(kind, self._pnode(at), for_ms=for_ms)

    @precondition(lambda self: not self.storm.is_done and len(self.storm.machines.pnodes) < MAX_PNODES)
    @rule()
    def join(self) -> None:
        """A new machine joins."""
        self._cause("join", f"p{len(self.storm.machines.pnodes) + 1}")

    @precondition(lambda self: not self.storm.is_done)
    @rule(at=ANY_PNODE)
    def come_back(self, at: int) -> None:
        """A machine that was taken out joins again; nothing changes for one that is there."""
        self._cause("join", self._pnode(at))

    @precondition(lambda self: not self.storm.is_done)
    @rule(at=ANY_MACHINE, to=ANY_MACHINE)
    def reset(self, at: int, to: int) -> None:
        """The streams between two machines break; new ones can be made."""
        self._cause("reset", self._machine(at), self._machine(to))

    @precondition(lambda self: not self.storm.is_done)
    @rule(at=ANY_MACHINE, to=ANY_MACHINE, is_one_way=st.booleans())
    def cut(self, at: int, to: int, is_one_way: bool) -> None:
        """Nothing gets from one machine to another any more, perhaps not back either."""
        one, other = self._machine(at), self._machine(to)
        ways = [way for way in ((one, other), (other, one)) if one != other][: 1 if is_one_way else 2]
        self.storm.wires.cut(ways)
        self.cuts += ways

    @precondition(lambda self: bool(self.cuts))
    @rule()
    def heal(self) -> None:
        """All ways work again."""
        self.storm.wires.heal(self.cuts)
        self.cuts = []

    @precondition(lambda self: not self.storm.is_done)
    @rule(kind=st.sampled_from(["crash-orchestrator", "sleep-orchestrator"]), for_ms=SHORT_OR_LONG)
    def lose_the_orchestrator(self, kind: str, for_ms: float) -> None:
        """The orchestrator's process ends, or stands still."""
        self._cause(kind, for_ms=for_ms)

    @precondition(lambda self: not self.storm.is_done)
    @rule(kind=st.sampled_from(["rival", "stop"]))
    def interfere(self, kind: str) -> None:
        """A person starts the session a second time, or stops it; whoever keeps it goes on with it."""
        self._cause(kind)

    def teardown(self) -> None:
        """No more faults."""
        if not hasattr(self, "storm"):
            return
        self.storm.wires.heal(self.cuts)
        left_ms = self.longest_ms + patience_ms(self.storm.climate, self.n_faults)
        self.storm.deadline_ms = self.storm.now_ms + left_ms
        self.storm.finish()

    def _cause(self, kind: str, *who: str, for_ms: float = 0.0) -> None:
        self.n_faults += 1
        self.longest_ms = max(self.longest_ms, for_ms)
        cause(self.storm, Fault(0, kind, who, for_ms))

    def _pnode(self, at: int) -> PNodeId:
        pnodes = self.storm.machines.pnodes
        return pnodes[at % len(pnodes)]

    def _machine(self, at: int) -> str:
        machines = (ORCHESTRATOR, *self.storm.machines.pnodes)
        return machines[at % len(machines)]


def play(backend: Backend, n_examples: int, n_rules: int) -> None:
    """Let Hypothesis make up sequences; the same ones in every run."""
    run_state_machine_as_test(
        lambda: Session(backend),
        settings=settings(
            max_examples=n_examples,
            stateful_step_count=n_rules,
            deadline=None,
            derandomize=True,
            suppress_health_check=list(HealthCheck),
        ),
    )


def test_a_session_gets_through_any_sequence_of_faults(backend: Backend) -> None:
    play(backend, n_examples=15, n_rules=12)


@pytest.mark.sim
@pytest.mark.timeout(300)
def test_a_session_gets_through_many_sequences_of_faults(backend: Backend) -> None:
    play(backend, n_examples=100, n_rules=20)
