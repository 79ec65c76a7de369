"""The table of `network show`."""

from __future__ import annotations

from dcnr_app.nodes.graph.show import network_table
from tests.nodes.graph.samples import SMALL, load


def test_rows_show_wiring_shapes_and_own_parameters() -> None:
    table = network_table(load(SMALL).network, rows=3)
    by_name = {row.name: row for row in table.rows}
    up = by_name["block/1/up"]
    assert (up.type, up.inputs, up.shape) == ("linear.v1", ("block/1/norm",), (3, 4, 8))
    assert up.parameters == 8 * 8 + 8
    assert up.flops == 2 * (3 * 4) * 8 * 8
    assert by_name["head"].parameters == 0, "its weight belongs to embed"
    assert by_name["loss"].shape == ()


def test_totals_are_sums_of_the_rows() -> None:
    table = network_table(load(SMALL).network, rows=3)
    assert table.parameters == 16 * 8 + 2 * (8 * 8 + 8 + 2 * 8)
    assert table.flops == sum(row.flops for row in table.rows)
    assert table.rows_per_microbatch == 3
