"""The Backend protocol: what an array engine must offer. Knows no array library.

Legend: N rows · I in · O out · B batch · H heads · T tokens · D head size · V vocabulary.

Arrays are opaque: they have `.shape`, `.dtype` and the operators + - * / and unary -; all else goes through
the backend. No operation writes into its arguments. Every result is a function of the arguments' values and
shapes alone: never of the number of threads, of memory addresses, or of what ran before.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol

if TYPE_CHECKING:
    import numpy as np

Array = Any
DType = Literal["float32", "float64", "float16", "bfloat16", "int32", "int64"]
Shape = tuple[int, ...]


class LayerNormSaved(NamedTuple):
    """Per-row statistics that layernorm's backward needs; each (N, 1) in the accumulation dtype."""

    mean_N1: Array
    inverse_std_N1: Array


class GradientFacts(NamedTuple):
    """One parameter's unscaled gradient with its float64 squared norm and whether all of it is finite."""

    gradient: Array
    squared_norm: float
    is_finite: bool


class AdamWStep(NamedTuple):
    """Scalars of one AdamW update; `t` counts applied updates from 1."""

    learning_rate: float
    beta1: float
    beta2: float
    eps: float
    weight_decay: float
    t: int
    clip_coefficient: float


class MemoryFigures(NamedTuple):
    """Bytes that the backend holds: in use, kept in its pool, and the largest use so far."""

    used_bytes: int
    pooled_bytes: int
    peak_bytes: int


