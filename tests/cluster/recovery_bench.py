"""A coordinator core that may recover, with a clock that the test sets."""

from __future__ import annotations

from typing import Any

import msgspec

from dcnr_app.cluster import coordinator
from dcnr_app.cluster.coordinator_state import Recovery
from dcnr_app.cluster.decision import Decision, LossScale
from dcnr_app.cluster.effects import AppendCommit, BeginGeneration
from dcnr_app.cluster.inputs import Done, Input, Joined, Restored, Tick
from dcnr_app.cluster.messages import Address, Commit, Failed, Status
from dcnr_app.ids import PNodeId
from tests.cluster.coordinator_bench import CoordinatorBench, job, of
from tests.cluster.cores import sent
from tests.sim.samples import job_for, plan_for, tiny

STALL_MS = 30_000.0


class RecoveryBench(CoordinatorBench):
    """A session whose state is never checkpointed: every generation begins with the seed's and replays.

    `now_ms` is the orchestrator's monotonic clock; it moves only as the test says.
    """

    def __init__(self, *, n_pnodes: int = 2, grace_ms: float = 0.0) -> None:
        self.now_ms = 0.0
        self.rows: dict[int, Decision] = {}
        settings = job(checkpoint_every=50, validate_every=50).settings
        made = job_for(tiny(), settings, plan_for(tiny(), settings, n_pnodes))
        recovery = Recovery(graph=tiny(), grace_ms=grace_ms, stall_ms=STALL_MS)
        super().__init__(msgspec.structs.replace(made, recovery=recovery))

    def take(self, event: Input) -> list[Any]:
        """Effects of an input at `now_ms`; the job is the present generation's."""
        self.state, effects = coordinator.step(self.state, event, self.now_ms)
        self.job = self.state.job
        return self.book(effects)

    def tick(self, at_ms: float) -> list[Any]:
        """Effects of a tick at that time."""
        self.now_ms = at_ms
        return self.take(Tick())

    def begins_at(self, at_ms: float) -> bool:
        """Whether a tick at that time starts the next generation."""
        return bool(of(self.tick(at_ms), BeginGeneration))

    def back(self, pnode: PNodeId) -> list[Any]:
        """A fresh process of a PNode can be used."""
        return self.take(Joined(Address(pnode, f"memory:{pnode}:{self.now_ms}")))

    def go_on(self) -> None:
        """From a generation's beginning to its first batch."""
        assert of(self.effects, BeginGeneration), self.effects
        self.finish(Done())
        self.finish(
            Restored(
                step=0,
                t=0,
                scale=LossScale(),
                parts={},
                recorded=dict(self.rows),
                validated=frozenset(),
                device_class="x",
            )
        )
        self.get_ready()

    def commit(self) -> Commit:
        """Make the step whose batch is asked for; returns what the PNodes are told."""
        (append,) = of(self.train_step(), AppendCommit)
        self.rows[append.decision.step] = append.decision
        effects = self.finish(Done())
        return sent(effects, Commit)[0]

    def replay(self) -> None:
        """Make all steps again that are committed."""
        for _ in self.rows:
            self.train_step()

    def cannot_reach(self, sender: PNodeId, peer: PNodeId) -> list[Any]:
        """A PNode reports that it has lost another one."""
        return self.tell(
            sender,
            Failed(**self.ids, what=f"lost PNode {peer}", where=f"PNode {sender}", is_lost=True, peer=peer),
        )

    def report(self, sender: PNodeId, *, tasks_done: int = 0, running_ms: float = 0.0) -> None:
        """A PNode says how far it is."""
        self.tell(
            sender,
            Status(
                **self.ids,
                step=self.state.step,
                stage="computing",
                tasks_done=tasks_done,
                running_ms=running_ms,
                where="train F of segment 0",
            ),
        )


def training(**how: Any) -> RecoveryBench:
    """A session whose first step is being computed; something moved last at 0 ms."""
    bench = RecoveryBench(**how)
    bench.get_ready()
    bench.finish(bench.batch())
    return bench
