"""Announcements: their form in a TXT record, and what hostile ones become."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dcnr_app.cluster.announcement import MAX_TXT_BYTES, Announcement, read_txt, txt_bytes, write_txt
from dcnr_app.errors import RefusedError
from tests.cluster.announced import announcement

WORKER = announcement(
    "Studio",
    cluster="c-1",
    cluster_name="Home",
    role="worker",
    device_summary="Apple M4, 16 GB",
    agent_port=4200,
    run="a1b2c3",
)
_texts = st.text(max_size=300)


@st.composite
def announcements(draw: st.DrawFn) -> Announcement:
    """Any announcement of legal form, with names as long and strange as they come."""
    low, high = sorted((draw(st.integers(0, 65535)), draw(st.integers(0, 65535))))
    return announcement(
        draw(_texts),
        key=draw(_texts),
        front_door_port=draw(st.integers(1, 65535)),
        agent_port=draw(st.none() | st.integers(1, 65535)),
        protocol_min=low,
        protocol_max=high,
        app_version=draw(st.from_regex(r"[0-9A-Za-z.+-]{0,32}", fullmatch=True)),
        cluster=draw(st.from_regex(r"[a-z0-9._-]{0,64}", fullmatch=True)),
        cluster_name=draw(_texts),
        role=draw(st.sampled_from(["", "worker", "orchestrator", "x" * 64])),
        device_summary=draw(_texts),
        run=draw(st.from_regex(r"[0-9a-f]{0,16}", fullmatch=True)),
    )


@given(announcements())
def test_every_announcement_survives_its_txt_record_and_fits_into_one_kilobyte(said: Announcement) -> None:
    txt = write_txt(said)
    assert read_txt(dict(txt)) == said
    assert txt_bytes(dict(txt)) <= MAX_TXT_BYTES
    assert all(1 + len(key) + len(value) <= 255 for key, value in txt.items())


@given(st.dictionaries(st.binary(max_size=8), st.none() | st.binary(max_size=255), max_size=20))
def test_any_txt_record_is_either_read_or_refused(txt: dict[bytes, bytes | None]) -> None:
    try:
        read_txt({**write_txt(WORKER), **txt})
    except RefusedError as error:
        assert error.why


def test_unknown_keys_are_passed_over() -> None:
    assert read_txt({**write_txt(WORKER), b"later": b"more", b"flag": None}) == WORKER


def test_control_characters_and_direction_overrides_do_not_reach_names() -> None:
    said = announcement("a\x1b]52;c;x\x07b\u202ec\nd", cluster_name="\x00", device_summary="\t")
    assert (said.name, said.cluster_name, said.device_summary) == ("a]52;c;xbc d", "", "")


def test_a_long_name_is_cut_between_two_characters() -> None:
    assert announcement("ü" * 500).name == "ü" * 60


@pytest.mark.parametrize(
    "wrong",
    [
        {"front_door_port": 0},
        {"front_door_port": 65536},
        {"front_door_port": -1},
        {"agent_port": 0},
        {"protocol_min": 2, "protocol_max": 1},
        {"machine": "0" * 16},
        {"machine": "../../etc/passwd"},
        {"fingerprint": "f" * 63},
        {"cluster": "a/../b"},
        {"role": "wörker"},
        {"app_version": "1.0; rm -rf"},
        {"run": "xyz"},
    ],
)
def test_a_malformed_announcement_cannot_be_made(wrong: dict[str, Any]) -> None:
    with pytest.raises(RefusedError, match="malformed"):
        announcement("a", **wrong)


@pytest.mark.parametrize(
    "changes",
    [
        {b"v": b"2"},
        {b"v": None},
        {b"port": b"0"},
        {b"port": b"4_0"},
        {b"port": b"99999"},
        {b"port": "４０".encode()},
        {b"agent": b"0"},
        {b"pmax": b""},
        {b"id": b"\xff" * 16},
        {b"fp": b"0" * 64},
        {b"junk": b"x" * 2000},
    ],
)
def test_a_malformed_txt_record_is_refused(changes: dict[bytes, bytes | None]) -> None:
    with pytest.raises(RefusedError, match="malformed"):
        read_txt({**write_txt(WORKER), **changes})


def test_two_runs_of_one_machine_are_two_instances() -> None:
    assert announcement("a", run="01").instance != announcement("a", run="02").instance
