from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.calling import Cli, write_text_file


@pytest.fixture
def words(tmp_path: Path) -> str:
    path = tmp_path / "words.txt"
    write_text_file(path, 400)
    return str(path)


def test_a_tokenizer_is_trained_once_and_gives_text_back(cli: Cli, words: str) -> None:
    made = cli("tokenizer", "train", "--data", words, "--vocabulary", "280", "--json").json
    assert made["n_vocab"] == 280
    assert cli("tokenizer", "train", "--data", words, "--vocabulary", "280", "--json").json == made
    assert cli("tokenizer", "ls", "--json").json == [made]
    text = "the node\tsends über 漢字\n"
    ids = cli("tokenizer", "encode", text, "--json").json["ids"]
    assert cli("tokenizer", "encode", text).out.split() == [str(token) for token in ids]
    assert cli("tokenizer", "decode", *map(str, ids), "--json").json["text"] == text
    assert cli("tokenizer", "decode", *map(str, ids)).out == f"{text}\n"


def test_a_vocabulary_that_the_text_cannot_fill_is_told(cli: Cli, words: str) -> None:
    result = cli("tokenizer", "train", "--data", words, "--vocabulary", "5000", "--json")
    assert result.json["n_vocab"] < 5000
    assert "of the 5000 ids" in result.err


@pytest.mark.parametrize("arguments", [("encode", "x"), ("decode", "1")])
def test_using_a_tokenizer_before_there_is_one_exits_2(cli: Cli, arguments: tuple[str, ...]) -> None:
    assert cli("tokenizer", *arguments).code == 2


@pytest.mark.parametrize("arguments", [("99999",), ("-5",), ("x",), ()])
def test_ids_that_are_none_exit_2(on_finished: Cli, arguments: tuple[str, ...]) -> None:
    result = on_finished("tokenizer", "decode", "--", *arguments)
    assert (result.code, result.out) == (2, "")


def test_datasets_share_a_tokenizer_and_come_oldest_first(cli: Cli, words: str) -> None:
    share = ("--validation-percent", "40")
    first = cli("dataset", "create", "--data", words, "--vocabulary", "280", *share, "--json").json
    second = cli(
        "dataset",
        "create",
        "--data",
        words,
        "--tokenizer",
        first["tokenizer_id"][:6],
        "--validation-percent",
        "50",
        "--json",
    ).json
    assert first["id"] != second["id"]
    assert first["tokenizer_id"] == second["tokenizer_id"]
    assert [entry["id"] for entry in cli("dataset", "ls", "--json").json] == [first["id"], second["id"]]
    assert cli("dataset", "show", "--json").json["id"] == second["id"]
    assert cli("dataset", "show", first["id"][:8], "--json").json == first


def test_paths_may_follow_as_a_shell_expands_them(cli: Cli, tmp_path: Path) -> None:
    for i in range(12):
        (tmp_path / f"{i}.txt").write_text(f"document {i} " * 50)
    paths = [str(path) for path in sorted(tmp_path.glob("*.txt"))]
    found = cli("dataset", "create", "--data", *paths, "--validation-percent", "40", "--json").json
    assert found["train"]["n_documents"] + found["validation"]["n_documents"] == 12


def test_text_that_is_not_utf8_stops_or_is_skipped_as_asked(cli: Cli, words: str, tmp_path: Path) -> None:
    bad = tmp_path / "bad.txt"
    bad.write_bytes(b"fine\n\xff\xfe")
    create = ("dataset", "create", "--data", words, "--data", str(bad), "--validation-percent", "40")
    stopped = cli(*create)
    assert (stopped.code, stopped.out) == (2, "")
    assert f"{bad}:2" in stopped.err
    skipped = cli(*create, "--on-error", "skip", "--json")
    assert skipped.json["train"]["n_documents"] > 0
    assert f"skipped {bad}:2" in skipped.err


@pytest.mark.parametrize(
    "arguments",
    [
        ("--data", "{absent}"),
        ("--data", "~nobody-lives-here/x.txt"),
        ("--data", "{words}", "--vocabulary", "5"),
        ("--data", "{words}", "--vocabulary", "300", "--tokenizer", "latest"),
        ("--data", "{words}", "--tokenizer", "latest"),
        ("--data", "{words}", "--validation-percent", "0"),
        ("--data", "{words}", "--validation-percent", "nan"),
        (),
    ],
)
def test_bad_requests_for_a_dataset_exit_2(cli: Cli, words: str, arguments: tuple[str, ...]) -> None:
    result = cli("dataset", "create", *(a.format(words=words, absent=f"{words}.gone") for a in arguments))
    assert (result.code, result.out) == (2, "")
    assert "Traceback" not in result.err


def test_verify_finds_a_changed_token_and_ls_a_broken_manifest(cli: Cli, words: str) -> None:
    made = cli("dataset", "create", "--data", words, "--validation-percent", "40", "--json").json
    assert cli("dataset", "verify", "--json").json["ok"] is True
    shard = next(Path(made["path"]).glob("train*.tok"))
    raw = bytearray(shard.read_bytes())
    raw[10] ^= 1
    shard.write_bytes(raw)
    result = cli("dataset", "verify", "--json")
    assert result.code == 1
    assert '"ok":false' in result.out
    (Path(made["path"]) / "manifest.json").write_text("{")
    assert cli("dataset", "ls", "--json").json[0]["problem"]
    assert cli("dataset", "show").code == 1
