"""A worker core whose outcomes the test makes up."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from dcnr_app.cluster import worker
from dcnr_app.cluster.effects import Release
from dcnr_app.cluster.inputs import (
    BackwardDone,
    Finished,
    ForwardDone,
    Input,
    Measured,
    Outcome,
    Prepared,
    Received,
)
from dcnr_app.cluster.messages import (
    AnyMessage,
    Commit,
    Configure,
    Hop,
    SiteGradient,
    TrainRequest,
)
from dcnr_app.cluster.worker_state import WorkerState
from dcnr_app.ids import ORCHESTRATOR, PNodeId
from tests.cluster.cores import NOTHING_SHARED, A, B, Handles
from tests.sim.samples import SETTINGS, job_for, plan_for, tiny


class WorkerBench:
    """A worker core on PNode `me` of a plan for tiny-gpt on two PNodes, configured unless told otherwise."""

    def __init__(
        self,
        me: PNodeId = A,
        *,
        prepared: Prepared = NOTHING_SHARED,
        will_load: bool = False,
        is_prepared: bool = True,
    ) -> None:
        self.handles = Handles()
        self.state = WorkerState(me)
        self.job = job_for(tiny(), SETTINGS, plan_for(tiny(), SETTINGS, 2))
        self.prepared = prepared
        self.tell(self.configure(will_load=will_load))
        if is_prepared:
            self.finish(prepared)

    def configure(self, *, generation: int = 1, session: str = "", will_load: bool = False) -> Configure:
        """The orchestrator's Configure."""
        return Configure(
            session=session or self.job.session,
            generation=generation,
            network=self.job.network,
            plan=msgspec.structs.replace(self.job.plan, generation=generation),
            settings=SETTINGS,
            first_step=1,
            members=(),
            will_load=will_load,
        )

    @property
    def ids(self) -> Mapping[str, Any]:
        """Session and generation 1."""
        return {"session": self.job.session, "generation": 1}

    def take(self, event: Input) -> list[Any]:
        """Effects of an input, releases booked and left out."""
        self.state, effects = worker.step(self.state, event, 0.0)
        for effect in effects:
            if isinstance(effect, Release):
                self.handles.release(effect)
        return [effect for effect in effects if not isinstance(effect, Release)]

    def tell(self, message: AnyMessage, *tensors: str, sender: PNodeId = ORCHESTRATOR) -> list[Any]:
        """Effects of a message with fresh tensors of these names."""
        return self.take(Received(sender, message, self.handles.give(*tensors)))

    def finish(self, outcome: Outcome, *, effect_id: int = 0) -> list[Any]:
        """Effects of the end of the compute effect under way (or of another one)."""
        return self.take(Finished(effect_id or self.state.running, outcome))


OWNER = msgspec.structs.replace(
    NOTHING_SHARED,
    owned=("embed.weight",),
    copies_to={"embed.weight": (B,)},
    sites_from=("embed.weight|head.weight",),
)
USER = msgspec.structs.replace(
    NOTHING_SHARED,
    copies_from=("embed.weight",),
    site_owner={"embed.weight|head.weight": A},
)


def request(bench: WorkerBench, microbatch: int = 0, step: int = 1) -> TrainRequest:
    """Inputs of a microbatch."""
    return TrainRequest(
        **bench.ids, request=1, step=step, microbatch=microbatch, loss_scale=1.0, target_count=10
    )


def commit(bench: WorkerBench, step: int = 1, *, skip: bool = False, capture: bool = False) -> Commit:
    """The decision for a step."""
    return Commit(
        **bench.ids, step=step, skip=skip, clip_coefficient=1.0, learning_rate=0.1, t=step, loss_scale=1.0,
        capture=capture,
    )  # fmt: skip


def through_backward(bench: WorkerBench) -> list:
    """All tasks of the first PNode's list; returns the last effects."""
    effects: list = []
    for microbatch in range(4):
        effects += bench.tell(request(bench, microbatch), "tokenizer:0")
    segment = bench.job.plan.segments[0]
    for microbatch in range(4):
        for edge in segment.gradients_in:
            message = Hop(
                **bench.ids, request=1, phase="train", step=bench.state.step, microbatch=microbatch,
                direction="B", segment=0, slot=edge, target_count=10,
            )  # fmt: skip
            bench.tell(message, edge, sender=B)
    while bench.state.running and bench.state.stage == "computing":
        key = bench.state.running_key
        assert key is not None
        if key.direction == "F":
            outputs = bench.handles.give(*segment.gives)
            effects = bench.finish(ForwardDone(outputs, None, 1.0))
        else:
            effects = bench.finish(BackwardDone({}, 1.0))
    return effects


def deciding(prepared=NOTHING_SHARED) -> WorkerBench:
    """A worker that waits for the decision on step 1."""
    bench = WorkerBench(prepared=prepared)
    through_backward(bench)
    if prepared.sites_from:
        bench.tell(
            SiteGradient(**bench.ids, step=1, parameter="embed.weight", site="head.weight"),
            "gradient",
            sender=B,
        )
    bench.finish(Measured({}))
    assert bench.state.stage == "deciding"
    return bench
