"""Drives the SegmentRuntimes of a plan through steps, as workers would, in one thread."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np

from dcnr_app.cluster.plan import Plan
from dcnr_app.engine.backend import Backend
from dcnr_app.engine.reference import ReferenceBackend
from dcnr_app.ids import PNodeId
from dcnr_app.nodes.graph.network import Network
from dcnr_app.nodes.graph.training import TrainingSettings
from dcnr_app.runtime.keys import Decision, Fact, RunKey
from dcnr_app.runtime.segments import SegmentRuntime
from tests.runtime.networks import SETTINGS, small_batch
from tests.runtime.plans import Cut, make_plan

Batches = Callable[[int, int], Mapping[str, Any]]
SCALE, N_TARGETS = 4.0, 30


class StepResult(NamedTuple):
    """What one step showed: loss sums in microbatch order and the facts by parameter."""

    losses: list[float]
    facts: dict[str, Fact]


class Pipeline:
    """All runtimes of one plan."""

    def __init__(self, network: Network, plan: Plan, settings: TrainingSettings, backend: Backend) -> None:
        self.plan = plan
        self.settings = settings
        self.runtimes = {
            pnode: SegmentRuntime(backend=backend, network=network, plan=plan, pnode=pnode, settings=settings)
            for pnode in plan.pnodes
        }
        for runtime in self.runtimes.values():
            runtime.initialise()

    def forward(self, key: RunKey, inputs: Mapping[str, Any]) -> tuple[float | None, dict[str, Any]]:
        """Loss sum and all tensors that crossed segments."""
        values, loss = dict(inputs), None
        for segment in self.plan.segments:
            given = {reference: values[reference] for reference in segment.needs if reference in values}
            result = self.runtimes[segment.pnode].forward(segment.index, key, given)
            values.update(self._carry(result.outputs))
            loss = result.loss_sum if result.loss_sum is not None else loss
        return loss, values

    def backward(self, key: RunKey) -> None:
        """Backward of all segments, gradients handed on by edge."""
        edges: dict[str, Any] = {}
        for segment in reversed(self.plan.segments):
            if segment.has_backward:
                given = {edge: edges.pop(edge) for edge in segment.gradients_in}
                runtime = self.runtimes[segment.pnode]
                out = runtime.backward(segment.index, key, given, SCALE / N_TARGETS)
                assert set(out) == set(segment.gradients_out)
                edges.update(self._carry(out))
        assert not edges

    def _carry(self, tensors: dict[str, Any]) -> dict[str, Any]:
        """The tensors as they arrive: by reference on one PNode, as C-contiguous copies from elsewhere."""
        if len(self.runtimes) == 1:
            return tensors
        return {name: np.array(tensor, order="C") for name, tensor in tensors.items()}

    def gradients(self, step: int, batches: Batches = small_batch, *, in_flight: int = 1) -> list[float]:
        """Forward and backward of all microbatches, `in_flight` forwards ahead; loss sums in order."""
        keys = [RunKey("train", step, index) for index in range(self.settings.microbatches)]
        losses: list[float] = []
        for index, key in enumerate(keys):
            loss, _ = self.forward(key, batches(step, index))
            assert loss is not None
            losses.append(loss)
            if index + 1 >= in_flight:
                self.backward(keys[index + 1 - in_flight])
        for key in keys[max(0, len(keys) + 1 - in_flight) :]:
            self.backward(key)
        return losses

    def facts(self) -> dict[str, Fact]:
        """Facts of all parameters by name, site sums exchanged first, in an order that is not canonical."""
        sent: dict[tuple[str, str], Any] = {}
        for runtime in reversed(self.runtimes.values()):
            sent.update(runtime.remote_site_gradients())
        found: dict[str, Fact] = {}
        for runtime in self.runtimes.values():
            mine = {site: sent[site] for site in runtime.remote_sites_expected()}
            found.update(runtime.facts(mine, SCALE))
        return dict(sorted(found.items()))

    def apply(self, step: int, *, skip: bool = False) -> None:
        """Decision, updates, copies of shared parameters."""
        decision = Decision(skip, 0.5, self.settings.optimizer.learning_rate, step + 1, SCALE)
        for runtime in self.runtimes.values():
            runtime.apply(decision)
        for runtime in self.runtimes.values():
            for name, others in runtime.copies_for().items():
                for pnode in others:
                    assert name in self.runtimes[pnode].copies_expected()
                    self.runtimes[pnode].set_parameter(name, runtime.parameter(name))

    def step(self, step: int, *, in_flight: int = 1) -> StepResult:
        """A whole step."""
        losses = self.gradients(step, in_flight=in_flight)
        facts = self.facts()
        self.apply(step)
        return StepResult(losses, facts)

    def state(self) -> dict[str, dict[str, np.ndarray]]:
        """State of all parameters, from their owners."""
        return {
            name: runtime.state(name)
            for runtime in self.runtimes.values()
            for name in sorted(runtime.owned())
        }

    def at(self, pnode: str) -> SegmentRuntime:
        """The runtime of a PNode."""
        return self.runtimes[PNodeId(pnode)]


@contextmanager
def pipeline(network: Network, cut: Cut, settings: TrainingSettings = SETTINGS) -> Iterator[Pipeline]:
    """A Pipeline over the reference backend, closed afterwards."""
    backend = ReferenceBackend(threads=1)
    made = Pipeline(network, make_plan(network, cut, settings.microbatches), settings, backend)
    yield made
    for runtime in made.runtimes.values():
        runtime.close()
    backend.close()


def same_state(left: Mapping[str, Mapping[str, Any]], right: Mapping[str, Mapping[str, Any]]) -> bool:
    """Whether both hold the same names and the same bits."""
    return left.keys() == right.keys() and all(
        left[name].keys() == right[name].keys()
        and all(left[name][slot].tobytes() == right[name][slot].tobytes() for slot in left[name])
        for name in left
    )
