"""Philox4x32-10: random numbers as a pure function of key and index (Salmon et al., SC 2011). Pure NumPy."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

_MULTIPLIER_0 = np.uint64(0xD2511F53)
_MULTIPLIER_1 = np.uint64(0xCD9E8D57)
_WEYL_0 = 0x9E3779B9
_WEYL_1 = 0xBB67AE85
_LOW_32 = np.uint64(0xFFFFFFFF)
_SHIFT_32 = np.uint64(32)
_MASK_32 = 0xFFFFFFFF

Words = np.ndarray[Any, np.dtype[np.uint64]]


class PhiloxKey(NamedTuple):
    """Two key words and the two high counter words; each below 2**32."""

    key_0: int
    key_1: int
    counter_2: int
    counter_3: int


def fold_key(key: Sequence[int]) -> PhiloxKey:
    """Key words from integers of any number and size.

    BLAKE2b with a 16-byte digest over their decimal forms joined by commas (ASCII), read as four
    little-endian 32-bit words. Any backend can do the same on the host.
    """
    text = ",".join(str(int(part)) for part in key)
    digest = hashlib.blake2b(text.encode("ascii"), digest_size=16).digest()
    return PhiloxKey(*(int.from_bytes(digest[i : i + 4], "little") for i in range(0, 16, 4)))


def philox4x32(counter: tuple[Words, Words, Words, Words], key: tuple[int, int], rounds: int = 10) -> Words:
    """The four output words of each counter: (4, n) uint64, each value below 2**32. Writes no argument."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(rounds):
        product_0 = c0 * _MULTIPLIER_0
        product_1 = c2 * _MULTIPLIER_1
        c0 = (product_1 >> _SHIFT_32) ^ c1 ^ np.uint64(k0)
        c1 = product_1 & _LOW_32
        c2 = (product_0 >> _SHIFT_32) ^ c3 ^ np.uint64(k1)
        c3 = product_0 & _LOW_32
        k0 = (k0 + _WEYL_0) & _MASK_32
        k1 = (k1 + _WEYL_1) & _MASK_32
    return np.stack((c0, c1, c2, c3))


def uniform_blocks(key: PhiloxKey, first_block: int, n_blocks: int) -> np.ndarray[Any, Any]:
    """(n_blocks * 4,) float32 in [0, 1): elements 4 * first_block onward of the key's sequence.

    Element i is word i % 4 of the counter (i // 4 as 64 bits, counter_2, counter_3): its upper 24 bits
    divided by 2**24.
    """
    index = np.arange(first_block, first_block + n_blocks, dtype=np.uint64)
    counter = (
        index & _LOW_32,
        index >> _SHIFT_32,
        np.full(n_blocks, key.counter_2, np.uint64),
        np.full(n_blocks, key.counter_3, np.uint64),
    )
    words = philox4x32(counter, (key.key_0, key.key_1))
    top_24 = (words >> np.uint64(8)).astype(np.float32)
    return np.ascontiguousarray(top_24.T).reshape(-1) * np.float32(2.0**-24)
