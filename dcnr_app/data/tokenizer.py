"""The tokenizer: text to ids and back, byte-level BPE (Sennrich et al. 2016; Radford et al. 2019).

`tokenizer.json` is the `tokenizers` library's own format; encoding runs through `tiktoken`, which is several
times faster and gives the same ids. Knows nothing about training one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import tiktoken

from dcnr_app.data.folders import children, read_manifest, sha256_of
from dcnr_app.errors import StoreError, UserError

FORMAT_VERSION = 1
TOKENIZER_FILE = "tokenizer.json"
END_OF_TEXT = 0
END_OF_TEXT_TEXT = "<|endoftext|>"
N_RESERVED = 257
"""End of text (id 0) and the 256 single bytes; merges follow in the order in which they were learned."""

PATTERNS: Mapping[str, str] = {
    # the split of GPT-2, under the name by which llama.cpp knows it
    "gpt-2": r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
}


class TokenizerManifest(msgspec.Struct, frozen=True, kw_only=True):
    """What a tokenizer is and where it came from. `id` is known before training and names the folder."""

    format_version: int
    id: str
    sha256: str
    """Of tokenizer.json: the content hash that datasets and checkpoints refer to."""

    preset: str
    pattern: str
    asked_vocab: int
    n_vocab: int
    """Vocabulary reached; below `asked_vocab` if the text has too few repeated pairs."""

    end_of_text: int
    documents_digest: str
    sample_bytes: int
    library: str


class Tokenizer:
    """Text to ids and back. Text never yields the end-of-text id, whatever it spells."""

    def __init__(self, manifest: TokenizerManifest, token_bytes: tuple[bytes, ...]) -> None:
        self.manifest = manifest
        self._token_bytes = token_bytes
        ranks = {raw: rank for rank, raw in enumerate(token_bytes) if rank != END_OF_TEXT}
        self._encoding = tiktoken.Encoding(
            manifest.id,
            pat_str=manifest.pattern,
            mergeable_ranks=ranks,
            special_tokens={END_OF_TEXT_TEXT: END_OF_TEXT},
        )

    @property
    def id(self) -> str:
        """Name of its folder: the hash of what it was trained from and how."""
        return self.manifest.id

    @property
    def content_hash(self) -> str:
        """sha256 of tokenizer.json."""
        return self.manifest.sha256

    @property
    def n_vocab(self) -> int:
        """Number of ids, end of text included."""
        return self.manifest.n_vocab

    @property
    def end_of_text(self) -> int:
        """The id after each document."""
        return END_OF_TEXT

    def encode(self, text: str) -> list[int]:
        """Ids of `text`. Raises UserError for text that is not valid Unicode or that cannot be split."""
        ids: list[int] = self.encode_array(text).tolist()
        return ids

    def encode_array(self, text: str, where: str = "") -> np.ndarray[Any, np.dtype[np.uint32]]:
        """`encode` as uint32 (n,), without a list in between; releases the GIL. `where` is for the error."""
        try:
            return self._encoding.encode_to_numpy(text, disallowed_special=())
        except UnicodeEncodeError as error:
            raise UserError(
                f"text is not valid Unicode at character {error.start}",
                where=where,
                why="it holds half of a surrogate pair",
                fix="repair the text; UTF-8 cannot express it",
            ) from error
        except ValueError as error:  # the split regex's stack: over a million white-space characters in a row
            raise UserError(
                "the text cannot be split into words",
                where=where,
                why=f"it has a very long run of white space ({error})",
                fix="shorten the run",
            ) from error

    def decode(self, ids: Iterable[int]) -> str:
        """Text of `ids`; end of text adds nothing, bytes that are not UTF-8 become U+FFFD.

        Raises UserError for an id outside the vocabulary.
        """
        return b"".join(self.bytes_of(token) for token in ids).decode("utf-8", "replace")

    def bytes_of(self, token: int) -> bytes:
        """UTF-8 bytes that a token stands for; none for end of text. Raises UserError for an unknown id."""
        if not 0 <= token < self.n_vocab:
            raise UserError(
                f"token {token} is not in the vocabulary", why=f"ids go from 0 to {self.n_vocab - 1}"
            )
        return self._token_bytes[token]


def tokenizers_folder(home: Path) -> Path:
    """Where the tokenizers of a home lie, one folder each, by id."""
    return home / "tokenizers"


def load_tokenizer(folder: Path) -> Tokenizer:
    """The tokenizer in `folder`. Raises StoreError if a file is absent, changed or not of this kind."""
    manifest = read_manifest(folder, TokenizerManifest)
    path = folder / TOKENIZER_FILE
    if manifest.format_version != FORMAT_VERSION:
        raise StoreError(
            f"tokenizer format {manifest.format_version} is unknown", where=str(folder), fix="update the app"
        )
    if sha256_of(path) != manifest.sha256:
        raise StoreError(
            "the file has changed since it was written",
            where=str(path),
            why="its sha256 is not the manifest's",
            fix="delete the folder and train the tokenizer anew",
        )
    token_bytes = read_token_bytes(path)
    if len(token_bytes) != manifest.n_vocab:
        raise StoreError(f"{len(token_bytes)} tokens, the manifest says {manifest.n_vocab}", where=str(path))
    return Tokenizer(manifest, token_bytes)


def tokenizer_from_file(path: Path) -> Tokenizer:
    """The tokenizer of a lone tokenizer.json, such as a checkpoint's. Raises StoreError if it was not made
    here."""
    token_bytes = read_token_bytes(path)
    sha256 = sha256_of(path)
    manifest = TokenizerManifest(
        format_version=FORMAT_VERSION,
        id=sha256[:16],
        sha256=sha256,
        preset="gpt-2",
        pattern=PATTERNS["gpt-2"],
        asked_vocab=len(token_bytes),
        n_vocab=len(token_bytes),
        end_of_text=END_OF_TEXT,
        documents_digest="",
        sample_bytes=0,
        library="",
    )
    return Tokenizer(manifest, token_bytes)


def list_tokenizers(home: Path) -> tuple[TokenizerManifest, ...]:
    """Manifests of the home's tokenizers by id. Raises StoreError for an unreadable one."""
    return tuple(read_manifest(folder, TokenizerManifest) for folder in children(tokenizers_folder(home)))


