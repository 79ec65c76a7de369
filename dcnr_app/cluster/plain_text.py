"""Names that strangers choose, made safe to show. Pure."""

from __future__ import annotations

import unicodedata

NAME_LENGTH = 64


def plain_text(text: str, limit: int = NAME_LENGTH) -> str:
    """`text` on one line of at most `limit` characters, without control, format and private-use characters.

    What would move a cursor, reorder a line or start an escape sequence is taken out; the rest stays as it
    is, so a name such as `<b>` or `[red]` must still be escaped by whoever renders markup.
    """
    spaced = " ".join(text[: 4 * limit].split())
    return "".join(c for c in spaced if unicodedata.category(c)[0] != "C")[:limit].strip()