class Backend(Protocol):
    """One array engine on one device. Accumulation is float32 (float64 for float64 arrays)."""

    name: str

    # construction and host transfer
    def zeros(self, shape: Shape, dtype: DType) -> Array: ...
    def full(self, shape: Shape, value: float, dtype: DType) -> Array: ...
    def from_host(self, host: np.ndarray[Any, Any]) -> Array: ...
    def to_host(self, x: Array) -> np.ndarray[Any, Any]: ...
    def dtype_of(self, x: Array) -> DType: ...
    def cast(self, x: Array, dtype: DType) -> Array: ...
    def copy(self, x: Array) -> Array: ...
    def contiguous(self, x: Array) -> Array:
        """`x` itself if its memory is C-contiguous, else a copy that is."""
        ...

    # shape
    def reshape(self, x: Array, shape: Shape) -> Array: ...
    def transpose(self, x: Array, axes: Sequence[int]) -> Array: ...
    def slice_axis(self, x: Array, axis: int, start: int, stop: int) -> Array: ...
    def concat(self, xs: Sequence[Array], axis: int) -> Array: ...

    # arithmetic
    def matmul(self, a: Array, b: Array) -> Array:
        """Batched matrix product over the last two axes; leading axes must be equal."""
        ...

    def sum(self, x: Array, axis: int | None, *, keepdims: bool = False) -> Array: ...
    def max(self, x: Array, axis: int, *, keepdims: bool = False) -> Array: ...
    def maximum(self, a: Array, b: Array | float) -> Array: ...
    def where(self, condition: Array, a: Array | float, b: Array | float) -> Array: ...
    def greater(self, a: Array, b: Array | float) -> Array: ...
    def equal(self, a: Array, b: Array | float) -> Array: ...
    def exp(self, x: Array) -> Array: ...
    def log(self, x: Array) -> Array: ...
    def sqrt(self, x: Array) -> Array: ...
    def tanh(self, x: Array) -> Array: ...
    def softmax(self, x: Array) -> Array:
        """Softmax over the last axis, maximum subtracted first."""
        ...

    def causal_mask(self, n_rows: int, n_columns: int) -> Array:
        """Boolean (n_rows, n_columns), true where column <= row."""
        ...

    # gather, scatter, random
    def gather_rows(self, table_VD: Array, ids: Array) -> Array:
        """`table_VD[ids]`: shape ids.shape + (D,). Raises ValueError for an id outside 0..V-1."""
        ...

    def scatter_add_rows(self, ids: Array, rows: Array, n_rows: int) -> Array:
        """(n_rows, D): the sum of the rows that carry each id, added in the order in which they stand."""
        ...

    def random_uniform(self, key: Sequence[int], shape: Shape) -> Array:
        """float32 in [0, 1): element i is a pure function of (key, i) (Philox4x32-10, Salmon et al. 2011)."""
        ...

    # affine map over rows, in fixed row tiles (forward, dx) and fixed output tiles (dw)
    def linear_forward(self, x_NI: Array, w_OI: Array, b_O: Array | None) -> Array: ...
    def linear_backward(
        self, x_NI: Array, w_OI: Array, dy_NO: Array, *, has_bias: bool
    ) -> tuple[Array, Array, Array | None]:
        """(dx_NI, dw_OI, db_O or None)."""
        ...

    # fused pairs
    def attention_forward(
        self, q_BHTD: Array, k_BHTD: Array, v_BHTD: Array, scale: float
    ) -> tuple[Array, Array]:
        """Causal attention: (output (B,H,T,D), logsumexp (B,H,T)); never holds T x T (FlashAttention-2, Dao
        2023)."""
        ...

    def attention_backward(
        self,
        q_BHTD: Array,
        k_BHTD: Array,
        v_BHTD: Array,
        out_BHTD: Array,
        logsumexp_BHT: Array,
        dout_BHTD: Array,
        scale: float,
    ) -> tuple[Array, Array, Array]:
        """(dq, dk, dv), each (B,H,T,D)."""
        ...

    def layernorm_forward(
        self, x_ND: Array, gain_D: Array, bias_D: Array | None, eps: float
    ) -> tuple[Array, LayerNormSaved]: ...
    def layernorm_backward(
        self, x_ND: Array, gain_D: Array, saved: LayerNormSaved, dy_ND: Array, *, has_bias: bool
    ) -> tuple[Array, Array, Array | None]:
        """(dx_ND, dgain_D, dbias_D or None)."""
        ...

    def gelu_forward(self, x: Array) -> Array:
        """0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))) (Hendrycks & Gimpel 2016, tanh form)."""
        ...

    def gelu_backward(self, x: Array, dy: Array) -> Array: ...
    def rope(self, x_BHTD: Array, base: float, first_position: int, *, inverse: bool) -> Array:
        """Rotary embedding, half-rotation layout (Su et al. 2021); `inverse` rotates back and is the
        gradient."""
        ...

    def cross_entropy_forward(self, logits_NV: Array, targets_N: Array) -> tuple[Array, Array]:
        """(sum over rows with target >= 0 of -log softmax[target], float32 or float64 scalar; logsumexp
        (N,))."""
        ...

    def cross_entropy_backward(
        self, logits_NV: Array, targets_N: Array, logsumexp_N: Array, dloss: Array
    ) -> Array:
        """dlogits_NV = (softmax - one_hot(target)) * dloss; zero rows where target < 0."""
        ...

    # optimizer; results replace the arguments (they may reuse their memory)
    def unscale(self, gradient: Array, scale: float) -> GradientFacts: ...
    def adamw(
        self, weight: Array, gradient: Array, m: Array, v: Array, step: AdamWStep
    ) -> tuple[Array, Array, Array]:
        """(weight, m, v) after one update with decoupled decay (Loshchilov & Hutter 2019)."""
        ...

    def sgd(self, weight: Array, gradient: Array, velocity: Array, step: AdamWStep) -> tuple[Array, Array]:
        """(weight, velocity): momentum `beta1`, decoupled decay."""
        ...

    def accumulate(self, total: Array, x: Array) -> Array:
        """total + x; may write into `total`, which the caller gives up."""
        ...

    # lifetime and facts
    def synchronize(self) -> None: ...
    def release(self, x: Array) -> None:
        """The caller will not use `x` again: its memory may go back to the pool."""
        ...

    def memory(self) -> MemoryFigures: ...
    def device_class(self) -> Mapping[str, str]:
        """Facts that fix the bits: engine and version, BLAS build and core, CPU features, tile constants."""
        ...

    def close(self) -> None: ...
