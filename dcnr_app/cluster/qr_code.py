"""A text as a QR code made of block characters, for a terminal. IO-free; knows no invite."""

from __future__ import annotations

import io


def qr_text(text: str) -> str:
    """Lines of block characters for a terminal that writes light on dark."""
    import segno  # one verb needs it

    lines = io.StringIO()
    segno.make_qr(text, error="L", boost_error=False).terminal(lines, border=2, compact=True)
    return lines.getvalue()
