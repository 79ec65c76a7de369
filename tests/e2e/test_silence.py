"""Connections that are cut or fall silent, both ways or one way: both ends notice in time, by their own
clocks."""

from __future__ import annotations

import asyncio

import pytest

from tests.contracts.transport import run
from tests.silence_scene import FAULTS, LIMIT_S, notice

pytestmark = [pytest.mark.e2e, pytest.mark.chaos]


def test_cut_and_silence_both_ways_and_one_way_are_noticed_in_time_at_both_ends() -> None:
    async def test() -> None:
        found = await asyncio.gather(*(notice(fault) for fault in FAULTS))
        for fault, times in zip(FAULTS, found, strict=True):
            assert max(times) <= LIMIT_S[fault], (fault, times)

    run(test)
