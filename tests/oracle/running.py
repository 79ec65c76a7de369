"""Our side of the PyTorch comparison: gradients of one step, and whole sessions on one PNode, in memory."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np

from dcnr_app.clock import SystemClock
from dcnr_app.cluster.decision import Decision as MadeDecision
from dcnr_app.cluster.decision import LossScale, decide
from dcnr_app.cluster.effects import WriteCheckpoint
from dcnr_app.cluster.feeds import SessionFeed
from dcnr_app.cluster.generation import Sampling
from dcnr_app.cluster.journal import SessionJournal, read_decisions
from dcnr_app.cluster.local_cluster import LOCAL, ClusterSettings
from dcnr_app.cluster.messages import Norm
from dcnr_app.cluster.session import SessionJob, SessionTools, plan_for, run_session
from dcnr_app.cluster.staff import local_staff
from dcnr_app.cluster.start_point import StartPoint
from dcnr_app.data.source import Microbatch
from dcnr_app.engine.reference import ReferenceBackend
from dcnr_app.ids import SessionId
from dcnr_app.nodes.graph.load import LoadedNetwork, load_network, read_network_file
from dcnr_app.nodes.graph.network import encode_network, network_id
from dcnr_app.nodes.graph.training import TrainingSettings
from dcnr_app.nodes.registry import load_registry
from dcnr_app.runtime.keys import Decision, RunKey
from dcnr_app.runtime.segments import SegmentRuntime
from dcnr_app.settings import asset_path
from dcnr_app.store.memory import MemoryStore
from dcnr_app.store.sessions import SessionRecord, create_session

SESSION = SessionId("s-20260101-000000-0000")
Values = dict[str, np.ndarray]


class RandomText(NamedTuple):
    """A BatchSource of ids that grow by 1 to 3, so that there is something to learn; the last `n_uncounted`
    targets of every sequence are not counted."""

    settings: TrainingSettings
    context: int
    n_vocabulary: int
    n_uncounted: int = 0

    def whole(self, step: int) -> tuple[np.ndarray, np.ndarray]:
        """(tokens, targets) of all sequences of a step, int32 (B, T)."""
        generator = np.random.default_rng((77, step))
        steps = generator.integers(1, 4, (self.settings.batch, self.context + 1))
        steps[:, 0] = generator.integers(0, self.n_vocabulary, self.settings.batch)
        ids = (np.cumsum(steps, axis=1) % self.n_vocabulary).astype(np.int32)
        targets = ids[:, 1:].copy()
        targets[:, self.context - self.n_uncounted :] = -1
        return ids[:, :-1].copy(), targets

    def batch(self, step: int) -> tuple[Microbatch, ...]:
        """The step's sequences, cut into microbatches."""
        parts = [np.split(part, self.settings.microbatches) for part in self.whole(step)]
        return tuple(
            Microbatch(tokens, targets, (), int((targets >= 0).sum()))
            for tokens, targets in zip(*parts, strict=True)
        )

    def validation(self) -> tuple[Microbatch, ...]:
        """Batch 0, which no step trains on."""
        return self.batch(0)


def tiny_gpt() -> LoadedNetwork:
    """The bundled network, as it stands."""
    path = asset_path("networks/tiny-gpt.yaml")
    return load_network(read_network_file(path), file=str(path), registry=load_registry())


