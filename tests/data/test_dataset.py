"""Datasets: documents come back, the split, stored types, damage, kills, the cache."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dcnr_app.data.dataset import (
    Dataset,
    SplitSettings,
    build_dataset,
    datasets_folder,
    is_validation,
    list_datasets,
    load_dataset,
    n_shared_documents,
    verify_dataset,
)
from dcnr_app.data.documents import Document
from dcnr_app.data.folders import create_once
from dcnr_app.data.prepare import prepare
from dcnr_app.data.shards import ShardWriter, TokenStream
from dcnr_app.data.tokenizer import Tokenizer
from dcnr_app.errors import DeadlineError, StoreError, UserError
from tests.data.corpus import HALF, SETTINGS, built, bytes_tokenizer, documents, trained


@pytest.fixture(scope="module")
def shared_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="module")
def tokenizer(shared_home: Path) -> Tokenizer:
    return trained(shared_home)


def _texts(stream: TokenStream, tokenizer: Tokenizer) -> list[str]:
    """Documents of the flat stream cut at end of text, which does not use the offsets."""
    ids = stream.read(0, stream.n_tokens).tolist()
    texts, document = [], []
    for token in ids:
        if token == tokenizer.end_of_text:
            texts.append(tokenizer.decode(document))
            document = []
        else:
            document.append(token)
    assert not document
    return texts


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(texts=st.lists(st.text(max_size=30), max_size=12), shard_tokens=st.integers(1, 50))
def test_documents_come_back_from_the_tokens(
    tmp_path_factory: pytest.TempPathFactory, tokenizer: Tokenizer, texts: list[str], shard_tokens: int
) -> None:
    given_ = [*(Document(f"g{i}", text) for i, text in enumerate(texts)), *documents(8, words=2)]
    dataset = build_dataset(
        tmp_path_factory.mktemp("h"),
        given_,
        tokenizer,
        SplitSettings(validation_per_10000=5000),
        shard_tokens=shard_tokens,
    )
    found = _texts(dataset.train, tokenizer) + _texts(dataset.validation, tokenizer)
    assert Counter(found) == Counter(document.text for document in given_)
    for stream in (dataset.train, dataset.validation):
        by_offset = [tokenizer.decode(ids.tolist()) for ids in stream.documents()]
        assert by_offset == _texts(stream, tokenizer)
    verify_dataset(dataset.folder)


def test_the_manifest_counts_what_is_there(shared_home: Path, tokenizer: Tokenizer) -> None:
    dataset = built(shared_home)
    manifest = dataset.manifest
    sides = [(manifest.train, dataset.train), (manifest.validation, dataset.validation)]
    for split, stream in sides:
        texts = _texts(stream, tokenizer)
        assert split.n_documents == len(texts) > 0
        assert split.n_bytes == sum(len(text.encode()) for text in texts)
        assert split.n_tokens == stream.n_tokens == sum(len(tokenizer.encode(text)) + 1 for text in texts)
    assert manifest.tokenizer_sha256 == tokenizer.content_hash
    assert (manifest.dtype, manifest.n_shared_documents) == ("uint16", 0)


def test_the_sides_share_no_document_even_with_copies(tmp_path: Path, tokenizer: Tokenizer) -> None:
    dataset = build_dataset(tmp_path, documents() * 3, tokenizer, HALF)
    assert not set(_texts(dataset.train, tokenizer)) & set(_texts(dataset.validation, tokenizer))


def test_shared_documents_are_found_without_the_rule(tmp_path: Path) -> None:
    streams = []
    for split, texts in (("train", [[5, 0], [6, 0], [5, 0]]), ("validation", [[7, 0], [5, 0]])):
        with ShardWriter(tmp_path, split, "uint16") as writer:
            for ids in texts:
                writer.add(np.array(ids))
            streams.append(TokenStream(tmp_path, writer.close(), "uint16"))
    assert n_shared_documents(*streams) == 2


def test_adding_documents_moves_none_to_the_other_side(tmp_path: Path, tokenizer: Tokenizer) -> None:
    few, many = documents(60), documents(60) + documents(60, seed=9)
    before, after = (build_dataset(tmp_path, texts, tokenizer, HALF) for texts in (few, many))
    assert before.folder != after.folder
    assert set(_texts(before.train, tokenizer)) < set(_texts(after.train, tokenizer))
    assert set(_texts(before.validation, tokenizer)) < set(_texts(after.validation, tokenizer))


def test_the_split_keeps_about_its_share_and_the_salt_changes_it() -> None:
    texts = [str(i) for i in range(4000)]
    by_salt = [
        {text for text in texts if is_validation(text, SplitSettings(salt=salt))} for salt in ("a", "b")
    ]
    for chosen in by_salt:
        assert 150 < len(chosen) < 250  # 5 % of 4000, six deviations of 13.8 to either side
    assert by_salt[0] != by_salt[1]


@pytest.mark.parametrize(("share", "side"), [(1, "validation"), (9999, "training")])
def test_a_split_with_an_empty_side_is_refused_and_leaves_nothing(
    tmp_path: Path, tokenizer: Tokenizer, share: int, side: str
) -> None:
    with pytest.raises(UserError, match=side):
        build_dataset(tmp_path, documents(3), tokenizer, SplitSettings(validation_per_10000=share))
    assert list_datasets(tmp_path) == ()
    assert [path.name for path in datasets_folder(tmp_path).iterdir() if path.is_dir()] == []


def test_a_share_outside_the_possible_is_refused(tmp_path: Path, tokenizer: Tokenizer) -> None:
    with pytest.raises(UserError):
        build_dataset(tmp_path, documents(3), tokenizer, SplitSettings(validation_per_10000=0))


def test_a_vocabulary_above_65536_is_stored_in_four_bytes(tmp_path: Path) -> None:
    pairs = [(bytes([a]), bytes([b])) for a, b in product(range(256), repeat=2)]
    pairs += [(bytes([97, a]), bytes([b])) for a, b in product(range(98, 115), range(256))]
    wide = bytes_tokenizer(tmp_path / "wide", pairs)
    dataset = build_dataset(tmp_path, documents(), wide, HALF)
    assert wide.n_vocab > 69_000
    assert dataset.manifest.dtype == "uint32"
    assert dataset.train.read(0, 9).dtype == np.uint32
    found = _texts(dataset.train, wide) + _texts(dataset.validation, wide)
    assert Counter(found) == Counter(document.text for document in documents())


def test_reading_across_shards_equals_one_shard(tmp_path: Path, tokenizer: Tokenizer) -> None:
    one = build_dataset(tmp_path / "one", documents(), tokenizer, HALF)
    many = build_dataset(tmp_path / "many", documents(), tokenizer, HALF, shard_tokens=300)
    assert len(many.manifest.train.shards) > 10
    whole = one.train.read(0, one.train.n_tokens)
    for start, stop in ((0, len(whole)), (100, 1500), (250, 260), (len(whole) - 1, len(whole)), (7, 7)):
        assert np.array_equal(many.train.read(start, stop), whole[start:stop])
    with pytest.raises(IndexError):
        one.train.read(0, len(whole) + 1)


class _Growing:
    """Documents of which there is one more on each pass."""

    def __init__(self) -> None:
        self.n = 20

    def __iter__(self) -> Iterator[Document]:
        self.n += 1
        return iter(documents(self.n))


def test_documents_that_change_while_they_are_read_make_no_dataset(
    tmp_path: Path, tokenizer: Tokenizer
) -> None:
    with pytest.raises(UserError, match="changed"):
        build_dataset(tmp_path, _Growing(), tokenizer, HALF)
    with pytest.raises(UserError, match="changed"):
        prepare(tmp_path, _Growing(), SETTINGS, HALF)
    assert list_datasets(tmp_path) == ()


def _first_shard(dataset: Dataset, suffix: str) -> Path:
    return dataset.folder / f"{dataset.manifest.train.shards[0].name}{suffix}"


def test_equal_documents_alone_are_refused_with_the_reason_and_a_way_out(
    tmp_path: Path, tokenizer: Tokenizer
) -> None:
    equal = [Document(f"d{i}", "the same words") for i in range(500)]
    with pytest.raises(UserError) as caught:
        build_dataset(tmp_path, equal, tokenizer, HALF)
    assert "equal ones all to the same side" in caught.value.why
    assert "different text" in caught.value.fix
    assert "--validation-percent" in caught.value.fix


@pytest.mark.parametrize("suffix", [".tok", ".idx"])
def test_a_flipped_bit_is_found_and_the_file_named(tmp_path: Path, suffix: str) -> None:
    dataset = built(tmp_path)
    path = _first_shard(dataset, suffix)
    raw = bytearray(path.read_bytes())
    raw[10] ^= 1
    path.write_bytes(raw)
    with pytest.raises(StoreError) as caught:
        verify_dataset(dataset.folder)
    assert caught.value.where == str(path)


@pytest.mark.parametrize("suffix", [".tok", ".idx"])
def test_a_short_or_missing_file_is_found_at_loading(tmp_path: Path, suffix: str) -> None:
    dataset = built(tmp_path)
    path = _first_shard(dataset, suffix)
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(StoreError) as caught:
        load_dataset(dataset.folder)
    assert caught.value.where == str(path)
    path.unlink()
    with pytest.raises(StoreError, match="missing"):
        load_dataset(dataset.folder)


@pytest.mark.parametrize("text", ["{}", "", '{"a":' * 100_000], ids=["empty", "no JSON", "nested too deep"])
def test_a_broken_manifest_is_named(tmp_path: Path, text: str) -> None:
    dataset = built(tmp_path)
    (dataset.folder / "manifest.json").write_text(text)
    with pytest.raises(StoreError, match=r"manifest\.json"):
        list_datasets(tmp_path)


def test_a_second_run_only_loads(tmp_path: Path) -> None:
    reports: list[str] = []

    def progress(stage: str, done: int, total: int) -> None:
        reports.append(stage)

    _, first = prepare(tmp_path, documents(), SETTINGS, HALF, progress)
    assert set(reports) == {"train tokenizer", "tokenise"}
    reports.clear()
    _, second = prepare(tmp_path, documents(), SETTINGS, HALF, progress)
    assert (reports, second.folder) == ([], first.folder)
    assert [manifest.id for manifest in list_datasets(tmp_path)] == [first.manifest.id]


KILLED = """
import os, signal, sys
from pathlib import Path
from tests.data.corpus import HALF, documents, trained
from dcnr_app.data.dataset import build_dataset

