"""A coordinator core whose PNodes the test plays."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dcnr_app.cluster import coordinator
from dcnr_app.cluster.coordinator_state import Assignment
from dcnr_app.cluster.effects import (
    LoadBatch,
    LoadValidation,
    Release,
    SessionFailed,
)
from dcnr_app.cluster.inputs import (
    BatchReady,
    Done,
    Finished,
    Input,
    Outcome,
    Received,
)
from dcnr_app.cluster.messages import (
    Address,
    AnyMessage,
    Applied,
    GradientsReady,
    Norm,
    Ready,
    StateDone,
    StatePart,
)
from dcnr_app.ids import PNodeId
from tests.cluster.cores import Handles
from tests.sim.samples import SETTINGS, job_for, plan_for, tiny, with_settings


class CoordinatorBench:
    """A coordinator core with PNodes whose answers the test makes up."""

    def __init__(self, job: Assignment | None = None, *, n_pnodes: int = 2) -> None:
        self.handles = Handles()
        self.job = job or job_for(tiny(), SETTINGS, plan_for(tiny(), SETTINGS, n_pnodes))
        members = tuple(Address(pnode, f"memory:{pnode}") for pnode in self.job.plan.pnodes)
        self.state, effects = coordinator.start(self.job, members)
        self.effects: list[Any] = list(effects)

    @property
    def ids(self) -> Mapping[str, Any]:
        """Session and generation."""
        return self.state.ids

    def take(self, event: Input) -> list[Any]:
        """Effects of an input, releases booked and left out."""
        self.state, effects = coordinator.step(self.state, event, 0.0)
        return self.book(effects)

    def book(self, effects: tuple[Any, ...]) -> list[Any]:
        """Book the releases among effects."""
        for effect in effects:
            if isinstance(effect, Release):
                self.handles.release(effect)
        self.effects = [effect for effect in effects if not isinstance(effect, Release)]
        return self.effects

    def tell(self, sender: PNodeId, message: AnyMessage, *tensors: str) -> list[Any]:
        """Effects of a PNode's message."""
        return self.take(Received(sender, message, self.handles.give(*tensors)))

    def all_tell(self, make: Any) -> list[Any]:
        """Effects of the last PNode's message after all have sent theirs."""
        for pnode in self.job.plan.pnodes:
            effects = self.tell(pnode, make(pnode))
        return effects

    def finish(self, outcome: Outcome) -> list[Any]:
        """Effects of the end of the effect that the stage waits for."""
        return self.take(Finished(self.state.effect, outcome))

    def get_ready(self) -> list[Any]:
        """All PNodes take up the plan."""
        return self.all_tell(lambda _: Ready(**self.ids, device_class="x", pid=1))

    def batch(self, *, target_count: int = 10) -> BatchReady:
        """A step's inputs."""
        microbatches = tuple(
            self.handles.give("tokenizer:0", "targets:0") for _ in range(SETTINGS.microbatches)
        )
        return BatchReady(microbatches, (target_count,) * SETTINGS.microbatches, (1, 2))

    def gradients(self, pnode: PNodeId) -> GradientsReady:
        """A PNode's facts; the last PNode has the cost."""
        has_cost = pnode == self.job.plan.pnodes[-1]
        return GradientsReady(
            **self.ids,
            step=self.state.step,
            norms={f"{pnode}.weight": Norm(0.25, True)},
            loss_sums=dict.fromkeys(range(SETTINGS.microbatches), 20.0) if has_cost else {},
            max_in_flight=1,
            compute_ms=1.0,
        )

    def train_step(self) -> list[Any]:
        """From the batch of a step to its decision; returns the last effects."""
        self.finish(self.batch())
        return self.all_tell(self.gradients)

    def send_state(self, pnode: PNodeId, step: int) -> list[Any]:
        """A PNode's state after a step: one parameter."""
        self.tell(pnode, StatePart(**self.ids, step=step, parameter=f"{pnode}.weight"), "weight", "m", "v")
        return self.tell(pnode, StateDone(**self.ids, step=step, count=1))

    def applied(self, _: PNodeId) -> Applied:
        """A PNode has applied the step."""
        return Applied(**self.ids, step=self.state.step)

    def failures(self) -> list[SessionFailed]:
        """Failures among the last effects."""
        return [effect for effect in self.effects if isinstance(effect, SessionFailed)]


def of(effects: list, kind: type) -> list:
    """Effects of a kind."""
    return [effect for effect in effects if isinstance(effect, kind)]


def job(**settings: object) -> Assignment:
    """A session of tiny-gpt on two PNodes."""
    changed = with_settings(**settings)
    return job_for(tiny(), changed, plan_for(tiny(), changed, 2))


def begun(**settings: object) -> CoordinatorBench:
    """A session whose first batch is asked for."""
    bench = CoordinatorBench(job(**settings))
    bench.get_ready()
    return bench


def validating(counts: tuple[int, ...]) -> CoordinatorBench:
    """A session whose validation after step 1 has just begun, with these target counts."""
    bench = begun(validate_every=1)
    bench.train_step()
    bench.finish(Done())
    assert not of(bench.effects, LoadBatch)
    bench.all_tell(bench.applied)
    assert of(bench.effects, LoadValidation)
    inputs = tuple(bench.handles.give("tokenizer:0", "targets:0") for _ in counts)
    bench.finish(BatchReady(inputs, counts, ()))
    return bench
