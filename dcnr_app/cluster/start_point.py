"""Where training starts or goes on: a durable state and the decisions made after it. Plain data."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np

from dcnr_app.cluster.decision import Decision, LossScale

Parts = Mapping[str, Mapping[str, np.ndarray[Any, Any]]]
"""State of parameters: parameter -> slot -> host array."""


class StartPoint(msgspec.Struct, frozen=True, kw_only=True):
    """The state after `step`, and the decisions made after it in an earlier run or generation."""

    step: int = 0
    t: int = 0
    scale: LossScale = LossScale()
    parts: Parts = {}
    recorded: Mapping[int, Decision] = {}
    validated: frozenset[int] = frozenset()
    device_class: str = ""