def die(stage, done, total):
    if done * 2 > total:
        os.kill(os.getpid(), signal.SIGKILL)

build_dataset(Path(sys.argv[1]), documents(), trained(Path(sys.argv[1])), HALF, progress=die)
"""


def test_a_build_killed_halfway_leaves_nothing_that_counts(tmp_path: Path) -> None:
    root = Path(__file__).parents[2]
    killed = subprocess.run(
        [sys.executable, "-c", KILLED, str(tmp_path)],
        cwd=root,
        env={**os.environ, "PYTHONPATH": str(root)},
        check=False,
    )
    assert killed.returncode == -signal.SIGKILL
    folder = datasets_folder(tmp_path)
    assert [path.name[:9] for path in folder.iterdir() if path.is_dir()] == [".partial-"]
    assert list_datasets(tmp_path) == ()
    dataset = built(tmp_path)
    assert [path for path in folder.iterdir() if path.is_dir()] == [dataset.folder]
    verify_dataset(dataset.folder)


def test_one_creation_waits_for_another_and_says_so_when_it_takes_too_long(tmp_path: Path) -> None:
    def inner(folder: Path) -> None:
        create_once(tmp_path, "b", lambda _: None, timeout_s=0.01)

    with pytest.raises(DeadlineError):
        create_once(tmp_path, "a", inner)
    assert not (tmp_path / "a").exists()


def test_a_foreign_folder_in_the_way_is_not_touched(tmp_path: Path, tokenizer: Tokenizer) -> None:
    dataset = built(tmp_path)
    (dataset.folder / "manifest.json").unlink()
    with pytest.raises(StoreError, match="no manifest"):
        built(tmp_path)
    assert _first_shard(dataset, ".tok").exists()
