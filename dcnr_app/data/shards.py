"""Token shards: raw little-endian ids in `.tok` files, document offsets in `.idx` files. Knows no text.

A document is never cut between shards, and each ends with the end-of-text id. `.idx` holds int64 offsets
into its shard, one per document and the shard's length. All shards of a split in order are one stream.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Literal, Self

import msgspec
import numpy as np

from dcnr_app.data.folders import sha256_of
from dcnr_app.errors import StoreError

TokenDType = Literal["uint16", "uint32"]
Tokens = np.ndarray[Any, Any]
SHARD_TOKENS = 1 << 26
_INDEX_DTYPE = np.dtype("<i8")


class Shard(msgspec.Struct, frozen=True, kw_only=True):
    """One shard: file name without suffix, counts, hex sha256 of both files."""

    name: str
    n_tokens: int
    n_documents: int
    sha256: str
    index_sha256: str


def token_dtype(n_vocab: int) -> TokenDType:
    """The smallest stored type for ids below `n_vocab`."""
    return "uint16" if n_vocab <= 1 << 16 else "uint32"


class ShardWriter:
    """Writes one split's documents; `close` gives the shards. A shard ends once it has `shard_tokens`.

    As a context manager it lets go of an open file when something fails midway.
    """

    def __init__(self, folder: Path, split: str, dtype: TokenDType, shard_tokens: int = SHARD_TOKENS) -> None:
        self._folder = folder
        self._split = split
        self._dtype = _stored(dtype)
        self._shard_tokens = shard_tokens
        self._shards: list[Shard] = []
        self._file: BinaryIO | None = None
        self._digest = hashlib.sha256()
        self._offsets: list[int] = [0]

    def __enter__(self) -> Self:
        """The writer."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Close the open file, if any, without making a shard of it."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def add(self, ids: Tokens) -> None:
        """Append a document: ids (n,), the end-of-text id last."""
        if self._file is None:
            self._file = self._path(".tok").open("wb")  # over many calls, so no `with`
            self._digest = hashlib.sha256()
            self._offsets = [0]
        raw = np.ascontiguousarray(ids, dtype=self._dtype).tobytes()
        self._file.write(raw)
        self._digest.update(raw)
        self._offsets.append(self._offsets[-1] + len(ids))
        if self._offsets[-1] >= self._shard_tokens:
            self._finish()

    def close(self) -> tuple[Shard, ...]:
        """All shards, on the disk; safe to call twice."""
        self._finish()
        return tuple(self._shards)

    def _finish(self) -> None:
        if self._file is None:
            return
        _sync_and_close(self._file)
        index = np.array(self._offsets, dtype=_INDEX_DTYPE).tobytes()
        with self._path(".idx").open("wb") as index_file:
            index_file.write(index)
            _sync_and_close(index_file)
        self._shards.append(
            Shard(
                name=self._path("").name,
                n_tokens=self._offsets[-1],
                n_documents=len(self._offsets) - 1,
                sha256=self._digest.hexdigest(),
                index_sha256=hashlib.sha256(index).hexdigest(),
            )
        )
        self._file = None

    def _path(self, suffix: str) -> Path:
        return self._folder / f"{self._split}-{len(self._shards):05}{suffix}"


class TokenStream:
    """All tokens of a split, mapped into memory, not read. Raises StoreError if a file has another size."""

    def __init__(self, folder: Path, shards: Sequence[Shard], dtype: TokenDType) -> None:
        self._folder = folder
        self._shards = tuple(shards)
        self._maps = []
        for shard in shards:
            path = folder / f"{shard.name}.tok"
            _check_size(path, shard.n_tokens * _stored(dtype).itemsize)
            _check_size(folder / f"{shard.name}.idx", (shard.n_documents + 1) * _INDEX_DTYPE.itemsize)
            self._maps.append(np.memmap(path, dtype=_stored(dtype), mode="r"))
        # int64 also where the platform's default integer is 32 bits: streams pass 4 GB
        self._starts = np.cumsum([0, *(shard.n_tokens for shard in shards)], dtype=np.int64)

    @property
    def n_tokens(self) -> int:
        """Length of the stream."""
        return int(self._starts[-1])

    def read(self, start: int, stop: int) -> Tokens:
        """Tokens [start, stop) in the stored type. Raises IndexError outside the stream."""
        if not 0 <= start <= stop <= self.n_tokens:
            raise IndexError(f"tokens [{start}, {stop}) of a stream of {self.n_tokens}")
        parts = []
        shard = int(np.searchsorted(self._starts, start, side="right")) - 1
        while start < stop:
            first = int(self._starts[shard])
            end = min(stop, int(self._starts[shard + 1]))
            parts.append(self._maps[shard][start - first : end - first])
            start = end
            shard += 1
        return np.concatenate(parts) if parts else np.zeros(0, dtype=np.uint16)

    def chunks(self, size: int) -> Iterator[Tokens]:
        """The stream in pieces of up to `size` tokens, each after the first beginning with the last token
        before."""
        for start in range(0, self.n_tokens, size):
            yield self.read(max(start - 1, 0), min(start + size, self.n_tokens))

    def documents(self) -> Iterator[Tokens]:
        """Ids of each document, end of text included. Raises StoreError for offsets that do not fit."""
        for shard, tokens in zip(self._shards, self._maps, strict=True):
            path = self._folder / f"{shard.name}.idx"
            offsets = np.fromfile(path, dtype=_INDEX_DTYPE)
            if offsets[0] != 0 or offsets[-1] != shard.n_tokens or np.any(np.diff(offsets) < 1):
                raise StoreError("document offsets do not fit the shard", where=str(path))
            for start, stop in pairwise(offsets.tolist()):
                yield np.asarray(tokens[start:stop])


def verify_shards(folder: Path, shards: Sequence[Shard]) -> None:
    """Compare all files with their hashes. Raises StoreError naming the file that differs."""
    for shard in shards:
        for suffix, expected in ((".tok", shard.sha256), (".idx", shard.index_sha256)):
            path = folder / f"{shard.name}{suffix}"
            if sha256_of(path) != expected:
                raise StoreError(
                    "the file has changed since it was written",
                    where=str(path),
                    why="its sha256 is not the manifest's",
                    fix="delete the dataset's folder and prepare it anew",
                )


def _stored(dtype: TokenDType) -> np.dtype[Any]:
    return np.dtype(dtype).newbyteorder("<")


def _sync_and_close(file: BinaryIO) -> None:
    file.flush()
    os.fsync(file.fileno())
    file.close()


def _check_size(path: Path, expected_bytes: int) -> None:
    try:
        n_bytes = path.stat().st_size
    except OSError as error:
        raise StoreError("a shard's file is missing", where=str(path), why=str(error)) from error
    if n_bytes != expected_bytes:
        raise StoreError(
            f"{n_bytes} bytes, the manifest says {expected_bytes}",
            where=str(path),
            fix="delete the dataset's folder and prepare it anew",
        )
