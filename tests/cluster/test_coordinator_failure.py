"""The coordinator core when something fails: what is told, what is given back, who may speak."""

from __future__ import annotations

import msgspec
import pytest

from dcnr_app.cluster import coordinator
from dcnr_app.cluster.coordinator_state import Recovery
from dcnr_app.cluster.devices import DeviceFacts
from dcnr_app.cluster.effects import Evict, WriteCheckpoint
from dcnr_app.cluster.inputs import (
    CheckpointWritten,
    Done,
    Finished,
    Lost,
    StopRequested,
    TaskFailed,
)
from dcnr_app.cluster.messages import (
    Failed,
    Refused,
    StatePart,
    Stop,
)
from dcnr_app.ids import PNodeId
from tests.cluster.coordinator_bench import CoordinatorBench, begun, job, of, validating
from tests.cluster.cores import A, B, Handles, sent
from tests.sim.samples import tiny


def gathering() -> CoordinatorBench:
    """A session with a checkpoint half gathered and the next batch sent."""
    bench = begun(checkpoint_every=1, validate_every=50)
    bench.train_step()
    bench.finish(Done())
    bench.send_state(A, 1)
    bench.finish(bench.batch())
    assert bench.handles.open
    return bench


@pytest.mark.parametrize("way", ["lost", "failed", "refused", "leave"])
def test_the_end_of_a_session_gives_everything_back(way: str) -> None:
    bench = gathering()
    match way:
        case "lost":
            bench.take(Lost(B, "reset"))
        case "failed":
            bench.tell(B, Failed(**bench.ids, what="x", where="y"))
        case "refused":
            bench.tell(B, Refused(reason="because", generation=1))
        case _:
            bench.book(coordinator.leave(bench.state))
            assert len(sent(bench.effects, Stop)) == 2
    assert [failure.kind for failure in bench.failures()] == ([] if way == "leave" else [way])
    assert not bench.handles.open
    bench.send_state(B, 1)
    bench.take(Lost(A, "reset"))
    bench.tell(A, Failed(**bench.ids, what="x", where="y"))
    assert not bench.failures(), "only the first failure is told"
    assert not bench.handles.open


def test_unsent_validation_inputs_are_given_back_on_failure() -> None:
    bench = validating((10,) * 6)
    assert bench.handles.open
    bench.take(Lost(A, "reset"))
    assert not bench.handles.open


def test_state_that_was_never_sent_is_given_back_on_failure() -> None:
    handles = Handles()
    weight = handles.give("weight", "m")
    loads = {A: {"x": weight}, B: {"x": {"weight": weight["weight"]}}}
    bench = CoordinatorBench(msgspec.structs.replace(job(), resume_step=2, loads=loads))
    bench.handles = handles
    bench.take(Lost(A, "reset"))
    assert not handles.open


@pytest.mark.parametrize("outcome", [CheckpointWritten("x"), TaskFailed("disk", "x")])
def test_a_checkpoint_that_ends_after_a_failure_gives_its_tensors_back_and_revives_nothing(
    outcome: CheckpointWritten | TaskFailed,
) -> None:
    bench = begun(steps=2, checkpoint_every=1, validate_every=50)
    bench.train_step()
    bench.finish(Done())
    bench.send_state(A, 1)
    (write,) = of(bench.send_state(B, 1), WriteCheckpoint)
    bench.take(StopRequested())
    bench.take(Lost(A, "reset"))
    assert bench.handles.open, "the writer still reads them"
    assert bench.take(Finished(write.id, outcome)) == []
    assert bench.state.stage == "failed"
    assert not bench.handles.open


def test_a_failed_session_commits_nothing_any_more() -> None:
    bench = begun()
    bench.train_step()
    bench.take(Lost(A, "reset"))
    assert bench.finish(Done()) == []


def test_a_batch_that_comes_after_a_failure_is_given_back() -> None:
    bench = begun()
    bench.take(Lost(A, "reset"))
    assert bench.finish(bench.batch()) == []
    assert not bench.handles.open


# ---- who may speak


def test_strangers_and_old_generations_change_nothing() -> None:
    bench = begun()
    before = repr(bench.state)
    stranger = PNodeId("mallory")
    assert sent(bench.tell(stranger, bench.gradients(A)), Refused)
    assert not bench.failures()
    bench.tell(stranger, Refused(reason="because"))
    bench.take(Lost(stranger, "reset"))
    bench.tell(A, Refused(reason="because", generation=7))
    old = msgspec.structs.replace(bench.gradients(A), generation=7)
    (refused,) = sent(bench.tell(A, old), Refused)
    assert refused.reason == "generation 7 is not the current one, 1"
    other = msgspec.structs.replace(bench.gradients(A), session="other")
    assert sent(bench.tell(A, other), Refused)
    assert repr(bench.state) == before


def test_a_part_that_nobody_asked_for_is_given_back() -> None:
    bench = begun()
    bench.tell(A, StatePart(**bench.ids, step=1, parameter="x"), "weight")
    assert not bench.handles.open


def test_memory_that_ran_out_replaces_the_process_and_shrinks_its_next_share() -> None:
    graph = tiny()
    devices = tuple(
        DeviceFacts(pnode=pnode, gemm_flops={"float32": 1e9}, free_memory_bytes=1_000_000_000)
        for pnode in (A, B)
    )
    recovery = Recovery(graph=graph, devices=devices)
    bench = CoordinatorBench(msgspec.structs.replace(job(), recovery=recovery))
    effects = bench.tell(B, Failed(**bench.ids, what="memory ran out: x", where="PNode p2", is_memory=True))
    assert not bench.failures()
    assert [effect.pnode for effect in of(effects, Evict)] == [B]
    assert bench.state.stage == "recovering"
    left = {pnode: device.free_memory_bytes for pnode, device in bench.state.devices.items()}
    assert left == {A: 1_000_000_000, B: 600_000_000}
