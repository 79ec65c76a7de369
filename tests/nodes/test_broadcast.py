"""broadcast.v1: aliases forward, a sum in port order backward."""

from __future__ import annotations

import numpy as np
import pytest

from dcnr_app.nodes.broadcast import Broadcast
from dcnr_app.nodes.contract import Context


def test_every_output_is_the_input_itself(ctx: Context) -> None:
    x = ctx.backend.full((2, 3), 1.5, "float32")
    outs = Broadcast(n_outputs=3).forward(ctx, {}, (x,)).outs
    assert len(outs) == 3
    assert all(out is x for out in outs)


def test_gradients_are_added_in_port_order(ctx: Context) -> None:
    # In float32 1e8 + 1 is 1e8: another order would give 1, or lose nothing.
    grads = [np.array([value], np.float32) for value in (1e8, 1.0, -1e8, 1.0)]
    device = tuple(ctx.backend.from_host(grad) for grad in grads)
    (dx,), _ = Broadcast(n_outputs=4).backward(ctx, {}, {}, device)
    np.testing.assert_array_equal(ctx.backend.to_host(dx), [1.0])
    (other,), _ = Broadcast(n_outputs=4).backward(ctx, {}, {}, (device[0], device[2], device[1], device[3]))
    np.testing.assert_array_equal(ctx.backend.to_host(other), [2.0])


def test_no_outputs_are_refused() -> None:
    with pytest.raises(ValueError, match="n_outputs > 0, got 0"):
        Broadcast(n_outputs=0)
