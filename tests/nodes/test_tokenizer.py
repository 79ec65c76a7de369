"""tokenizer.v1: ids pass, texts become ids."""

from __future__ import annotations

import numpy as np
import pytest

from dcnr_app.engine.backend import Backend
from dcnr_app.nodes.contract import Context, TensorSpec
from dcnr_app.nodes.tokenizer import Tokenizer
from tests.contracts.vnode import context


class Bytes:
    """A tokenizer whose tokens are the text's UTF-8 bytes."""

    def encode(self, text: str) -> list[int]:
        """One id per byte."""
        return list(text.encode())


def test_ids_pass_through_unchanged(ctx: Context) -> None:
    ids = ctx.backend.from_host(np.array([[3, 1], [2, 0]], np.int32))
    assert Tokenizer().forward(ctx, {}, (ids,)).outs[0] is ids


def test_texts_become_padded_int32_rows(backend: Backend) -> None:
    ctx = context(backend, assets={"tokenizer": Bytes()})
    (ids,) = Tokenizer(pad_id=9).forward(ctx, {}, (["abc", "d"],)).outs
    assert backend.dtype_of(ids) == "int32"
    np.testing.assert_array_equal(backend.to_host(ids), [[97, 98, 99], [100, 9, 9]])


def test_texts_without_a_tokenizer_are_refused(ctx: Context) -> None:
    with pytest.raises(ValueError, match="expects an asset 'tokenizer', got"):
        Tokenizer().forward(ctx, {}, (["abc"],))


def test_empty_text_is_refused(backend: Backend) -> None:
    ctx = context(backend, assets={"tokenizer": Bytes()})
    with pytest.raises(ValueError, match="at least one token"):
        Tokenizer().forward(ctx, {}, ([""],))


def test_it_stays_on_the_host_and_passes_no_gradient() -> None:
    assert Tokenizer.is_host
    assert not Tokenizer.is_differentiable


@pytest.mark.parametrize("spec", [TensorSpec((2, 3), "float32"), TensorSpec((2,), "int32")])
def test_other_than_two_axes_of_integers_is_refused(spec: TensorSpec) -> None:
    with pytest.raises(ValueError, match=r"tokenizer\.v1 expects ids"):
        Tokenizer().shapes((spec,))


def test_negative_pad_id_is_refused() -> None:
    with pytest.raises(ValueError, match="pad_id >= 0, got -1"):
        Tokenizer(pad_id=-1)
