"""The coordinator core, message by message: order, repetition, what is sent to whom."""

from __future__ import annotations

import math

import msgspec
import pytest

from dcnr_app.cluster.effects import (
    AppendCommit,
    Deliver,
    LoadBatch,
    SessionFailed,
    Trained,
    Validated,
    WriteCheckpoint,
)
from dcnr_app.cluster.inputs import (
    BatchReady,
    CheckpointWritten,
    Done,
    Finished,
    GenerateRequested,
)
from dcnr_app.cluster.messages import (
    Applied,
    Commit,
    Configure,
    EvalRequest,
    EvalResponse,
    Failed,
    GenerateRequest,
    GenerateResponse,
    LoadDone,
    LoadState,
    Norm,
    Ready,
    TrainRequest,
)
from dcnr_app.errors import InvariantError
from tests.cluster.coordinator_bench import CoordinatorBench, begun, job, of, validating
from tests.cluster.cores import A, B, Handles, sent


def test_a_step_goes_from_configure_to_commit_in_order() -> None:
    bench = CoordinatorBench(job())
    assert len(sent(bench.effects, Configure)) == 2
    bench.tell(A, Ready(**bench.ids, device_class="x", pid=1))
    assert not of(bench.effects, LoadBatch)
    bench.tell(B, Ready(**bench.ids, device_class="x", pid=1))
    (load,) = of(bench.effects, LoadBatch)
    assert load.step == 1
    requests = sent(bench.finish(bench.batch()), TrainRequest)
    assert {(request.microbatch, request.target_count) for request in requests} == {
        (index, 40) for index in range(4)
    }
    assert not bench.handles.open
    bench.tell(A, bench.gradients(A))
    assert not bench.effects
    (append,) = of(bench.tell(B, bench.gradients(B)), AppendCommit)
    assert append.decision.loss == 80.0 / 40
    assert append.decision.gradient_norm == math.sqrt(0.5)
    assert not sent(bench.effects, Commit), "the row is not durable yet"
    bench.finish(Done())
    assert [message.step for message in sent(bench.effects, Commit)] == [1, 1]
    assert [load.step for load in of(bench.effects, LoadBatch)] == [2]


def test_repeated_answers_count_once() -> None:
    bench = begun()
    bench.finish(bench.batch())
    for _ in range(3):
        assert not bench.tell(A, bench.gradients(A))
    bench.tell(B, bench.gradients(B))
    assert not bench.tell(B, bench.gradients(B))
    bench.finish(Done())
    assert not bench.tell(A, Ready(**bench.ids, device_class="x", pid=1))


def test_a_step_is_decided_once_even_while_it_waits_for_a_checkpoint() -> None:
    bench = begun(checkpoint_every=1, validate_every=50)
    bench.train_step()
    bench.finish(Done())
    bench.train_step()
    assert not of(bench.effects, AppendCommit), "step 1 is not durable yet"
    bench.tell(B, bench.gradients(B))
    bench.send_state(A, 1)
    (write,) = of(bench.send_state(B, 1), WriteCheckpoint)
    effects = bench.take(Finished(write.id, CheckpointWritten("x")))
    assert [append.decision.step for append in of(effects, AppendCommit)] == [2]
    assert not bench.handles.open


def test_any_overflow_makes_a_skip_for_all() -> None:
    bench = begun()
    bench.finish(bench.batch())
    bench.tell(A, bench.gradients(A))
    spoilt = msgspec.structs.replace(bench.gradients(B), norms={"x": Norm(math.inf, False)})
    (append,) = of(bench.tell(B, spoilt), AppendCommit)
    assert append.decision.skip
    bench.finish(Done())
    assert {(message.skip, message.t) for message in sent(bench.effects, Commit)} == {(True, 0)}
    assert bench.state.t == 0
    assert bench.state.step == 2


def test_a_batch_without_targets_ends_the_session_instead_of_dividing_by_zero() -> None:
    bench = begun()
    bench.finish(bench.batch(target_count=0))
    (failure,) = bench.failures()
    assert failure.what == "the batch of step 1 has no target token"
    assert not bench.handles.open


# ---- validation


