"""What a simulated session makes durable, and how a session goes on from it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec
import numpy as np

from dcnr_app.cluster.coordinator_state import Assignment
from dcnr_app.cluster.decision import Decision, LossScale
from dcnr_app.cluster.effects import AppendCommit, WriteCheckpoint
from dcnr_app.cluster.inputs import Handle
from dcnr_app.ids import PNodeId
from dcnr_app.nodes.graph.analysis import network_parameters
from dcnr_app.nodes.graph.network import Network
from dcnr_app.runtime.tables import HandleTable

State = dict[str, dict[str, np.ndarray[Any, Any]]]


class Checkpoint(NamedTuple):
    """The state of all parameters after a step, and the counters."""

    step: int
    t: int
    scale: LossScale
    state: State

    def bits(self) -> dict[tuple[str, str], bytes]:
        """All values as bytes, by parameter and slot."""
        return {(name, slot): x.tobytes() for name, part in self.state.items() for slot, x in part.items()}


class Journal:
    """Commit rows, ledger and checkpoints in memory. Asserts what a reader of them relies on."""

    def __init__(self) -> None:
        self.rows: dict[int, Decision] = {}
        self.ledger: list[tuple[int, int, bool]] = []
        self.checkpoints: dict[int, Checkpoint] = {}
        self.validations: dict[int, float] = {}
        self.generations: list[int] = []

    @property
    def durable_step(self) -> int:
        """Step of the newest checkpoint; 0 for the beginning, which the seed keeps."""
        return max(self.checkpoints, default=0)

    def commit(self, effect: AppendCommit) -> None:
        """Keep a commit row: the next one, never a second, never a gap."""
        step = effect.decision.step
        assert step == len(self.rows) + 1, f"commit row {step} after {len(self.rows)}"
        self.rows[step] = msgspec.json.decode(msgspec.json.encode(effect.decision), type=Decision)
        self.ledger += [(step, sample, effect.decision.skip) for sample in effect.samples]

    @property
    def newest_generation(self) -> int:
        """The highest number that was taken; the first one is taken when the session is made."""
        return max(self.generations, default=1)

    def begin(self, generation: int) -> bool:
        """Keep a generation's row if its number is the next one: compare and set."""
        if generation != self.newest_generation + 1:
            return False
        self.generations.append(generation)
        return True

    def validate(self, step: int, loss: float) -> None:
        """Keep a validation loss: one per step."""
        assert step not in self.validations
        self.validations[step] = loss

    def checkpoint(self, effect: WriteCheckpoint, table: HandleTable) -> None:
        """Keep a checkpoint."""
        state = {
            name: {slot: table.get(handle) for slot, handle in part.items()}
            for name, part in sorted(effect.parts.items())
        }
        scale = LossScale(effect.scale, effect.finite_steps)
        self.checkpoints[effect.step] = Checkpoint(effect.step, effect.t, scale, state)


def resumed(
    job: Assignment,
    network: Network,
    journal: Journal,
    table: HandleTable,
    *,
    device_class: str,
    at: int | None = None,
) -> Assignment:
    """`job` from checkpoint `at` (default: the newest), replaying what was committed after it."""
    step = journal.durable_step if at is None else at
    recorded = {row: decision for row, decision in journal.rows.items() if row > step}
    job = msgspec.structs.replace(
        job,
        resume_step=step,
        recorded=recorded,
        checked_device_class=device_class,
        validated=frozenset(journal.validations),
    )
    if not step:
        return job
    kept = journal.checkpoints[step]
    loads = loads_of(job, network, kept.state, table)
    return msgspec.structs.replace(job, t=kept.t, scale=kept.scale, loads=loads)


def loads_of(
    job: Assignment, network: Network, state: Mapping[str, Mapping[str, Any]], table: HandleTable
) -> dict[PNodeId, dict[str, dict[str, Handle]]]:
    """Handles of the state that each PNode needs: everything for the owner, the weight for other sites."""
    found: dict[PNodeId, dict[str, dict[str, Handle]]] = {pnode: {} for pnode in job.plan.pnodes}
    for name, parameter in network_parameters(network).items():
        handles = {slot: Handle(table.put(array)) for slot, array in state[name].items()}
        places = [job.plan.assignment[node] for node, _ in parameter.sites]
        for pnode in places:
            own = handles if pnode == places[0] else {"weight": handles["weight"]}
            found[pnode][name] = own
    return found
