"""The worker core, message by message: order, repetition, lateness."""

from __future__ import annotations

import pytest

from dcnr_app.cluster.effects import (
    ApplyDecision,
    CollectSites,
    Measure,
    RunForward,
    StoreParameter,
)
from dcnr_app.cluster.inputs import (
    Captured,
    DecisionApplied,
    Done,
    ForwardDone,
    Measured,
    SitesDone,
)
from dcnr_app.cluster.messages import (
    Applied,
    EvalRequest,
    GradientsReady,
    Hop,
    LoadDone,
    LoadState,
    ParameterCopy,
    Refused,
    SiteGradient,
    StateDone,
    StatePart,
)
from tests.cluster.cores import A, B, compute, sent
from tests.cluster.worker_bench import OWNER, USER, WorkerBench, commit, deciding, request, through_backward


def test_a_whole_step_ends_with_applied_and_no_tensor_kept() -> None:
    bench = deciding()
    effects = bench.tell(commit(bench))
    assert [type(effect) for effect in effects] == [ApplyDecision]
    effects = bench.finish(DecisionApplied({}))
    assert [message.step for message in sent(effects, Applied)] == [1]
    assert bench.state.step == 2
    assert not bench.handles.open
    assert not bench.state.holds


def test_tasks_start_in_list_order_whatever_arrives_first() -> None:
    bench = WorkerBench()
    assert not compute(bench.tell(request(bench, 1), "tokenizer:0"))
    (started,) = compute(bench.tell(request(bench, 0), "tokenizer:0"))
    assert (started.microbatch, started.step) == (0, 1)


def test_a_repeated_tensor_is_given_back_and_counts_once() -> None:
    bench = WorkerBench()
    bench.tell(request(bench), "tokenizer:0")
    kept = set(bench.handles.open)
    for _ in range(3):
        assert not bench.tell(request(bench), "tokenizer:0")
    assert bench.handles.open == kept


@pytest.mark.parametrize("stage", ["deciding", "applying", "after"])
def test_a_repeated_commit_applies_once(stage: str) -> None:
    bench = deciding()
    n_applied = len(sent_apply := bench.tell(commit(bench)))
    if stage != "deciding":
        bench.finish(DecisionApplied({}))
    effects = bench.tell(commit(bench))
    assert n_applied == 1
    assert isinstance(sent_apply[0], ApplyDecision)
    assert not [effect for effect in effects if isinstance(effect, ApplyDecision)]
    assert not sent(effects, Refused)
    assert len(sent(effects, Applied)) == (stage != "deciding")


def test_a_commit_before_its_gradients_is_refused() -> None:
    bench = WorkerBench()
    (refused,) = sent(bench.tell(commit(bench)), Refused)
    assert refused.reason == "step 1 is not decided here yet"


def test_a_skip_waits_for_no_copies() -> None:
    bench = WorkerBench(B, prepared=USER)
    bench.state.stage = "deciding"
    bench.tell(commit(bench, skip=True))
    effects = bench.finish(DecisionApplied({}))
    assert [message.step for message in sent(effects, Applied)] == [1]


def test_an_update_waits_for_the_owners_copy_even_if_it_came_first() -> None:
    bench = WorkerBench(B, prepared=USER)
    bench.state.stage = "deciding"
    copy = ParameterCopy(**bench.ids, step=1, parameter="embed.weight")
    bench.tell(copy, "weight", sender=A)
    bench.tell(commit(bench))
    (store,) = bench.finish(DecisionApplied({}))
    assert isinstance(store, StoreParameter)
    assert not store.is_load
    assert bench.tell(copy, "weight", sender=A) == []
    assert [message.step for message in sent(bench.finish(Done()), Applied)] == [1]
    assert not bench.handles.open


def test_the_owner_measures_only_with_all_sites_and_sends_the_new_value_to_the_others() -> None:
    bench = WorkerBench(prepared=OWNER)
    assert not [effect for effect in through_backward(bench) if isinstance(effect, Measure)]
    site = SiteGradient(**bench.ids, step=1, parameter="embed.weight", site="head.weight")
    (measure,) = bench.tell(site, "gradient", sender=B)
    assert set(measure.remote) == {"embed.weight|head.weight"}
    assert len(sent(bench.finish(Measured({})), GradientsReady)) == 1
    bench.tell(commit(bench))
    effects = bench.finish(DecisionApplied(bench.handles.give("embed.weight")))
    assert [message.parameter for message in sent(effects, ParameterCopy)] == ["embed.weight"]
    assert not bench.handles.open