def test_validation_waits_for_all_and_folds_in_index_order() -> None:
    bench = validating((10, 10, 10, 10, 10, 5))
    assert {message.index for message in sent(bench.effects, EvalRequest)} == {0, 1, 2, 3}
    sums = [0.1, 0.2, 0.3, 0.4, 0.5, 0.6]
    expected = 0.0
    for value in sums:
        expected += value
    for index in (3, 0, 1, 1, 5, 2, 4, 5):
        bench.tell(B, EvalResponse(**bench.ids, request=1, step=1, index=index, loss_sum=sums[index]))
        if of(bench.effects, Validated):
            break
    assert of(bench.effects, Validated) == [Validated(1, expected / 55)]
    assert of(bench.effects, LoadBatch)
    assert not bench.handles.open


@pytest.mark.parametrize("counts", [(), (0, 0)])
def test_a_validation_without_targets_is_passed_over(counts: tuple[int, ...]) -> None:
    bench = validating(counts)
    assert not of(bench.effects, Validated)
    assert [load.step for load in of(bench.effects, LoadBatch)] == [2]
    assert not bench.handles.open


def test_an_answer_to_a_question_that_was_not_asked_is_ignored() -> None:
    bench = validating((10, 10))
    for index in (-1, 2, 99):
        assert not bench.tell(B, EvalResponse(**bench.ids, request=1, step=1, index=index, loss_sum=1.0))
    assert not bench.state.evaluation


# ---- loading


def test_loads_go_to_each_pnode_and_the_first_step_waits_for_all() -> None:
    handles = Handles()
    weight, other = handles.give("weight", "m"), handles.give("weight")
    loads = {A: {"x": weight}, B: {"x": {"weight": weight["weight"]}, "y": other}}
    bench = CoordinatorBench(msgspec.structs.replace(job(), resume_step=3, t=3, loads=loads))
    bench.handles = handles
    effects = bench.get_ready()
    assert [message.parameter for message in sent(effects, LoadState)] == ["x", "x", "y"]
    assert [message.count for message in sent(effects, LoadDone)] == [1, 2]
    assert not handles.open
    bench.tell(A, Applied(**bench.ids, step=3))
    assert not of(bench.effects, LoadBatch)
    bench.tell(A, Applied(**bench.ids, step=3))
    bench.tell(B, Applied(**bench.ids, step=3))
    assert [load.step for load in of(bench.effects, LoadBatch)] == [4]


# ---- generation


def test_generation_sends_only_what_the_logits_need() -> None:
    bench = begun(steps=1, checkpoint_every=1, validate_every=50)
    bench.train_step()
    bench.finish(Done())
    bench.send_state(A, 1)
    (write,) = of(bench.send_state(B, 1), WriteCheckpoint)
    bench.take(Finished(write.id, CheckpointWritten("x")))
    bench.all_tell(bench.applied)
    inputs = (bench.handles.give("tokenizer:0", "targets:0"),)
    bench.finish(BatchReady(inputs, (10,), ()))
    bench.tell(B, EvalResponse(**bench.ids, request=1, step=1, index=0, loss_sum=1.0))
    assert of(bench.effects, Trained) == [Trained(1, False)]

    tensors = bench.handles.give("tokenizer:0", "targets:0")
    bench.take(GenerateRequested(41, tensors, 2))
    (request,) = [effect for effect in bench.effects if isinstance(effect.message, GenerateRequest)]
    assert request.to == A
    assert set(request.tensors) == {"tokenizer:0"}
    assert not bench.handles.open
    answer = GenerateResponse(**bench.ids, request=1, step=1, index=request.message.index)
    (deliver,) = of(bench.tell(B, answer, "logits"), Deliver)
    assert deliver.request == 41
    assert bench.handles.open == {deliver.logits}, "the asker has it now"
    assert not bench.tell(B, answer, "logits")
    assert bench.handles.open == {deliver.logits}


def test_generation_while_training_is_an_error_of_ours() -> None:
    bench = begun()
    with pytest.raises(InvariantError, match="at rest"):
        bench.take(GenerateRequested(1, {}, 0))


def test_the_session_failed_effect_carries_what_where_and_kind() -> None:
    bench = begun()
    bench.tell(B, Failed(**bench.ids, what="VNode 'x' failed", where="PNode p2"))
    assert bench.effects == [SessionFailed("VNode 'x' failed", "PNode p2", "failed")]
