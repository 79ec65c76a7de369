"""The schedule of a step is the one that plain list scheduling finds, and links and windows cost what they
should."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from dcnr_app.cluster.timeline import Flow, Pipeline, Stage, simulate

Key = tuple[bool, int, int]


@st.composite
def pipelines(draw: st.DrawFn) -> Pipeline:
    """Up to five stages in a row with skips, on up to three places, links without bandwidth limits."""
    n_stages = draw(st.integers(1, 5))
    costs = st.integers(1, 4).map(float)
    stages = [
        Stage(draw(st.integers(0, 2)), draw(costs), draw(costs) if draw(st.booleans()) else None)
        for _ in range(n_stages)
    ]
    delay = draw(st.integers(0, 3)) * 1.0
    pairs = [(a, b) for b in range(n_stages) for a in range(b) if draw(st.booleans())]

    def flow(source: int, target: int) -> Flow:
        is_far = stages[source].place != stages[target].place
        return Flow(source, target, 0.0, delay if is_far else 0.0)

    back = [flow(b, a) for a, b in pairs if stages[a].backward is not None and stages[b].backward is not None]
    n_microbatches = draw(st.integers(1, 4))
    in_flight = draw(st.integers(1, n_microbatches))
    return Pipeline(stages, [flow(*pair) for pair in pairs], back, n_microbatches, in_flight, delay)


def needs(pipeline: Pipeline, task: Key) -> list[tuple[Key, float]]:
    """Tasks before a task, each with how long its result is under way."""
    is_backward, microbatch, stage = task
    flows = pipeline.backward if is_backward else pipeline.forward
    found = [((is_backward, microbatch, f.source), f.delay) for f in flows if f.target == stage]
    if not is_backward and not found and microbatch >= pipeline.in_flight:
        for index, other in enumerate(pipeline.stages):
            if other.backward is not None:
                is_far = other.place != pipeline.stages[stage].place
                far = pipeline.window_delay if is_far else 0.0
                found.append(((True, microbatch - pipeline.in_flight, index), far))
    if microbatch:
        found.append(((is_backward, microbatch - 1, stage), 0.0))
    if is_backward:
        found.append(((False, microbatch, stage), 0.0))
    return found


def scheduled(pipeline: Pipeline) -> tuple[list[Key], float]:
    """(order, end) by looking at every task again for every choice."""
    left = {
        (is_backward, microbatch, index)
        for index, stage in enumerate(pipeline.stages)
        for is_backward in (False, True)
        if not is_backward or stage.backward is not None
        for microbatch in range(pipeline.n_microbatches)
    }
    done: dict[Key, float] = {}
    free: dict[int, float] = {}
    order: list[Key] = []
    while left:
        options = []
        for task in left:
            if all(need in done for need, _ in needs(pipeline, task)):
                ready = max((done[need] + delay for need, delay in needs(pipeline, task)), default=0.0)
                start = max(ready, free.get(pipeline.stages[task[2]].place, 0.0))
                options.append((start, not task[0], task[1], -task[2], task))
        start, *_, task = min(options)
        stage = pipeline.stages[task[2]]
        done[task] = free[stage.place] = start + ((stage.backward or 0.0) if task[0] else stage.forward)
        left.remove(task)
        order.append(task)
    return order, max(done.values())


@given(pipelines())
@settings(max_examples=300, deadline=None)
def test_the_schedule_is_that_of_plain_list_scheduling(pipeline: Pipeline) -> None:
    found = simulate(pipeline)
    order, end = scheduled(pipeline)
    assert list(found.order) == order
    assert found.end == end
    for place, busy in found.busy.items():
        stages = [stage for stage in pipeline.stages if stage.place == place]
        cost = sum(stage.forward + (stage.backward or 0.0) for stage in stages)
        assert busy == pipeline.n_microbatches * cost


def test_a_link_sends_one_tensor_after_the_other() -> None:
    stages = [Stage(0, 1.0, None), Stage(1, 1.0, None)]
    slow = simulate(Pipeline(stages, [Flow(0, 1, 10.0, 0.5)], [], 4, 4))
    assert slow.end == 1.0 + 4 * 10.0 + 0.5 + 1.0
    assert slow.sending == {(0, 1): 40.0}


def test_peaks_count_microbatches_between_forward_and_backward() -> None:
    stages = [Stage(0, 1.0, 1.0), Stage(1, 1.0, 1.0)]
    flows = ([Flow(0, 1, 0.0, 0.0)], [Flow(1, 0, 0.0, 0.0)])
    assert simulate(Pipeline(stages, *flows, 6, 1)).peaks == (1, 1)
    free = simulate(Pipeline(stages, *flows, 6, 6))
    assert free.peaks[1] == 1
    assert 1 < free.peaks[0] <= 3


def test_work_in_a_row_cannot_overlap_with_one_microbatch() -> None:
    stages = [Stage(0, 2.0, 4.0), Stage(1, 3.0, 6.0)]
    found = simulate(Pipeline(stages, [Flow(0, 1, 1.0, 1.0)], [Flow(1, 0, 1.0, 1.0)], 1, 1))
    assert found.end == 2 + 2 + 3 + 6 + 2 + 4
