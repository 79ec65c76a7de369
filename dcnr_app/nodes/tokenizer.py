"""Text to token ids, on the host. Knows no tokenizer library: the object comes in `ctx.assets`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from dcnr_app.engine.backend import Array
from dcnr_app.nodes.contract import Backward, Context, Forward, TensorSpec, VNode
from dcnr_app.nodes.specs import expect_inputs, expect_integer, require_not_negative


class Tokenizer(VNode, frozen=True, kw_only=True, tag="tokenizer.v1"):
    """Token ids of texts.      No gradient: ids are integers.

    B texts · T tokens of the longest.   ids (B, T) int32 -> the same array: in training the dataset is
    already tokenized. A sequence of B strings -> (B, T) int32, shorter rows filled with `pad_id`.
    `ctx.assets["tokenizer"]` offers `encode(text) -> list[int]`.
    Reference: byte pair encoding, Sennrich et al. 2016.
    """

    pad_id: int = 0

    in_ports: ClassVar[tuple[str, ...]] = ("ids",)
    is_differentiable: ClassVar[bool] = False
    is_host: ClassVar[bool] = True

    def __post_init__(self) -> None:
        """Refuse a negative pad id."""
        require_not_negative("tokenizer.v1", pad_id=self.pad_id)

    def shapes(self, ins: tuple[TensorSpec, ...]) -> tuple[TensorSpec, ...]:
        """(B, T) -> (B, T), integer."""
        expect_inputs("tokenizer.v1", ins, 1)
        expect_integer("tokenizer.v1", "ids", ins[0])
        if len(ins[0].shape) != 2:
            raise ValueError(f"tokenizer.v1 expects ids of shape (batch, tokens), got {ins[0].shape}")
        return ins

    def flops(self, ins: tuple[TensorSpec, ...]) -> int:
        """0: nothing runs on a device."""
        return 0

    def forward(self, ctx: Context, params: Mapping[str, Array], ins: tuple[Array, ...]) -> Forward:
        """The ids themselves, or those of the texts. Raises ValueError for texts without a tokenizer."""
        (given,) = ins
        if hasattr(given, "shape"):
            return Forward((given,), {})
        return Forward((self._encode(ctx, given),), {})

    def backward(
        self, ctx: Context, params: Mapping[str, Array], saved: Mapping[str, Array], grads: tuple[Array, ...]
    ) -> Backward:
        """None: ids have no gradient."""
        return Backward((None,), {})

    def _encode(self, ctx: Context, texts: Sequence[str]) -> Array:
        if "tokenizer" not in ctx.assets:
            raise ValueError(f"tokenizer.v1 expects an asset 'tokenizer', got {sorted(ctx.assets)}")
        tokenizer: Any = ctx.assets["tokenizer"]
        rows = [[int(token) for token in tokenizer.encode(text)] for text in texts]
        width = max((len(row) for row in rows), default=0)
        if width == 0:
            raise ValueError(f"tokenizer.v1 expects text with at least one token, got {list(texts)!r}")
        return ctx.backend.concat([self._row(ctx, row, width) for row in rows], 0)

    def _row(self, ctx: Context, tokens: Sequence[int], width: int) -> Array:
        # One tiny array per token: a prompt has at most a few thousand, and no array library is needed here.
        padded = [*tokens, *[self.pad_id] * (width - len(tokens))]
        return ctx.backend.concat([ctx.backend.full((1, 1), token, "int32") for token in padded], 1)
