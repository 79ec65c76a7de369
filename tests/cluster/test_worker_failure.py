"""The worker core when something ends: a task, its session, the trust in a peer."""

from __future__ import annotations

import pytest

from dcnr_app.cluster.effects import Leave, Prepare
from dcnr_app.cluster.inputs import (
    CheckpointWritten,
    ForwardDone,
    Lost,
    TaskFailed,
)
from dcnr_app.cluster.messages import (
    Failed,
    Hop,
    Ready,
    Refused,
    SiteGradient,
    Stop,
)
from dcnr_app.errors import InvariantError
from dcnr_app.ids import ORCHESTRATOR, PNodeId
from tests.cluster.cores import NOTHING_SHARED, A, B, compute, sent
from tests.cluster.worker_bench import WorkerBench, commit, request


@pytest.mark.parametrize("outcome", ["forward", "prepared"])
def test_a_failed_worker_stays_failed_when_what_it_was_doing_ends(outcome: str) -> None:
    bench = WorkerBench(is_prepared=outcome == "forward")
    if outcome == "forward":
        bench.tell(request(bench), "tokenizer:0")
    (failed,) = sent(bench.take(Lost(B, "reset")), Failed)
    assert "lost PNode p2: reset" in failed.what
    done = NOTHING_SHARED
    if outcome == "forward":
        done = ForwardDone(bench.handles.give(*bench.job.plan.segments[0].gives), None, 1.0)
    assert bench.finish(done) == []
    assert bench.state.stage == "failed"
    assert bench.tell(request(bench, 1), "tokenizer:0") == []
    assert bench.tell(commit(bench)) == []
    assert bench.take(Lost(B, "again")) == []
    bench.tell(Stop(**bench.ids))
    assert not bench.handles.open


def test_a_failure_is_told_with_its_place() -> None:
    bench = WorkerBench()
    bench.tell(request(bench), "tokenizer:0")
    (failed,) = sent(bench.finish(TaskFailed("VNode 'embed' failed", "segment 0")), Failed)
    assert (failed.what, failed.where) == ("VNode 'embed' failed", "segment 0")


@pytest.mark.parametrize("way", ["stop", "lost", "configure"])
def test_a_task_that_ends_after_its_session_gives_its_tensors_back(way: str) -> None:
    bench = WorkerBench()
    bench.tell(request(bench), "tokenizer:0")
    bench.tell(SiteGradient(**bench.ids, step=1, parameter="x", site="y"), "gradient", sender=B)
    running = bench.state.running
    match way:
        case "stop":
            effects = bench.tell(Stop(**bench.ids))
        case "lost":
            effects = bench.take(Lost(ORCHESTRATOR, "gone"))
        case _:
            effects = bench.tell(bench.configure(generation=2))
    assert isinstance(effects[-1], Prepare if way == "configure" else Leave)
    assert not bench.handles.open
    outputs = bench.handles.give(*bench.job.plan.segments[0].gives)
    assert bench.finish(ForwardDone(outputs, None, 1.0), effect_id=running) == []
    assert not bench.handles.open
    if way == "configure":
        assert bench.finish(NOTHING_SHARED)
    else:
        assert compute(bench.tell(bench.configure(session="another")))


def test_the_same_configure_again_is_answered_with_ready_and_an_older_one_refused() -> None:
    bench = WorkerBench()
    assert len(sent(bench.tell(bench.configure()), Ready)) == 1
    bench.tell(bench.configure(generation=2))
    (refused,) = sent(bench.tell(bench.configure()), Refused)
    assert refused.reason == "generation 1 is older than 2"


def test_only_the_orchestrator_configures_and_only_members_speak() -> None:
    stranger = PNodeId("mallory")
    bench = WorkerBench()
    before = repr(bench.state)
    hop = Hop(**bench.ids, request=1, phase="train", step=1, microbatch=0, direction="F", segment=0, slot="x")
    for message in (bench.configure(generation=2), hop, commit(bench), Stop(**bench.ids)):
        (refused,) = sent(bench.tell(message, sender=stranger), Refused)
        assert stranger in refused.reason
    assert bench.tell(Refused(reason="because"), sender=stranger) == []
    assert bench.take(Lost(stranger, "reset")) == []
    assert repr(bench.state) == before


@pytest.mark.parametrize(("generation", "fails"), [(0, True), (1, True), (2, False)])
def test_a_refusal_from_a_peer_fails_only_its_own_generation(generation: int, fails: bool) -> None:
    bench = WorkerBench()
    effects = bench.tell(Refused(reason="because", tag="hop.v1", generation=generation), sender=B)
    assert len(sent(effects, Failed)) == fails


def test_a_backward_outside_training_is_refused() -> None:
    bench = WorkerBench()
    edge = bench.job.plan.segments[0].gradients_in[0]
    hop = Hop(
        **bench.ids, request=1, phase="evaluate", step=0, microbatch=0, direction="B", segment=0, slot=edge
    )
    (refused,) = sent(bench.tell(hop, edge, sender=B), Refused)
    assert refused.reason == "there is no backward in phase evaluate"
    assert not bench.handles.open


def test_a_message_of_another_session_is_refused() -> None:
    bench = WorkerBench()
    other = Stop(session="other", generation=1)
    (refused,) = sent(bench.tell(other), Refused)
    assert refused.reason == "p1 is in session simulated"


def test_an_outcome_that_fits_no_stage_is_an_error_of_ours() -> None:
    bench = WorkerBench()
    bench.tell(request(bench), "tokenizer:0")
    with pytest.raises(InvariantError, match="CheckpointWritten"):
        bench.finish(CheckpointWritten("x"))


def test_a_peer_cannot_fill_the_mailbox_with_evaluations() -> None:
    bench = WorkerBench(B, is_prepared=False)  # not computing yet: what comes waits
    plan = bench.state.plan
    own = next(s for s in plan.segments if s.pnode == B)
    refused: list[str] = []
    for index in range(500):
        hop = Hop(
            **bench.ids, request=index, phase="evaluate", step=0, microbatch=index, direction="F",
            segment=own.index, slot=own.needs[0],
        )  # fmt: skip
        refused += [r.reason for r in sent(bench.tell(hop, own.needs[0], sender=A), Refused)]
    assert set(refused) == {"too many evaluations are under way"}
    assert len(bench.state.mailbox) <= 4 * plan.in_flight * len(plan.segments)
