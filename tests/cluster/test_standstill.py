"""What counts as progress of a PNode besides finished tasks: what is stored, and bytes that came to it."""

from __future__ import annotations

from typing import Any

from dcnr_app.cluster import worker
from dcnr_app.cluster.effects import Recovering
from dcnr_app.cluster.inputs import Done
from dcnr_app.cluster.messages import LoadDone, LoadState, Status
from tests.cluster.coordinator_bench import of
from tests.cluster.cores import A
from tests.cluster.recovery_bench import STALL_MS, RecoveryBench, training
from tests.cluster.worker_bench import WorkerBench


def report(bench: RecoveryBench, **facts: Any) -> None:
    """PNode p1 says where it is."""
    known = {"stage": "computing", "step": 1, "tasks_done": 0, "running_ms": 0.0}
    bench.tell(A, Status(**bench.ids, **{**known, **facts}))


def test_bytes_that_still_come_are_no_standstill() -> None:
    bench = training()
    report(bench, received_bytes=100)
    bench.now_ms = STALL_MS
    report(bench, received_bytes=101)
    assert not of(bench.tick(2 * STALL_MS), Recovering)
    report(bench, received_bytes=101)
    assert of(bench.tick(2 * STALL_MS + 1.0), Recovering)


def test_bytes_do_not_make_an_effect_that_hangs_a_long_one() -> None:
    bench = training()
    report(bench, running_ms=STALL_MS, received_bytes=100)
    report(bench, running_ms=STALL_MS + 1.0, received_bytes=101)
    assert of(bench.tick(STALL_MS + 1.0), Recovering), "the limit is what it was"


def test_a_pnode_that_loads_counts_what_it_has_stored() -> None:
    bench = WorkerBench(will_load=True)
    done = []
    for parameter in ("embed.weight", "final_norm.gain"):
        bench.tell(LoadState(**bench.ids, parameter=parameter), "weight")
        bench.finish(Done())
        status = worker.status(bench.state, 0.0, 7)
        assert status is not None
        done.append((status.stage, status.tasks_done, status.received_bytes))
    assert done == [("loading", 1, 7), ("loading", 2, 7)]
    bench.tell(LoadDone(**bench.ids, count=2))
    status = worker.status(bench.state, 0.0)
    assert status is not None
    assert (status.stage, status.tasks_done) == ("computing", 0)