def test_a_site_elsewhere_sends_its_sum_to_the_owner() -> None:
    bench = WorkerBench(prepared=USER)
    (collect,) = through_backward(bench)
    assert isinstance(collect, CollectSites)
    effects = bench.finish(SitesDone(bench.handles.give("embed.weight|head.weight")))
    (message,) = sent(effects, SiteGradient)
    assert (message.parameter, message.site) == ("embed.weight", "head.weight")
    assert effects[0].to == A
    assert not bench.handles.open


@pytest.mark.parametrize("kind", ["site", "copy", "train"])
@pytest.mark.parametrize(("step", "is_kept"), [(1, True), (2, True), (3, False)])
def test_what_is_one_step_ahead_is_kept_and_two_is_refused(kind: str, step: int, is_kept: bool) -> None:
    bench = WorkerBench(prepared=OWNER)
    if kind == "site":
        message = SiteGradient(**bench.ids, step=step, parameter="embed.weight", site="head.weight")
        effects = bench.tell(message, "gradient", sender=B)
    elif kind == "copy":
        effects = bench.tell(
            ParameterCopy(**bench.ids, step=step, parameter="embed.weight"), "weight", sender=B
        )
    else:
        effects = bench.tell(request(bench, step=step), "tokenizer:0")
    assert len(bench.handles.open) == is_kept
    assert len(sent(effects, Refused)) == (not is_kept)


def test_late_messages_of_a_past_step_leave_nothing() -> None:
    bench = deciding()
    bench.tell(commit(bench))
    bench.finish(DecisionApplied({}))
    before = repr(bench.state)
    bench.tell(request(bench, step=1), "tokenizer:0")
    bench.tell(SiteGradient(**bench.ids, step=1, parameter="embed.weight", site="x"), "gradient", sender=B)
    bench.tell(EvalRequest(**bench.ids, request=1, step=0, index=0), "tokenizer:0")
    assert repr(bench.state) == before
    assert not bench.handles.open


# ---- loading


def test_loads_count_once_each_in_any_order() -> None:
    bench = WorkerBench(will_load=True)
    bench.tell(LoadDone(**bench.ids, count=2))
    stores = bench.tell(LoadState(**bench.ids, parameter="a"), "weight")
    bench.tell(LoadState(**bench.ids, parameter="a"), "weight")
    assert [store.parameter for store in stores] == ["a"]
    assert not bench.finish(Done())
    assert not bench.tell(LoadState(**bench.ids, parameter="a"), "weight"), "a was stored already"
    (store,) = bench.tell(LoadState(**bench.ids, parameter="b"), "weight")
    assert (store.parameter, store.is_load) == ("b", True)
    assert [message.step for message in sent(bench.finish(Done()), Applied)] == [0]
    assert not bench.tell(LoadState(**bench.ids, parameter="b"), "weight"), "late, and no reason to complain"
    assert not bench.handles.open


def test_loads_are_refused_where_parameters_come_from_the_seed() -> None:
    bench = WorkerBench()
    (refused,) = sent(bench.tell(LoadState(**bench.ids, parameter="a"), "weight"), Refused)
    assert refused.reason == "no parameters are awaited"


# ---- checkpoints


def test_a_capture_sends_every_part_and_their_number_before_the_next_step() -> None:
    bench = deciding()
    bench.tell(commit(bench, capture=True))
    bench.finish(DecisionApplied({}))
    assert bench.state.stage == "capturing"
    effects = bench.finish(Captured({"a": bench.handles.give("weight", "m", "v")}))
    assert [(message.step, message.parameter) for message in sent(effects, StatePart)] == [(1, "a")]
    assert [(message.step, message.count) for message in sent(effects, StateDone)] == [(1, 1)]
    assert not bench.handles.open


def test_evaluation_runs_between_steps_and_answers_with_the_loss() -> None:
    bench = deciding()
    bench.tell(commit(bench))
    bench.finish(DecisionApplied({}))
    (run,) = bench.tell(EvalRequest(**bench.ids, request=1, step=1, index=3), "tokenizer:0")
    assert isinstance(run, RunForward)
    assert (run.phase, run.step, run.microbatch) == ("evaluate", 1, 3)
    outputs = bench.handles.give(*bench.job.plan.segments[0].gives)
    hops = sent(bench.finish(ForwardDone(outputs, None, 1.0)), Hop)
    assert {(hop.phase, hop.microbatch) for hop in hops} == {("evaluate", 3)}
    assert not bench.handles.open