def read_token_bytes(path: Path) -> tuple[bytes, ...]:
    """The bytes of each id in a tokenizer.json. Raises StoreError if its ids are not in merge order.

    tiktoken merges the adjacent pair whose joined bytes have the lowest id; `tokenizers` the pair that stands
    first in the list of merges. Both agree if merge i makes id 257 + i and no token is made twice.
    """
    try:
        model = msgspec.json.decode(path.read_bytes(), type=_File).model
        letters = byte_letters()
        texts = sorted(model.vocab, key=model.vocab.__getitem__)
        token_bytes = (b"", *(bytes(letters[letter] for letter in text) for text in texts[1:]))
        is_ordered = (
            [model.vocab[text] for text in texts] == list(range(len(texts)))
            and texts[0] == END_OF_TEXT_TEXT
            and sorted(token_bytes[1:N_RESERVED]) == [bytes([byte]) for byte in range(256)]
            and texts[N_RESERVED:] == [left + right for left, right in model.merges]
        )
    except (OSError, msgspec.DecodeError, KeyError, IndexError) as error:
        raise StoreError("not a byte-level BPE tokenizer", where=str(path), why=repr(error)) from error
    if not is_ordered:
        raise StoreError(
            "ids are not in merge order", where=str(path), why="tokenizer.json was not made here"
        )
    return token_bytes


def byte_letters() -> dict[str, int]:
    """GPT-2's printable letter of each byte, the other way round: letter to byte.

    Printable Latin-1 bytes stand for themselves, the others for U+0100, U+0101, … in byte order.
    """
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = (byte for byte in range(256) if byte not in printable)
    letters = {chr(byte): byte for byte in printable}
    letters.update({chr(256 + i): byte for i, byte in enumerate(others)})
    return letters


class _Model(msgspec.Struct):
    vocab: dict[str, int]
    merges: Sequence[tuple[str, str]]


class _File(msgspec.Struct):
    model: _Model
