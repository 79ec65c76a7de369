"""The Plan: which VNode runs on which PNode, cut into segments and ordered task lists. Pure data."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import msgspec

from dcnr_app.ids import PNodeId


class Segment(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A connected run of VNodes on one PNode, executed as one task.

    `needs` are references that enter from outside the segment; `gives` references that leave it. `text_needs`
    are those of `needs` that the logits depend on: all that generation waits for. `gradients_in` are keys of
    edges whose gradient enters the segment's backward; `gradients_out` those that leave. An edge's gradient
    travels from the target's segment to the source's.
    """

    index: int
    pnode: PNodeId
    level: int
    nodes: tuple[str, ...]
    needs: tuple[str, ...]
    gives: tuple[str, ...]
    gradients_in: tuple[str, ...]
    gradients_out: tuple[str, ...]
    has_backward: bool
    """Whether a gradient enters it or it holds the cost VNode, which starts its own."""
    text_needs: tuple[str, ...] = ()


class Task(msgspec.Struct, frozen=True, array_like=True, order=True):
    """One execution: a segment, forward ("F") or backward ("B"), for one microbatch."""

    direction: Literal["F", "B"]
    microbatch: int
    segment: int


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that PNodes must agree on for one generation."""

    generation: int
    pnodes: tuple[PNodeId, ...]
    assignment: Mapping[str, PNodeId]
    segments: tuple[Segment, ...]
    tasks: Mapping[PNodeId, tuple[Task, ...]]
    cost_segment: int
    n_microbatches: int
    in_flight: int
    predicted_flops: Mapping[PNodeId, int]
    hop_bytes: Mapping[str, int]
    """Bytes that cross per microbatch, by `from>to` PNodes, forward and backward together."""
