"""A session is placed anew when it must or when it pays, and never to and fro."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dcnr_app.cluster.devices import ClusterFacts
from dcnr_app.cluster.placement import Placement, place
from dcnr_app.cluster.prediction import predict
from dcnr_app.cluster.replanning import (
    MOST_PER_MINUTE,
    WINDOW,
    Decision,
    ReplanState,
    Situation,
    decide,
    find_cause,
    lost,
    moved,
    observed,
    slowed,
)
from dcnr_app.errors import InvalidError
from dcnr_app.nodes.graph.training import TrainingSettings
from tests.cluster.facts import cluster, device
from tests.sim.samples import tiny

NETWORK = tiny("tiny-gpt", layers=4)
SETTINGS = TrainingSettings(batch=16, microbatches=8)
FACTS = cluster(*(device(name, flops=2e7) for name in "abc"), round_trip_ms=0.1)


class Session:
    """A session whose PNodes run at true speeds: what the coordinator and its PNodes would do."""

    def __init__(self, names: str = "ab", *, steps_left: int = 10_000) -> None:
        self.facts = FACTS.only(tuple(names))
        self.state = ReplanState()
        self.now_ms = 1e6
        self.steps_left = steps_left
        self.true_slowdowns: dict[str, float] = {}
        self.n_moves = 0
        self._take(place(NETWORK, SETTINGS, self.facts))

    def _take(self, found: Placement) -> None:
        self.placement = found
        self.known = frozenset(self.facts.pnodes)

    def situation(self) -> Situation:
        """As it is now."""
        return Situation(
            network=NETWORK,
            settings=SETTINGS,
            assignment=self.placement.assignment,
            pnodes=self.placement.pnodes,
            facts=self.facts,
            known=self.known,
            steps_left=self.steps_left,
            now_ms=self.now_ms,
        )

    def steps(self, n_steps: int = WINDOW, off_by: float = 1.0) -> None:
        """Steps as they really take; the prediction may be off for all PNodes alike."""
        true = slowed(self.facts, self.true_slowdowns)
        expected = predict(NETWORK, SETTINGS, true, self.placement.assignment)
        for _ in range(n_steps):
            compute = {pnode: off_by * ms for pnode, ms in expected.compute_ms().items()}
            self.state = observed(self.state, compute)
            self.now_ms += off_by * expected.step_ms

    def decide(self) -> Decision:
        """Decide, and move if it says so."""
        found = decide(self.state, self.situation())
        if found.placement is not None:
            assert found.cause is not None
            self.state = moved(self.state, found.cause, self.now_ms)
            self._take(found.placement)
            self.n_moves += 1
        return found

    def share(self, name: str) -> int:
        """VNodes of a PNode."""
        return list(self.placement.assignment.values()).count(name)


@pytest.mark.parametrize("off_by", [0.3, 1.0, 5.0])
def test_nothing_is_moved_while_all_keep_their_pace(off_by: float) -> None:
    session = Session()
    for _ in range(6):
        session.steps(off_by=off_by)
        assert session.decide().reason == "nothing changed"


def test_a_straggler_gives_vnodes_away_but_is_not_evicted() -> None:
    session = Session()
    session.true_slowdowns = {"b": 3.0}
    before = session.share("b")
    session.steps()
    found = session.decide()
    assert re.match(r"b (2\.[89]|3\.0) times slower than measured", found.reason)
    assert 0 < session.share("b") < before
    session.steps()
    assert session.decide().reason == "nothing changed"


def test_less_than_twice_as_slow_or_for_one_step_only_is_no_straggler() -> None:
    session = Session()
    session.true_slowdowns = {"b": 1.9}
    session.steps(50)
    assert find_cause(session.state, session.situation()) is None
    session.true_slowdowns = {"b": 50.0}
    session.steps(WINDOW // 2)
    assert find_cause(session.state, session.situation()) is None


def test_before_the_window_is_full_nothing_is_said_of_speed() -> None:
    session = Session()
    session.true_slowdowns = {"b": 9.0}
    session.steps(WINDOW - 1)
    assert find_cause(session.state, session.situation()) is None


def test_a_straggler_that_recovers_gets_its_share_back_later() -> None:
    session = Session()
    before = session.share("b")
    session.true_slowdowns = {"b": 3.0}
    session.steps()
    session.decide()
    session.true_slowdowns = {}
    session.steps()
    session.now_ms += 60_000.0
    assert "as fast as measured again" in session.decide().reason
    assert session.share("b") >= before


def test_a_pnode_that_left_is_replaced_at_once_whatever_happened_before() -> None:
    session = Session("abc")
    now = session.now_ms
    session.state = msgspec.structs.replace(session.state, moves_ms=(now - 3, now - 2, now - 1), damping=6)
    session.facts = FACTS.only(("a", "c"))
    found = session.decide()
    assert found.reason == "b left"
    assert set(session.placement.pnodes) <= {"a", "c"}


def test_a_pnode_that_left_and_leaves_no_room_is_an_error() -> None:
    session = Session("ab")
    small = device("a", flops=2e7, free_memory_bytes=1_000_000)
    session.facts = ClusterFacts(devices=(small,))
    with pytest.raises(InvalidError, match="does not fit"):
        decide(session.state, session.situation())


def test_a_pnode_that_joined_is_used_if_it_gains_enough() -> None:
    session = Session("ab")
    session.facts = FACTS
    found = session.decide()
    assert found.reason.startswith("c joined")
    assert session.share("c") > 0


def test_a_pnode_that_gains_little_changes_nothing_and_is_weighed_again_only_with_other_facts() -> None:
    session = Session("ab")
    session.facts = cluster(*FACTS.devices[:2], device("slow", flops=1e5), round_trip_ms=50.0)
    found = session.decide()
    assert found.placement is None
    assert "not enough to move" in found.reason
    session.known = frozenset(session.facts.pnodes)
    assert session.decide().reason == "nothing changed"


def test_a_move_must_be_repaid_by_the_steps_that_are_left() -> None:
    session = Session("ab", steps_left=1)
    session.facts = FACTS
    found = session.decide()
    assert found.placement is None
    assert "not repaid in 1 steps" in found.reason
    session.steps_left = 10_000
    assert session.decide().placement is not None


def test_moves_are_capped_per_minute() -> None:
    session = Session("ab")
    now = session.now_ms
    session.state = msgspec.structs.replace(
        session.state, moves_ms=tuple(now - 59_000 + i for i in range(MOST_PER_MINUTE))
    )
    session.facts = FACTS
    assert f"moved {MOST_PER_MINUTE} times within a minute" in session.decide().reason
    session.now_ms += 61_000
    assert session.decide().placement is not None


def test_a_pnode_that_comes_and_goes_is_not_waited_for() -> None:
    session = Session("ab")
    session.facts = FACTS
    for index in range(3):
        session.state = lost(session.state, FACTS.pnodes[2], session.now_ms - index * 60_000)
    assert find_cause(session.state, session.situation()) is None
    session.now_ms += 700_000
    assert session.decide().reason.startswith("c joined")


def _pace(session: Session, slowdowns: Sequence[float]) -> list[float]:
    """Let b change its pace every 20 s; returns the times of moves."""
    times = []
    for by in slowdowns:
        session.true_slowdowns = {"b": by}
        until = session.now_ms + 20_000
        while session.now_ms < until:
            session.steps()
            session.now_ms += 1_000
            if session.decide().placement is not None:
                times.append(session.now_ms)
    return times


def test_a_pnode_that_is_slow_and_fast_in_turn_is_left_alone_more_and_more() -> None:
    session = Session("ab")
    times = _pace(session, [4.0, 1.0] * 15)
    assert 1 <= len(times) <= 6
    gaps = [b - a for a, b in pairwise(times)]
    assert gaps == sorted(gaps)


@given(st.lists(st.sampled_from([1.0, 1.5, 2.5, 8.0]), min_size=5, max_size=12))
@settings(max_examples=10, deadline=None)
def test_no_pace_makes_more_than_three_moves_a_minute(paces: list[float]) -> None:
    times = _pace(Session("ab"), paces)
    assert all(b - a > 60_000 for a, b in zip(times, times[MOST_PER_MINUTE:], strict=False))


def test_calm_forgives_earlier_moves() -> None:
    session = Session("ab")
    session.state = msgspec.structs.replace(session.state, moves_ms=(session.now_ms,), damping=5)
    session.facts = FACTS
    session.now_ms += 100_000
    assert "waiting 320 s" in session.decide().reason
    session.now_ms += 5 * 300_000
    assert session.decide().placement is not None
    assert session.state.damping == 1
