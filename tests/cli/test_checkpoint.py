from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TextIO

import pytest

from tests.cli.calling import Cli


def test_ls_lists_all_or_a_sessions_checkpoints_by_step(on_finished: Cli) -> None:
    found = on_finished("checkpoint", "ls", "--json").json
    assert [entry["step"] for entry in found] == [1, 2, 3]
    assert all(entry["problem"] == "" and Path(entry["path"]).is_dir() for entry in found)
    assert on_finished("checkpoint", "ls", "--session", found[0]["session"], "--json").json == found
    assert on_finished("checkpoint", "ls", "--session", "latest", "--json").json == found
    assert on_finished("checkpoint", "ls", "--session", "s-unknown").code == 2


def test_an_id_latest_and_a_path_mean_the_same_checkpoint(on_finished: Cli) -> None:
    newest = on_finished("checkpoint", "ls", "--json").json[-1]
    answers = [
        on_finished("checkpoint", "verify", n, "--json").json
        for n in ("latest", newest["id"], newest["path"])
    ]
    assert answers[0] == answers[1] == answers[2]
    assert (answers[0]["ok"], answers[0]["step"]) == (True, 3)


def test_verify_of_a_damaged_checkpoint_exits_1_and_latest_passes_it_over(on_copy: Callable[[], Cli]) -> None:
    cli = on_copy()
    newest = cli("checkpoint", "ls", "--json").json[-1]
    file = next(Path(newest["path"]).glob("*.safetensors"))
    raw = bytearray(file.read_bytes())
    raw[-1] ^= 1
    file.write_bytes(raw)
    result = cli("checkpoint", "verify", newest["id"], "--json")
    assert result.code == 1
    assert json.loads(result.out)["ok"] is False
    assert file.name in result.err
    latest = cli("checkpoint", "verify", "latest", "--json")
    assert latest.json["step"] == 2
    assert f"passed over {newest['id']}" in latest.err
    assert cli("generate", newest["id"]).code == 1


def test_rm_removes_one_by_its_id_only(on_copy: Callable[[], Cli]) -> None:
    cli = on_copy()
    first, second, third = cli("checkpoint", "ls", "--json").json
    assert cli("checkpoint", "rm", first["path"], "--yes").code == 2
    assert cli("checkpoint", "rm", "latest", "--yes").code == 2
    assert cli("checkpoint", "rm", second["id"], "--yes").code == 0
    assert cli("checkpoint", "ls", "--json").json == [first, third]


def test_rm_without_yes_asks_and_removes_nothing_where_nobody_can_answer(on_copy: Callable[[], Cli]) -> None:
    cli = on_copy()
    first = cli("checkpoint", "ls", "--json").json[0]
    result = cli("checkpoint", "rm", first["id"])
    assert (result.code, result.out) == (5, "")
    assert "--yes" in result.err
    assert Path(first["path"]).is_dir()


def _closed() -> TextIO:
    stream = io.StringIO()
    stream.close()
    return stream


@pytest.mark.parametrize("stdin", [None, _closed()], ids=["never open", "closed"])
def test_rm_without_stdin_removes_nothing(
    on_copy: Callable[[], Cli], monkeypatch: pytest.MonkeyPatch, stdin: TextIO | None
) -> None:
    cli = on_copy()
    first = cli("checkpoint", "ls", "--json").json[0]
    monkeypatch.setattr(sys, "stdin", stdin)
    result = cli("checkpoint", "rm", first["id"])
    assert (result.code, result.out) == (5, "")
    assert "--yes" in result.err
    assert Path(first["path"]).is_dir()


def test_generate_writes_the_same_text_for_the_same_seed(on_finished: Cli) -> None:
    def written(seed: int) -> str:
        arguments = ("--prompt", "the node", "--tokens", "8", "--seed", str(seed), "--json")
        return str(on_finished("generate", "latest", *arguments).json["text"])

    texts = [written(seed) for seed in (1, 2, 3)]
    assert all(text.startswith("the node") for text in texts)
    assert len(set(texts)) > 1
    assert written(2) == texts[1]


@pytest.mark.parametrize("temperature", ["0", "1e-300", "1000"])
def test_generate_takes_extreme_temperatures(on_finished: Cli, temperature: str) -> None:
    assert on_finished("generate", "latest", "--tokens", "3", "--temperature", temperature).code == 0


def test_generate_takes_a_prompt_longer_than_the_context(on_finished: Cli) -> None:
    prompt = "the node sends a tensor " * 20
    assert (
        on_finished("generate", "latest", "--prompt", prompt, "--tokens", "3", "--json")
        .json["text"]
        .startswith(prompt)
    )


@pytest.mark.parametrize(
    "arguments",
    [
        ("--tokens", "-1"),
        ("--tokens", "0"),
        ("--tokens", "many"),
        ("--temperature", "-0.1"),
        ("--temperature", "nan"),
        ("--temperature", "1e308"),
        ("--temperature", "inf"),
        ("--seed", "-1"),
        ("--prompt", ""),
        ("--prompt", "\udcff"),
    ],
)
def test_generate_refuses_what_makes_no_sense(on_finished: Cli, arguments: tuple[str, ...]) -> None:
    result = on_finished("generate", "latest", *arguments)
    assert (result.code, result.out) == (2, "")
    assert "Traceback" not in result.err
