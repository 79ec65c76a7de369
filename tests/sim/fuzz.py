"""Runs sessions through drawn scenarios: `python -m tests.sim.fuzz --seeds 0:500`, or `run_seed` from a test.

A seed decides everything. A scenario that fails is shown with it, and becomes a test of its own.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import msgspec

from dcnr_app.cluster.inputs import StopRequested
from dcnr_app.engine.backend import Backend
from dcnr_app.engine.reference import ReferenceBackend
from dcnr_app.ids import ORCHESTRATOR, PNodeId
from dcnr_app.nodes.graph.training import TrainingSettings
from tests.sim.network import Weather
from tests.sim.oracle import reference_of
from tests.sim.samples import tiny, with_settings
from tests.sim.storm import Climate, Storm

NETWORKS = (("tiny-gpt", ""), ("tiny-gpt", "untied"), ("tiny-gpt", "head-owns"), ("tiny-gpt-per-head", ""))
KINDS = (
    "crash", "crash", "reset", "cut", "cut", "one-way", "partition", "sleep", "pause", "stuck",
    "leave", "join",
    "crash-orchestrator", "crash-orchestrator", "sleep-orchestrator", "rival", "stop",
)  # fmt: skip
PATIENCE_MS = 120_000.0
"""Within this time and some undisturbed durations after the last fault a session is at its end..."""
PATIENCE_PER_FAULT_MS = 35_000.0
"""...and this much later for each fault: PNodes that hang are found one after the other."""


class Fault(msgspec.Struct, frozen=True):
    """Something that happens after so many events, to whom, and for how long."""

    at_event: int
    kind: str
    who: tuple[str, ...] = ()
    for_ms: float = 0.0


class Scenario(msgspec.Struct, frozen=True):
    """All that a run is made from."""

    network: str
    edit: str
    settings: TrainingSettings
    n_pnodes: int
    climate: Climate
    faults: tuple[Fault, ...]


def draw(seed: int) -> Scenario:
    """The scenario of a seed."""
    chance = random.Random(seed)  # noqa: S311  # a simulation, not a secret
    name, edit = chance.choice(NETWORKS)
    microbatches = chance.choice([1, 2, 3])
    settings = with_settings(
        steps=chance.choice([3, 5, 7]),
        batch=2 * microbatches,
        microbatches=microbatches,
        checkpoint_every=chance.choice([1, 2, 3]),
        validate_every=chance.choice([2, 3, 50]),
        in_flight=chance.choice([0, 0, 1]),
    )
    n_pnodes = chance.choice([1, 2, 2, 3, 3, 4])
    climate = Climate(
        seed=seed,
        weather=Weather(
            late_ms=chance.choice([1.0, 5.0, 50.0]),
            twice=chance.choice([0.0, 0.2]),
            in_order=chance.random() < 0.8,
            notice_ms=chance.choice([1.0, 50.0, 1_000.0]),
        ),
        slow=chance.choice([0.3, 1.0, 10.0, 100.0, 1_000.0]),
        disk_ms=chance.choice([0.5, 5.0, 50.0]),
        restart_ms=chance.choice([10.0, 300.0, 3_000.0]),
        grace_ms=chance.choice([0.0, 200.0, 5_000.0]),
    )
    return Scenario(name, edit, settings, n_pnodes, climate, _draw_faults(chance, settings, n_pnodes))


def _draw_faults(chance: random.Random, settings: TrainingSettings, n_pnodes: int) -> tuple[Fault, ...]:
    pnodes = [f"p{number}" for number in range(1, n_pnodes + 1)]
    n_events = int(25 * n_pnodes * settings.microbatches * settings.steps)
    faults = []
    for at_event in sorted(chance.randrange(n_events) for _ in range(chance.choice([1, 2, 3, 4, 6]))):
        kind = chance.choice(KINDS)
        if kind in ("cut", "one-way", "reset"):
            who = tuple(chance.sample([ORCHESTRATOR, *pnodes], 2))
        elif kind == "partition":
            who = tuple(chance.sample(pnodes, chance.randint(1, n_pnodes)))
        elif kind == "join":
            who = (f"p{n_pnodes + 1}",)
        else:
            who = (chance.choice(pnodes),)
        for_ms = chance.choice([100.0, 2_000.0, 8_000.0, 60_000.0, 300_000.0])
        faults.append(Fault(at_event, kind, who, for_ms))
    return tuple(faults)


def cause(storm: Storm, fault: Fault) -> None:
    """Let a fault happen."""
    pnode = PNodeId(fault.who[0]) if fault.who else PNodeId("")
    lead = storm.orchestrator
    match fault.kind:
        case "crash":
            storm.machines.crash(pnode)
        case "reset":
            storm.wires.break_links(*fault.who)
        case "cut" | "one-way" | "partition":
            ways = list(_ways(storm, fault))
            storm.wires.cut(ways)
            storm.after(fault.for_ms, lambda: storm.wires.heal(ways))
        case "sleep" | "pause":
            storm.machines.sleep(pnode, fault.for_ms, clock_stops=fault.kind == "sleep")
        case "stuck":
            storm.machines.get_stuck(pnode)
        case "leave" if len(storm.machines.wanted()) > 1:
            storm.request_leave(pnode)
        case "join":
            storm.machines.add(pnode)
        case "crash-orchestrator":
            storm.crash_orchestrator(fault.for_ms)
        case "sleep-orchestrator" if lead is not None and not lead.is_frozen:
            storm.machines.stand_still(lead, fault.for_ms, clock_stops=True)
        case "rival":
            storm.start_rival()
        case "stop" if lead is not None:
            lead.run(lambda: lead.take(StopRequested()))


def _ways(storm: Storm, fault: Fault) -> Iterator[tuple[str, str]]:
    if fault.kind == "partition":
        others = [each for each in (ORCHESTRATOR, *storm.machines.pnodes) if each not in fault.who]
        for one in fault.who:
            for other in others:
                yield one, other
                yield other, one
        return
    one, other = fault.who
    yield one, other
    if fault.kind == "cut":
        yield other, one


def play(scenario: Scenario, backend: Backend) -> Storm:
    """Run a scenario to its end, all invariants checked."""
    reference = reference_of(
        scenario.network,
        scenario.edit,
        msgspec.structs.replace(scenario.settings, checkpoint_every=1),
        backend,
    )
    network = tiny(scenario.network, edit=scenario.edit)
    storm = Storm(network, scenario.settings, backend, scenario.climate, reference)
    storm.begin(scenario.n_pnodes)
    n_events = 0
    for fault in scenario.faults:
        storm.run(until=_after_events(fault.at_event - n_events, storm))
        n_events = fault.at_event
        if storm.is_done:
            break
        cause(storm, fault)
    last_ms = max((fault.for_ms for fault in scenario.faults), default=0.0)
    storm.deadline_ms = storm.now_ms + last_ms + patience_ms(scenario.climate, len(scenario.faults))
    storm.finish()
    return storm


def patience_ms(climate: Climate, n_faults: int) -> float:
    """How long a session may take after the last of so many faults is over."""
    return PATIENCE_MS + n_faults * PATIENCE_PER_FAULT_MS + 4_000.0 * climate.slow


def _after_events(n_events: int, storm: Storm) -> Callable[[], bool]:
    left = [n_events]

    def is_time() -> bool:
        left[0] -= 1
        return left[0] < 0 or storm.is_done

    return is_time


@contextmanager
def telling(seed: int, scenario: Scenario) -> Iterator[None]:
    """What fails inside is told with the seed and the scenario."""
    try:
        yield
    except Exception as error:
        shown = msgspec.json.format(msgspec.json.encode(scenario)).decode()
        raise AssertionError(f"seed {seed}: {type(error).__name__}: {error}\n{shown}") from error


def run_seed(seed: int, backend: Backend) -> Storm:
    """Draw and play the scenario of a seed."""
    scenario = draw(seed)
    with telling(seed, scenario):
        return play(scenario, backend)


def main() -> int:
    """Play a range of seeds; prints those that fail, and how many there were."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", default="0:100", help="first:last, the last one left out")
    parser.add_argument("--verbose", action="store_true", help="with the whole scenario of each failure")
    arguments = parser.parse_args()
    first, _, last = arguments.seeds.partition(":")
    backend, failed, started_s = ReferenceBackend(threads=1), [], time.monotonic()
    for seed in range(int(first), int(last or int(first) + 1)):
        try:
            run_seed(seed, backend)
        except AssertionError as error:
            failed.append(seed)
            shown = str(error)
            sys.stdout.write(f"{shown if arguments.verbose else shown.partition(chr(10))[0]}\n")
    backend.close()
    sys.stdout.write(f"{len(failed)} failed: {failed}, {time.monotonic() - started_s:.0f} s\n")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
