"""Paths that no file can have are refused in words, wherever text is read."""

from __future__ import annotations

import pytest

from dcnr_app.data.documents import Corpus
from dcnr_app.errors import UserError


@pytest.mark.parametrize("path", ["~nobody-here-at-all/notes", "x" * 5000])
def test_a_path_that_cannot_exist_is_a_user_error(path: str) -> None:
    with pytest.raises(UserError):
        list(Corpus([path]))