def step_gradients(
    loaded: LoadedNetwork,
    settings: TrainingSettings,
    source: RandomText,
    change: Callable[[str, np.ndarray], np.ndarray],
) -> tuple[float, Values, Values]:
    """(loss, gradients, values) of step 1 on the real runtime, from the initial values after `change`.

    The gradients are read from SGD's velocity after one update without momentum or clipping: 0 + 1 · g.
    """
    sgd = msgspec.structs.replace(settings.optimizer, type="sgd", beta1=0.0, weight_decay=0.0)
    settings = msgspec.structs.replace(settings, optimizer=sgd, clip_norm=0.0)
    job = SessionJob(session=SESSION, generation=1, network=loaded.network, settings=settings)
    plan = plan_for(job, (LOCAL,))
    (segment,) = plan.segments
    backend = ReferenceBackend(threads=1)
    runtime = SegmentRuntime(
        backend=backend, network=loaded.network, plan=plan, pnode=LOCAL, settings=settings
    )
    runtime.initialise()
    values = {name: change(name, runtime.parameter(name)) for name in runtime.owned()}
    for name, value in values.items():
        runtime.set_parameter(name, value)
    tensors, counts, _ = SessionFeed(loaded.network, source, backend, {}).batch(1)
    loss_sums: dict[int, float] = {}
    for index, inputs in enumerate(tensors):
        key = RunKey("train", 1, index)
        needed = {reference: inputs[reference] for reference in segment.needs}
        loss_sums[index] = runtime.forward(segment.index, key, needed).loss_sum or 0.0
        runtime.backward(segment.index, key, {}, 1.0 / sum(counts))
    facts = runtime.facts({}, 1.0)
    made = decide(
        settings=settings,
        step=1,
        t_before=0,
        scale=LossScale(),
        loss_sums=loss_sums,
        target_count=sum(counts),
        norms={name: Norm(fact.squared_norm, fact.is_finite) for name, fact in facts.items()},
    )
    runtime.apply(Decision(made.skip, made.clip_coefficient, made.learning_rate, made.t, made.loss_scale))
    gradients = {name: runtime.state(name)["velocity"] for name in runtime.owned()}
    runtime.close()
    backend.close()
    return made.loss, gradients, values


def run_whole_session(
    loaded: LoadedNetwork, settings: TrainingSettings, source: RandomText
) -> tuple[list[MadeDecision], Values]:
    """Decisions in step order, and the weights at the end, of a session with 0 workers."""
    kept: dict[str, np.ndarray] = {}

    def keep(effect: WriteCheckpoint, parts: Mapping[str, Values]) -> str:
        kept.update({name: np.array(slots["weight"]) for name, slots in parts.items()})
        return ""

    clock, backend = SystemClock(), ReferenceBackend(threads=1)
    store = MemoryStore(clock)
    create_session(store, _record(loaded, settings), encode_network(loaded.network))
    tools = SessionTools(
        staff=local_staff(
            ClusterSettings(n_workers=0, threads=1, environment={}), load_registry(), ReferenceBackend, clock
        ),
        clock=clock,
        feed=SessionFeed(loaded.network, source, backend, {}),
        journal=SessionJournal(store, SESSION, clock, keep, StartPoint),
        coder=NoText(),
        orchestrator_pid=0,
    )
    job = SessionJob(
        session=SESSION,
        generation=1,
        network=loaded.network,
        settings=settings,
        context=loaded.context,
        start=StartPoint(validated=frozenset({settings.steps})),
        sampling=Sampling(n_tokens=0, temperature=0.0, seed=0),
    )
    asyncio.run(run_session(job, tools, Unwatched(), None))
    backend.close()
    return list(read_decisions(store, SESSION).values()), kept


def _record(loaded: LoadedNetwork, settings: TrainingSettings) -> SessionRecord:
    return SessionRecord(
        session=SESSION,
        created_ms=0,
        status="running",
        step=0,
        network=network_id(loaded.network),
        network_name=loaded.network.name,
        dataset="",
        tokenizer="",
        settings=msgspec.to_builtins(settings),
        device_class="",
        workers=(LOCAL,),
        pid=0,
    )


class NoText:
    """The TextCoder of a session that writes no sample."""

    end_of_text = 0

    def encode(self, text: str) -> list[int]:
        """Nobody asks."""
        raise AssertionError(f"a sample was asked for: {text!r}")

    def decode(self, ids: Sequence[int]) -> str:
        """Nobody asks."""
        raise AssertionError(f"a sample was asked for: {ids}")


class Unwatched:
    """The Watcher that looks away."""

    def planned(self, network: Any, plan: Any) -> None:
        """Nothing."""

    def ready(self, pnode: Any, pid: int) -> None:
        """Nothing."""

    def stepped(self, decision: MadeDecision, reports: Mapping[Any, Any], *, is_replay: bool) -> None:
        """Nothing."""

    def validated(self, step: int, loss: float) -> None:
        """Nothing."""

    def recovering(self, reason: str) -> None: ...
    def replanned(self, network: Any, plan: Any, step: int) -> None: ...
    def no_sample(self, why: str) -> None: ...
    def sampling(self) -> None:
        """Nothing."""

    def stoppable(self, stop: Callable[[], None]) -> None:
        """Nothing."""
