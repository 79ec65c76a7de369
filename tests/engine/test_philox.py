"""Philox4x32-10 against the published known-answer vectors."""

from __future__ import annotations

import numpy as np
import pytest

from dcnr_app.engine.philox import fold_key, philox4x32, uniform_blocks

# Random123 1.09, tests/kat_vectors, philox4x32 with 10 rounds: counter, key, answer.
KNOWN_ANSWERS = [
    ("00000000 00000000 00000000 00000000", "00000000 00000000", "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
    ("ffffffff ffffffff ffffffff ffffffff", "ffffffff ffffffff", "408f276d 41c83b0e a20bc7c6 6d5451fd"),
    ("243f6a88 85a308d3 13198a2e 03707344", "a4093822 299f31d0", "d16cfe09 94fdcceb 5001e420 24126ea1"),
]


def words(text: str) -> list[int]:
    return [int(word, 16) for word in text.split()]


@pytest.mark.parametrize(("counter", "key", "answer"), KNOWN_ANSWERS)
def test_philox_gives_the_known_answers(counter: str, key: str, answer: str) -> None:
    c0, c1, c2, c3 = (np.array([word], np.uint64) for word in words(counter))
    key_0, key_1 = words(key)
    assert philox4x32((c0, c1, c2, c3), (key_0, key_1))[:, 0].tolist() == words(answer)


def test_keys_that_look_alike_fold_apart() -> None:
    keys = [(1, 23), (12, 3), (123,), (1, 2, 3), (-1, 23), (1, 23, 0), (), (0,), (2**200,)]
    assert len({fold_key(key) for key in keys}) == len(keys)


def test_blocks_join_without_a_seam_beyond_32_bits() -> None:
    key = fold_key((7,))
    whole = uniform_blocks(key, 2**32 - 2, 4)
    np.testing.assert_array_equal(whole[8:], uniform_blocks(key, 2**32, 2))
    assert not np.array_equal(uniform_blocks(key, 2**32, 2), uniform_blocks(key, 0, 2))
