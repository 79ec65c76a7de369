"""What is heard of others, when it counts, and that no stranger's word outweighs a connection."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dcnr_app.cluster.neighbours import (
    ASK_AGAIN_MS,
    ASK_MS,
    HIDDEN_MS,
    MAX_RUNS,
    MAX_SERVICES,
    OFFLINE_MS,
    OVERLAP_MS,
    SUSPECT_MS,
    Neighbours,
)
from tests.cluster.announced import announcement

ADDRESSES = ("192.168.1.6", "10.0.0.6")
OWN = announcement("own", run="00")
A = announcement("a", run="01")
A_AGAIN = announcement("a", run="02")
B = announcement("b", run="01")


def listening(*connected: str) -> Neighbours:
    """A machine that began to listen at 0 ms and is connected to these."""
    neighbours = Neighbours(lambda machine: machine in connected)
    neighbours.begin(OWN, 0.0)
    return neighbours


def states(neighbours: Neighbours, now_ms: float) -> list[tuple[str, str]]:
    """Name and state of what is shown."""
    return [(n.announcement.name, n.state) for n in neighbours.snapshot(now_ms)]


def test_a_silent_machine_becomes_suspect_offline_and_hidden_at_its_boundaries() -> None:
    neighbours = listening()
    neighbours.heard(A, ADDRESSES, 0.0)
    assert states(neighbours, SUSPECT_MS - 1) == [("a", "live")]
    assert states(neighbours, SUSPECT_MS) == [("a", "suspect")]
    assert states(neighbours, OFFLINE_MS - 1) == [("a", "suspect")]
    assert states(neighbours, OFFLINE_MS) == [("a", "offline")]
    neighbours.expire(HIDDEN_MS - 1)
    assert states(neighbours, HIDDEN_MS - 1) == [("a", "offline")]
    neighbours.expire(HIDDEN_MS)
    assert states(neighbours, HIDDEN_MS) == []


def test_a_departed_machine_leaves_the_count_a_second_before_the_fifteen_that_are_promised() -> None:
    neighbours = listening()
    neighbours.heard(A, ADDRESSES, 0.0)
    neighbours.heard(B, ADDRESSES, 10_000.0)
    assert neighbours.n_counted(13_999.0) == 2
    assert neighbours.n_counted(14_000.0) == 1


def test_a_machine_that_is_heard_again_is_live_again() -> None:
    neighbours = listening()
    neighbours.heard(A, ADDRESSES, 0.0)
    neighbours.heard(A, ("10.0.0.7",), 60_000.0)
    (seen,) = neighbours.snapshot(60_000.0)
    assert (seen.state, seen.addresses) == ("live", ("10.0.0.7",))


def test_a_machine_is_asked_before_it_becomes_suspect_and_then_every_second_until_it_is_offline() -> None:
    neighbours = listening()
    neighbours.heard(A, ADDRESSES, 0.0)
    asked = [
        now for now in range(0, 30_000, 100) if neighbours.to_ask(float(now), jitter_ms=0.0) == (A.instance,)
    ]
    assert asked == list(range(int(ASK_MS), int(OFFLINE_MS), int(ASK_AGAIN_MS)))
    assert asked[0] < SUSPECT_MS


def test_jitter_delays_the_first_question() -> None:
    neighbours = listening()
    neighbours.heard(A, ADDRESSES, 0.0)
    assert neighbours.to_ask(ASK_MS + 499.0, jitter_ms=500.0) == ()
    assert neighbours.to_ask(ASK_MS + 500.0, jitter_ms=500.0) == (A.instance,)


def test_a_machine_that_answers_is_not_asked_again_for_a_while() -> None:
    neighbours = listening()
    neighbours.heard(A, ADDRESSES, 0.0)
    assert neighbours.to_ask(ASK_MS, 0.0)
    neighbours.heard(A, ADDRESSES, ASK_MS + 100.0)
    assert neighbours.to_ask(2 * ASK_MS, 0.0) == ()


def test_who_does_not_answer_is_worth_asking_another_way() -> None:
    neighbours = listening()
    neighbours.heard(A, ADDRESSES, 0.0)
    assert neighbours.unanswered(SUSPECT_MS - 1) == ()
    assert [n.machine for n in neighbours.unanswered(SUSPECT_MS)] == [A.machine]
    assert neighbours.unanswered(OFFLINE_MS) == ()


def test_a_goodbye_takes_a_machine_out_of_the_count_at_once() -> None:
    neighbours = listening()
    neighbours.heard(A, ADDRESSES, 0.0)
    neighbours.goodbye(A.instance)
    assert (neighbours.n_counted(1.0), states(neighbours, 1.0)) == (0, [("a", "offline")])


def test_a_goodbye_for_a_connected_machine_changes_nothing() -> None:
    neighbours = listening(A.machine)
    neighbours.heard(A, ADDRESSES, 0.0)
    neighbours.goodbye(A.instance)
    assert states(neighbours, 1.0) == [("a", "live")]


def test_after_a_goodbye_the_machine_is_asked_once_and_its_answer_brings_it_back() -> None:
    neighbours = listening()
    neighbours.heard(A, ADDRESSES, 0.0)
    neighbours.goodbye(A.instance)
    assert neighbours.to_ask(1.0, 800.0) == (A.instance,)
    assert neighbours.to_ask(10_000.0, 0.0) == ()
    neighbours.heard(A, ADDRESSES, 200.0)
    assert states(neighbours, 300.0) == [("a", "live")]


def test_a_connected_machine_is_live_however_long_multicast_is_silent() -> None:
    neighbours = listening(A.machine)
    neighbours.heard(A, ADDRESSES, 0.0)
    neighbours.expire(10 * HIDDEN_MS)
    assert states(neighbours, 10 * HIDDEN_MS) == [("a", "live")]


def test_a_word_over_an_authenticated_stream_counts_as_heard() -> None:
    neighbours = listening()
    neighbours.heard(A, ADDRESSES, 0.0)
    neighbours.confirmed(A.machine, 20_000.0)
    neighbours.confirmed(B.machine, 20_000.0)
    assert states(neighbours, 20_000.0) == [("a", "live")]


def test_a_goodbye_for_an_unknown_machine_is_passed_over() -> None:
    neighbours = listening()
    neighbours.goodbye("nobody")
    assert neighbours.snapshot(0.0) == ()


def test_a_failed_dial_takes_the_address_out_until_the_machine_names_it_again_then_last() -> None:
    neighbours = listening()
    neighbours.heard(A, ADDRESSES, 0.0)
    neighbours.failed_dial(A.machine, ADDRESSES[0], 100.0)
    assert neighbours.snapshot(100.0)[0].addresses == ADDRESSES[1:]
    assert neighbours.to_ask(100.0, 0.0) == (A.instance,)
    neighbours.heard(A, ADDRESSES, 200.0)
    assert neighbours.snapshot(200.0)[0].addresses == (ADDRESSES[1], ADDRESSES[0])


def test_a_machine_that_moved_to_another_port_is_known_by_its_new_one() -> None:
    neighbours = listening()
    neighbours.heard(A, ADDRESSES, 0.0)
    moved = announcement("a", run="01", front_door_port=4999)
    neighbours.heard(moved, ADDRESSES, 100.0)
    assert [n.announcement.front_door_port for n in neighbours.snapshot(100.0)] == [4999]


def test_ten_restarts_without_goodbye_leave_one_entry() -> None:
    neighbours = listening()
    for i in range(10):
        neighbours.heard(announcement("a", run=f"{i:02x}"), ADDRESSES, i * 700.0)
    (seen,) = neighbours.snapshot(7_000.0)
    assert (seen.announcement.run, seen.state, seen.is_duplicate) == ("09", "live", False)
    assert neighbours.n_counted(7_000.0) == 1


def test_a_late_packet_of_the_run_before_is_no_second_machine() -> None:
    neighbours = listening()
    neighbours.heard(A, ADDRESSES, 0.0)
    neighbours.heard(A_AGAIN, ADDRESSES, 1_000.0)
    neighbours.heard(A, ADDRESSES, 1_000.0 + OVERLAP_MS - 1)
    assert [(n.announcement.run, n.is_duplicate) for n in neighbours.snapshot(3_000.0)] == [("02", False)]


def test_two_live_machines_with_one_id_are_both_shown_and_flagged() -> None:
    neighbours = listening()
    neighbours.heard(A, ADDRESSES, 0.0)
    neighbours.heard(A_AGAIN, ("10.0.0.9",), 1_000.0)
    neighbours.heard(A, ADDRESSES, 1_000.0 + OVERLAP_MS)
    seen = neighbours.snapshot(4_000.0)
    assert [(n.announcement.run, n.is_duplicate, n.state) for n in seen] == [
        ("01", True, "live"),
        ("02", True, "live"),
    ]
    assert neighbours.n_counted(4_000.0) == 1


def test_the_flag_goes_when_one_of_the_two_goes() -> None:
    neighbours = listening()
    neighbours.heard(A, ADDRESSES, 0.0)
    neighbours.heard(A_AGAIN, ADDRESSES, 1_000.0)
    neighbours.heard(A, ADDRESSES, 5_000.0)
    neighbours.heard(A_AGAIN, ADDRESSES, 30_000.0)
    assert [(n.announcement.run, n.is_duplicate) for n in neighbours.snapshot(30_000.0)] == [("02", False)]


def test_another_machine_with_our_own_id_is_shown_and_flagged() -> None:
    neighbours = listening()
    neighbours.heard(announcement("own", run="77"), ADDRESSES, OVERLAP_MS - 1)
    assert neighbours.snapshot(OVERLAP_MS - 1) == ()
    neighbours.heard(announcement("own", run="77"), ADDRESSES, OVERLAP_MS)
    assert [(n.machine, n.is_duplicate) for n in neighbours.snapshot(OVERLAP_MS)] == [(OWN.machine, True)]


def test_our_own_announcement_is_no_neighbour() -> None:
    neighbours = listening()
    neighbours.heard(OWN, ADDRESSES, 60_000.0)
    assert neighbours.snapshot(60_000.0) == ()


def test_a_flood_of_names_keeps_the_known_and_is_capped() -> None:
    neighbours = listening()
    neighbours.heard(A, ADDRESSES, 0.0)
    for i in range(2_000):
        neighbours.heard(announcement(f"fake {i}"), ADDRESSES, 100.0)
    assert len(neighbours.snapshot(100.0)) == MAX_SERVICES
    assert ("a", "live") in states(neighbours, 100.0)
    assert neighbours.n_refused == 2_000 - (MAX_SERVICES - 1)


def test_a_full_table_makes_room_as_soon_as_somebody_is_offline() -> None:
    neighbours = listening()
    for i in range(MAX_SERVICES):
        neighbours.heard(announcement(f"fake {i}"), ADDRESSES, 0.0)
    assert not neighbours.heard(A, ADDRESSES, OFFLINE_MS - 1)
    assert neighbours.heard(A, ADDRESSES, OFFLINE_MS)


def test_a_flood_of_runs_of_one_machine_takes_no_more_than_a_few_places() -> None:
    neighbours = listening()
    for i in range(1_000):
        neighbours.heard(announcement("a", run=f"{i:04x}"), ADDRESSES, float(i))
    assert len(neighbours.to_ask(1_000.0 + ASK_MS, 0.0)) <= MAX_RUNS


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["heard", "goodbye", "failed", "confirmed", "expire", "ask"]),
            st.sampled_from([A, A_AGAIN, B, OWN]),
            st.floats(0, 20_000),
        ),
        max_size=60,
    )
)
def test_whatever_is_heard_a_count_names_only_machines_heard_in_the_last_fifteen_seconds(
    events: list[tuple[str, object, float]],
) -> None:
    neighbours, now_ms = listening(), 0.0
    heard_ms: dict[str, float] = {}
    for what, said, later_ms in events:
        assert isinstance(said, type(A))
        now_ms += later_ms
        if what == "heard":
            neighbours.heard(said, ADDRESSES, now_ms)
            heard_ms[said.machine] = now_ms
        elif what == "confirmed":
            neighbours.confirmed(said.machine, now_ms)
            if any(n.machine == said.machine for n in neighbours.snapshot(now_ms)):
                heard_ms[said.machine] = now_ms
        elif what == "goodbye":
            neighbours.goodbye(said.instance)
        elif what == "failed":
            neighbours.failed_dial(said.machine, ADDRESSES[0], now_ms)
        elif what == "expire":
            neighbours.expire(now_ms)
        else:
            neighbours.to_ask(now_ms, 0.0)
        for neighbour in neighbours.snapshot(now_ms):
            assert not neighbour.counts or now_ms - heard_ms[neighbour.machine] < OFFLINE_MS
        shown = [n.announcement.instance for n in neighbours.snapshot(now_ms)]
        assert len(shown) == len(set(shown))
