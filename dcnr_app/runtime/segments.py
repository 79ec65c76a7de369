"""Runs the segments of a plan that belong to one PNode, and keeps its parameters. Knows no network peers.

Not thread-safe: one compute thread calls it. Nothing computed here depends on the plan: folds follow the
Network's order whether a contribution comes from this PNode or from another.
Arrays given out may be views of what is still in use: callers let go of them, and never `release` them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from dcnr_app.engine.backend import AdamWStep, Array, Backend
from dcnr_app.errors import InvariantError
from dcnr_app.ids import PNodeId
from dcnr_app.nodes.graph.analysis import Parameter, network_parameters
from dcnr_app.nodes.graph.network import Network
from dcnr_app.nodes.graph.training import TrainingSettings
from dcnr_app.runtime.accumulators import Accumulators, Site, site_name
from dcnr_app.runtime.executor import Executor, Saved
from dcnr_app.runtime.keys import Decision, Fact, ForwardResult, Phase, RunKey
from dcnr_app.runtime.liveness import BufferLedger, buffer_bytes
from dcnr_app.runtime.parameters import HostArray, ParameterSet
from dcnr_app.runtime.program import Program, compile_segment, network_facts

if TYPE_CHECKING:
    from dcnr_app.cluster.plan import Plan


class SegmentRuntime:
    """One PNode's part of a training session: forward, backward, gradient sums, updates.

    A step: forward and backward of all microbatches, then `remote_site_gradients` (sent), `facts` (with what
    others sent), `apply`; after it nothing of the step is left.
    """

    def __init__(
        self, *, backend: Backend, network: Network, plan: Plan, pnode: PNodeId, settings: TrainingSettings
    ) -> None:
        self._backend = backend
        self._plan = plan
        self._pnode = pnode
        self._settings = settings
        self._facts = network_facts(network, settings.rows)
        self._segments = {segment.index: segment for segment in plan.segments if segment.pnode == pnode}
        self._programs: dict[tuple[int, Phase], Program] = {}
        for index in self._segments:
            self._program(index, "train")
        self._local: dict[str, Parameter] = {}
        for name, parameter in network_parameters(network).items():
            if any(plan.assignment[node] == pnode for node, _ in parameter.sites):
                self._local[name] = parameter
        self._owned = tuple(name for name in self._local if self._owner(name) == pnode)
        self._ledger = BufferLedger(backend)
        self._parameters = ParameterSet(
            self._ledger, backend, self._local, frozenset(self._owned), settings.optimizer
        )
        self._accumulators = Accumulators(backend, self._ledger)
        self._executor = Executor(
            backend, self._ledger, settings.seed, self._parameters.of_node, self._accumulate
        )
        self._saved: dict[tuple[int, RunKey], Saved] = {}
        self._folded: dict[str, Array] | None = None

    def initialise(self) -> None:
        """Make the values of every parameter with a local site from the seed, and the owned ones' slots."""
        self._parameters.initialise(self._settings.seed)

    def forward(self, segment: int, key: RunKey, inputs: Mapping[str, Array]) -> ForwardResult:
        """Run a segment. In training, what its backward needs is kept until `backward` or `drop`.

        `generate` runs only what the logits depend on, and gives the logits too where they are made here.
        Raises InvariantError for missing inputs or a repeated call, PeerError naming a VNode that failed.
        """
        program = self._program(segment, key.phase)
        if (segment, key) in self._saved:
            raise InvariantError(f"forward of segment {segment} was already run for {key}")
        outputs, saved, loss_sum = self._executor.forward(program, key, inputs)
        if program.keeps:
            self._saved[segment, key] = saved
        return ForwardResult(outputs, loss_sum)

    def backward(
        self, segment: int, key: RunKey, gradients: Mapping[str, Array], loss_seed: float
    ) -> dict[str, Array]:
        """Gradients by key of the edges that leave, from those that enter; uses up what forward kept.

        `loss_seed` is the gradient of the loss sum: loss scale / target count.
        Raises InvariantError without a forward, for missing gradients or out of microbatch order, PeerError
        naming a VNode that failed.
        """
        saved = self._saved.get((segment, key))
        if saved is None:
            raise InvariantError(f"backward of segment {segment} without a forward for {key}")
        leaving = self._executor.backward(self._program(segment, key.phase), key, saved, gradients, loss_seed)
        del self._saved[segment, key]
        return leaving

    def remote_site_gradients(self) -> dict[tuple[str, str], Array]:
        """Sums of local sites whose parameter is owned elsewhere, by (parameter, site name).

        Raises InvariantError before all microbatches are through.
        """
        sites = [(name, site) for name in self.copies_expected() for site in self._sites(name, is_local=True)]
        self._accumulators.check_complete([site for _, site in sites], self._plan.n_microbatches)
        return {(name, site_name(site)): self._accumulators.lend(site) for name, site in sites}

    def facts(self, remote: Mapping[tuple[str, str], Array], loss_scale: float) -> dict[str, Fact]:
        """Facts about the gradients of owned parameters, folded over all use sites and divided by the scale.

        A parameter through which no gradient flows has the facts of a zero gradient. Raises InvariantError if
        called twice in a step, before all microbatches are through, or without a remote site's sum.
        """
        if self._folded is not None:
            raise InvariantError("the step's gradients were already folded")
        missing = [
            f"{name} at {site}" for name, site in self.remote_sites_expected() if (name, site) not in remote
        ]
        if missing:
            raise InvariantError(f"gradients of other PNodes' use sites are missing: {', '.join(missing)}")
        local = [site for name in self._owned for site in self._sites(name, is_local=True)]
        self._accumulators.check_complete(local, self._plan.n_microbatches)
        folded: dict[str, Array] = {}
        facts: dict[str, Fact] = {}
        for name in self._owned:
            sites = self._sites(name)
            if not sites:
                facts[name] = Fact(0.0, True)
                continue
            total = self._accumulators.fold((site, remote.get((name, site_name(site)))) for site in sites)
            gradient, squared_norm, is_finite = self._backend.unscale(total, loss_scale)
            folded[name] = gradient
            facts[name] = Fact(squared_norm, is_finite)
        self._folded = folded
        return facts

    def apply(self, decision: Decision) -> None:
        """Carry out the decision on owned parameters and forget the step's gradients.

        Raises InvariantError if `facts` did not come first or microbatches are still under way.
        """
        if self._folded is None or self._saved:
            raise InvariantError(
                "a decision cannot be applied now",
                why=f"gradients folded: {self._folded is not None}, under way: {self.live_microbatches()}",
            )
        folded, self._folded = self._folded, None
        for name, gradient in folded.items():
            if decision.skip:
                self._backend.release(gradient)
            else:
                self._parameters.update(name, gradient, self._update(name, decision))
        self._accumulators.clear()

    def copies_for(self) -> dict[str, tuple[PNodeId, ...]]:
        """Owned parameters that change, with the other PNodes that use them."""
        found = {}
        for name in self._owned:
            others = {self._plan.assignment[node] for node, _ in self._local[name].sites} - {self._pnode}
            if others and self._sites(name):
                found[name] = tuple(sorted(others))
        return found

    def copies_expected(self) -> tuple[str, ...]:
        """Parameters that change, with a site here, whose owner is another PNode."""
        return tuple(name for name in self._local if self._owner(name) != self._pnode and self._sites(name))

    def remote_sites_expected(self) -> tuple[tuple[str, str], ...]:
        """(parameter, site name) of other PNodes' sums that the fold of owned parameters needs."""
        return tuple(
            (name, site_name(site)) for name in self._owned for site in self._sites(name, is_local=False)
        )

    def parameter(self, name: str) -> HostArray:
        """A host copy of a parameter's value. Raises InvalidError if it has no site or value here."""
        return self._parameters.value(name)

    def set_parameter(self, name: str, host: HostArray) -> None:
        """Replace a parameter's value, as its owner sent it. Raises InvalidError if it does not fit."""
        self._parameters.set_value(name, host)

    def state(self, name: str) -> dict[str, HostArray]:
        """Host copies of `weight` and the optimizer's slots; later updates do not touch them."""
        return self._parameters.state(name)

    def load(self, name: str, tensors: Mapping[str, HostArray]) -> None:
        """Replace a parameter's state; where it is not owned, `weight` alone. Its gradients are forgotten.

        Raises InvalidError if names, shapes or dtypes differ.
        """
        self._parameters.load(name, tensors)
        self._accumulators.clear(self._local[name].sites)
        if self._folded is not None and name in self._folded:
            self._backend.release(self._folded.pop(name))
        if not self._folded:
            self._folded = None

    def owned(self) -> tuple[str, ...]:
        """Names of the parameters whose first use site is here, sorted."""
        return self._owned

    def drop(self, key: RunKey) -> None:
        """Forget what an abandoned microbatch saved."""
        for entry in [entry for entry in self._saved if entry[1] == key]:
            self._executor.forget(self._saved.pop(entry))

    def live_microbatches(self) -> int:
        """Microbatches whose backward is still to come."""
        return len({key for _, key in self._saved})

    def live_buffers(self) -> int:
        """Distinct buffers held, parameters included: the same after every step."""
        return len(self._ledger)

    def saved_bytes(self) -> int:
        """Bytes of all buffers that wait for a backward."""
        saved = [arrays for record in self._saved.values() for arrays in record.values()]
        return buffer_bytes([array for arrays in saved for array in arrays.values()])

    def close(self) -> None:
        """Forget everything; safe to call twice. The backend stays open."""
        for key in {key for _, key in self._saved}:
            self.drop(key)
        self._accumulators.clear()
        self._folded = None
        self._parameters.clear()

    def _program(self, index: int, phase: Phase) -> Program:
        if index not in self._segments:
            raise InvariantError(f"segment {index} does not belong to PNode {self._pnode}")
        program = self._programs.get((index, phase))
        if program is None:
            program = compile_segment(self._facts, self._segments[index], phase)
            self._programs[index, phase] = program
        return program

    def _owner(self, name: str) -> PNodeId:
        return self._plan.assignment[self._local[name].sites[0][0]]

    def _sites(self, name: str, *, is_local: bool | None = None) -> list[Site]:
        return [
            site
            for site in self._local[name].sites
            if site[0] in self._facts.receivers
            and (is_local is None or (self._plan.assignment[site[0]] == self._pnode) == is_local)
        ]

    def _accumulate(self, site: Site, key: RunKey, gradient: Array) -> None:
        self._accumulators.add(site, key.step, key.microbatch, gradient)

    def _update(self, name: str, decision: Decision) -> AdamWStep:
        optimizer = self._settings.optimizer
        return AdamWStep(
            learning_rate=decision.learning_rate,
            beta1=optimizer.beta1,
            beta2=optimizer.beta2,
            eps=optimizer.eps,
            weight_decay=optimizer.weight_decay if self._local[name].spec.decays else 0.0,
            t=decision.t,
            clip_coefficient=decision.clip_coefficient,
        )
