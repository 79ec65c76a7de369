"""The survey of a corpus: what identifies its content, and proof that a second pass saw the same."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator

import msgspec

from dcnr_app.data.documents import Document, utf8
from dcnr_app.errors import UserError


class CorpusFacts(msgspec.Struct, frozen=True):
    """What one pass over documents found: content in order, names with content, counts, UTF-8 bytes."""

    documents_digest: str
    sources_digest: str
    n_documents: int
    n_bytes: int


def survey(documents: Iterable[Document]) -> CorpusFacts:
    """Digests and counts of one pass over `documents`. Raises UserError for text that is not valid
    Unicode."""
    pass_ = _Survey()
    for document in documents:
        pass_.add(document)
    return pass_.facts()


def checked(documents: Iterable[Document], facts: CorpusFacts) -> Iterator[Document]:
    """`documents`, and UserError at their end if they are not those of which `facts` is the survey."""
    pass_ = _Survey()
    for document in documents:
        pass_.add(document)
        yield document
    if pass_.facts() != facts:
        raise UserError(
            "the documents changed while they were read",
            why=f"{facts.n_documents} documents of {facts.n_bytes} bytes became "
            f"{pass_.facts().n_documents} of {pass_.facts().n_bytes}, or others",
            fix="run again when nothing writes to them",
        )


class _Survey:
    def __init__(self) -> None:
        self._contents = hashlib.sha256()
        self._sources = hashlib.sha256()
        self._n_documents = 0
        self._n_bytes = 0

    def add(self, document: Document) -> None:
        raw = utf8(document.text, document.name)
        content = hashlib.sha256(raw).digest()
        name = hashlib.sha256(document.name.encode("utf-8", "surrogateescape")).digest()
        self._contents.update(content)
        self._sources.update(name + content)
        self._n_documents += 1
        self._n_bytes += len(raw)

    def facts(self) -> CorpusFacts:
        return CorpusFacts(
            self._contents.hexdigest(), self._sources.hexdigest(), self._n_documents, self._n_bytes
        )
