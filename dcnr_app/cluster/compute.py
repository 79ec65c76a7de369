"""Carries out a worker core's compute effects on a real runtime. Blocking; knows no network and no event
loop."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping

from dcnr_app.clock import Clock
from dcnr_app.cluster.effects import (
    ApplyDecision,
    CaptureState,
    CollectSites,
    Measure,
    Prepare,
    RunBackward,
    RunForward,
    StoreParameter,
)
from dcnr_app.cluster.inputs import (
    BackwardDone,
    Captured,
    DecisionApplied,
    Done,
    ForwardDone,
    Handle,
    Handles,
    Measured,
    Outcome,
    Prepared,
    SitesDone,
    TaskFailed,
)
from dcnr_app.cluster.messages import Norm
from dcnr_app.cluster.worker_tasks import LOGITS
from dcnr_app.engine.backend import Array, Backend
from dcnr_app.engine.device import device_class
from dcnr_app.errors import DcnrError, InvariantError
from dcnr_app.ids import PNodeId
from dcnr_app.nodes.graph.analysis import network_parameters
from dcnr_app.nodes.graph.network import Network, decode_network
from dcnr_app.nodes.registry import Registry
from dcnr_app.runtime.keys import Decision, RunKey
from dcnr_app.runtime.segments import SegmentRuntime
from dcnr_app.runtime.tables import HandleTable

ComputeEffect = (
    Prepare
    | RunForward
    | RunBackward
    | CollectSites
    | Measure
    | ApplyDecision
    | StoreParameter
    | CaptureState
)


class Compute:
    """One PNode's runtime and the arrays behind its handles."""

    def __init__(
        self, pnode: PNodeId, registry: Registry, make_backend: Callable[[], Backend], clock: Clock
    ) -> None:
        self._pnode = pnode
        self._registry = registry
        self._clock = clock
        self.backend = make_backend()
        self.handles = HandleTable()
        self._runtime: SegmentRuntime | None = None
        self._network: Network | None = None
        self._copies_to: Mapping[str, tuple[PNodeId, ...]] = {}

    def execute(self, effect: ComputeEffect) -> Outcome:
        """Carry out one effect; what goes wrong inside is an outcome, with its place."""
        try:
            return self._execute(effect)
        except DcnrError as error:
            what = f"{error.what}: {error.why}" if error.why else error.what
            return TaskFailed(
                what, f"PNode {self._pnode}, {error.where}" if error.where else f"PNode {self._pnode}"
            )
        except MemoryError as error:
            why = str(error) or "an allocation failed"
            return TaskFailed(f"memory ran out: {why}", f"PNode {self._pnode}", is_memory=True)
        except (ValueError, ArithmeticError, KeyError) as error:
            return TaskFailed(f"{type(error).__name__}: {error}", f"PNode {self._pnode}")

    def _execute(self, effect: ComputeEffect) -> Outcome:
        match effect:
            case Prepare():
                return self._prepare(effect)
            case RunForward():
                return self._forward(effect)
            case RunBackward():
                return self._backward(effect)
            case CollectSites():
                sites = self.runtime.remote_site_gradients()
                return SitesDone(self._put({f"{name}|{site}": x for (name, site), x in sites.items()}))
            case Measure():
                return self._measure(effect)
            case ApplyDecision():
                return self._apply(effect)
            case StoreParameter():
                return self._store(effect)
            case CaptureState():
                parts = {name: self._put_host(self.runtime.state(name)) for name in self.runtime.owned()}
                return Captured(parts)

    @property
    def runtime(self) -> SegmentRuntime:
        """The runtime of the current plan."""
        if self._runtime is None:
            raise InvariantError(f"PNode {self._pnode} has no plan")
        return self._runtime

    def leave(self) -> None:
        """Drop the runtime; the backend stays."""
        if self._runtime is not None:
            self._runtime.close()
            self._runtime = None

    def close(self) -> None:
        """Drop the runtime and the backend."""
        self.leave()
        self.backend.close()

    def _prepare(self, effect: Prepare) -> Prepared:
        self.leave()
        configure = effect.configure
        self._network = decode_network(configure.network, self._registry)
        runtime = SegmentRuntime(
            backend=self.backend,
            network=self._network,
            plan=configure.plan,
            pnode=self._pnode,
            settings=configure.settings,
        )
        self._runtime = runtime
        if not configure.will_load:
            runtime.initialise()
        self._copies_to = runtime.copies_for()
        parameters = network_parameters(self._network)
        of_node = configure.plan.assignment
        site_owner: dict[str, PNodeId] = {}
        for name in runtime.copies_expected():
            owner = of_node[parameters[name].sites[0][0]]
            for node, own_name in parameters[name].sites:
                if of_node[node] == self._pnode:
                    site_owner[f"{name}|{node}.{own_name}"] = owner
        return Prepared(
            owned=runtime.owned(),
            copies_to=self._copies_to,
            copies_from=runtime.copies_expected(),
            sites_from=tuple(f"{name}|{site}" for name, site in runtime.remote_sites_expected()),
            site_owner=site_owner,
            device_class=device_class(self.backend.device_class()),
            pid=os.getpid(),
        )

    def _forward(self, effect: RunForward) -> ForwardDone:
        key = RunKey(effect.phase, effect.step, effect.microbatch)
        started_ms = self._clock.monotonic_ms()
        result = self.runtime.forward(effect.segment, key, self._get(effect.inputs))
        outputs = dict(result.outputs)
        if effect.phase == "generate" and self._network is not None:
            # The logits may also be a hop's tensor; the asker gets one row of them.
            logits = outputs.get(self._network.outputs.get("logits", ""))
            if logits is not None:
                row = self.backend.slice_axis(logits, 1, effect.row, effect.row + 1)
                outputs[LOGITS] = self.backend.contiguous(self.backend.slice_axis(row, 0, 0, 1))
        elapsed_ms = self._clock.monotonic_ms() - started_ms
        return ForwardDone(self._put(outputs), result.loss_sum, elapsed_ms)

    def _backward(self, effect: RunBackward) -> BackwardDone:
        key = RunKey("train", effect.step, effect.microbatch)
        started_ms = self._clock.monotonic_ms()
        gradients = self.runtime.backward(effect.segment, key, self._get(effect.gradients), effect.loss_seed)
        return BackwardDone(self._put(gradients), self._clock.monotonic_ms() - started_ms)

    def _measure(self, effect: Measure) -> Measured:
        remote: dict[tuple[str, str], Array] = {}
        for key, handle in effect.remote.items():
            name, _, site = key.partition("|")
            remote[name, site] = self.handles.get(handle)
        facts = self.runtime.facts(remote, effect.loss_scale)
        return Measured({name: Norm(fact.squared_norm, fact.is_finite) for name, fact in facts.items()})

    def _apply(self, effect: ApplyDecision) -> DecisionApplied:
        commit = effect.commit
        self.runtime.apply(
            Decision(commit.skip, commit.clip_coefficient, commit.learning_rate, commit.t, commit.loss_scale)
        )
        if commit.skip:
            return DecisionApplied({})
        copies = {name: self.runtime.parameter(name) for name in self._copies_to}
        return DecisionApplied(self._put_host(copies))

    def _store(self, effect: StoreParameter) -> Done:
        tensors = {slot: self.backend.to_host(x) for slot, x in self._get(effect.tensors).items()}
        if effect.is_load:
            self.runtime.load(effect.parameter, tensors)
        else:
            self.runtime.set_parameter(effect.parameter, tensors["weight"])
        return Done()

    def _get(self, handles: Handles) -> dict[str, Array]:
        return {name: self.handles.get(handle) for name, handle in handles.items()}

    def _put(self, arrays: Mapping[str, Array]) -> dict[str, Handle]:
        return {name: Handle(self.handles.put(array)) for name, array in arrays.items()}

    def _put_host(self, arrays: Mapping[str, Array]) -> dict[str, Handle]:
        return self._put({name: self.backend.from_host(array) for name, array in arrays.items()})
