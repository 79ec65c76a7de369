"""Sessions from end to end in this process, on no workers: stop, resume, damage, checks beforehand."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest

from dcnr_app import sessions
from dcnr_app.app import App
from dcnr_app.cluster.decision import Decision
from dcnr_app.cluster.messages import GradientsReady
from dcnr_app.cluster.plan import Plan
from dcnr_app.data.dataset import SplitSettings
from dcnr_app.data.documents import Corpus
from dcnr_app.data.prepare import prepare
from dcnr_app.data.tokenizer_training import TokenizerSettings
from dcnr_app.errors import DcnrError, DivergedError, InvalidError, StoreError, UserError
from dcnr_app.ids import PNodeId
from dcnr_app.nodes.graph.load import LoadedNetwork, load_network
from dcnr_app.nodes.graph.network import Network
from dcnr_app.nodes.graph.training import TrainingSettings
from dcnr_app.settings import Home
from dcnr_app.store.checkpoints import checkpoint_folder
from dcnr_app.store.files import Files
from dcnr_app.store.sessions import SessionRecord, get_session, update_session
from tests.e2e.place import network_text, write_text

N_STEPS = 26


class Watch:
    """A Watcher that stops a run after a step, and counts what it is told."""

    def __init__(self, stop_after: int = 0) -> None:
        self.steps: list[tuple[int, bool]] = []
        self.lines: list[str] = []
        self._stop_after = stop_after
        self._stop: Callable[[], None] = lambda: None

    def planned(self, network: Network, plan: Plan) -> None: ...
    def ready(self, pnode: PNodeId, pid: int) -> None: ...
    def validated(self, step: int, loss: float) -> None: ...
    def recovering(self, reason: str) -> None:
        self.lines.append(reason)

    def replanned(self, network: Network, plan: Plan, step: int) -> None: ...
    def no_sample(self, why: str) -> None:
        self.lines.append(why)

    def sampling(self) -> None:
        self.lines.append("sampling")

    def stepped(
        self, decision: Decision, reports: Mapping[PNodeId, GradientsReady], *, is_replay: bool
    ) -> None:
        self.steps.append((decision.step, is_replay))
        if decision.step == self._stop_after:
            self._stop()

    def stoppable(self, stop: Callable[[], None]) -> None:
        self._stop = stop
        if self._stop_after < 0:
            stop()


class Studio:
    """A home with a dataset, and sessions on it."""

    def __init__(self, home: Home) -> None:
        self.app = App(home)
        self.shop = self.app.workshop(0)
        self.loaded = load_network(network_text(), file="tiny.yaml", registry=self.app.registry)
        self.settings = msgspec.structs.replace(self.loaded.training, steps=N_STEPS)
        dataset, tokenizer = self.app.dataset("latest")
        self.text = sessions.Text(dataset, tokenizer)
        self.store = self.app.writer()

    def create(self, settings: TrainingSettings | None = None) -> SessionRecord:
        return sessions.create(self.shop, self.store, self.loaded, settings or self.settings, self.text)

    def go_on(self, record: SessionRecord, watch: Watch | None = None) -> dict[str, Any]:
        found = sessions.find_start(self.shop, self.store, record)
        return sessions.run(self.shop, self.store, record, self.text, found, watch or Watch(), "ab")

    def status(self, record: SessionRecord) -> str:
        return get_session(self.store, record.session).status

    def checkpoint(self, record: SessionRecord, step: int) -> Path:
        return checkpoint_folder(self.app.home, record.session) / f"step-{step:08d}"


@pytest.fixture(scope="module")
def dataset_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home with a tokenizer and a dataset only."""
    root = tmp_path_factory.mktemp("dataset")
    home = Home(root / "home")
    home.ensure()
    text = write_text(root / "text")
    prepare(home.root, Corpus([str(text)]), TokenizerSettings(vocab_size=300), SplitSettings())
    return home.root


@pytest.fixture
def studio(dataset_home: Path, tmp_path: Path) -> Iterator[Studio]:
    """A copy of it."""
    shutil.copytree(dataset_home, tmp_path / "home")
    made = Studio(Home(tmp_path / "home"))
    yield made
    made.store.close()


@pytest.fixture(scope="module")
def undisturbed(dataset_home: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The result of a session that nobody stops."""
    root = tmp_path_factory.mktemp("undisturbed") / "home"
    shutil.copytree(dataset_home, root)
    made = Studio(Home(root))
    try:
        return made.go_on(made.create())
    finally:
        made.store.close()


def without_clocks(result: dict[str, Any]) -> dict[str, Any]:
    """What two equal runs have in common."""
    names = ("losses", "validation", "validation_bits_per_byte", "baselines", "sample", "network", "dataset")
    return {name: result[name] for name in names}


def test_a_stopped_and_resumed_session_equals_the_undisturbed_one(
    studio: Studio, undisturbed: dict[str, Any]
) -> None:
    record = studio.create()
    stopped = studio.go_on(record, Watch(stop_after=13))
    assert (stopped["status"], studio.status(record)) == ("stopped", "stopped")
    assert stopped["sample"] == ""
    n_first = len(stopped["losses"])
    assert 13 <= n_first <= 15
    assert studio.checkpoint(record, n_first).is_dir()
    watch = Watch()
    result = studio.go_on(record, watch)
    assert (result["resumed_from_step"], result["steps_recomputed"]) == (n_first, 0)
    assert watch.steps == [(step, False) for step in range(n_first + 1, N_STEPS + 1)]
    assert without_clocks(result) == without_clocks(undisturbed)
    assert studio.status(record) == "finished"


def test_a_finished_session_gives_its_result_again_and_trains_nothing(
    studio: Studio, undisturbed: dict[str, Any]
) -> None:
    record = studio.create()
    first = studio.go_on(record)
    ledger, commits = studio.store.ledger(record.session), studio.store.commits(record.session)
    watch = Watch()
    again = studio.go_on(record, watch)
    assert watch.steps == []
    assert (again["resumed_from_step"], again["steps_recomputed"]) == (N_STEPS, 0)
    assert without_clocks(again) == without_clocks(first) == without_clocks(undisturbed)
    assert (again["status"], studio.status(record)) == ("finished", "finished")
    assert studio.store.ledger(record.session) == ledger
    assert studio.store.commits(record.session) == commits


def test_a_stop_before_training_begins_is_a_stop_at_step_0(studio: Studio) -> None:
    record = studio.create()
    result = studio.go_on(record, Watch(stop_after=-1))
    assert (result["status"], result["losses"], result["checkpoint"]) == ("stopped", [], "")
    assert (result["validation"], result["validation_bits_per_byte"]) == ([], None)
    assert studio.status(record) == "stopped"
    assert "resumed_from_step" not in result
    again = studio.go_on(record)
    assert (again["resumed_from_step"], again["steps_recomputed"], again["passed_over"]) == (0, 0, [])


def test_the_stop_file_stops_and_is_gone_afterwards(studio: Studio) -> None:
    record = studio.create(msgspec.structs.replace(studio.settings, steps=100_000))
    stop_file = studio.app.home.sessions / record.session / sessions.STOP_FILE

    class Touching(Watch):
        def ready(self, pnode: PNodeId, pid: int) -> None:
            stop_file.parent.mkdir(exist_ok=True)
            stop_file.touch()

    result = studio.go_on(record, Touching())
    assert result["status"] == "stopped"
    assert len(result["losses"]) < 1_000
    assert not stop_file.exists()


def test_a_stop_file_of_an_earlier_run_stops_nothing(studio: Studio) -> None:
    record = studio.create()
    folder = studio.app.home.sessions / record.session
    folder.mkdir(exist_ok=True)
    (folder / sessions.STOP_FILE).touch()
    assert studio.go_on(record)["status"] == "finished"


def test_a_damaged_checkpoint_is_passed_over_with_the_reason_and_its_steps_are_replayed(
    studio: Studio, undisturbed: dict[str, Any]
) -> None:
    record = studio.create()
    stopped = studio.go_on(record, Watch(stop_after=22))
    n_first = len(stopped["losses"])
    tensors = next(studio.checkpoint(record, n_first).glob("tensors-*"))
    raw = bytearray(tensors.read_bytes())
    raw[-1] ^= 1
    tensors.write_bytes(raw)
    found = sessions.find_start(studio.shop, studio.store, record)
    assert [item.id for item in found.passed_over] == [f"{record.session}.{n_first}"]
    assert "sha256" in found.passed_over[0].why
    watch = Watch()
    result = sessions.run(studio.shop, studio.store, record, studio.text, found, watch, "ab")
    assert (result["resumed_from_step"], result["steps_recomputed"]) == (20, n_first - 20)
    assert result["passed_over"] == [
        {"checkpoint": f"{record.session}.{n_first}", "why": found.passed_over[0].why}
    ]
    assert watch.steps == [(step, step <= n_first) for step in range(21, N_STEPS + 1)]
    assert without_clocks(result) == without_clocks(undisturbed)


def test_a_session_whose_checkpoints_are_all_damaged_says_so_and_starts_nothing(studio: Studio) -> None:
    record = studio.create()
    studio.go_on(record, Watch(stop_after=12))
    for manifest in checkpoint_folder(studio.app.home, record.session).glob("*/manifest.json"):
        manifest.write_bytes(b"{")
    with pytest.raises(StoreError, match=r"none of \d checkpoints verifies"):
        studio.go_on(record)
    assert studio.status(record) == "stopped"


def change_class(record: SessionRecord) -> SessionRecord:
    return msgspec.structs.replace(record, device_class="another-class")


def alter_last_commit(studio: Studio, record: SessionRecord) -> int:
    """Change the newest commit row as another device would have rounded it; returns its step."""
    step, body = studio.store.commits(record.session)[-1]
    decision = msgspec.json.decode(body, type=Decision)
    other = msgspec.structs.replace(decision, loss=decision.loss * (1 + 1e-12))
    raw = msgspec.json.encode(other, order="sorted")
    with studio.store._control.transaction() as connection:
        connection.execute("UPDATE commits SET body = ? WHERE step = ?", (raw, step))
    return step


@pytest.mark.parametrize("is_same_class", [True, False])
def test_other_bits_in_a_replay_stop_one_device_class_and_not_another(
    studio: Studio, *, is_same_class: bool
) -> None:
    record = studio.create()
    studio.go_on(record, Watch(stop_after=22))
    step = alter_last_commit(studio, record)
    shutil.rmtree(studio.checkpoint(record, step))
    if is_same_class:
        with pytest.raises(DivergedError, match=f"replayed step {step} gave loss"):
            studio.go_on(record)
        assert studio.status(record) == "failed"
        return
    update_session(studio.store, record.session, change_class)
    watch = Watch()
    result = studio.go_on(record, watch)
    assert result["status"] == "finished"
    assert (step, True) in watch.steps
    assert len(result["losses"]) == N_STEPS


@pytest.mark.parametrize("folder", ["datasets", "tokenizers"])
def test_a_missing_dataset_or_tokenizer_is_named(studio: Studio, folder: str) -> None:
    record = studio.create()
    shutil.rmtree(studio.app.home.root / folder)
    with pytest.raises(DcnrError) as caught:
        studio.app.dataset(record.dataset)
    name = record.dataset if folder == "datasets" else studio.text.tokenizer.id
    assert name in str(caught.value)


def test_a_tokenizer_that_vanishes_before_the_run_is_named(studio: Studio) -> None:
    record = studio.create()
    shutil.rmtree(studio.app.home.tokenizers)
    with pytest.raises(StoreError, match="the tokenizer cannot be read"):
        studio.go_on(record)


class SmallDisk(Files):
    """A disk with a megabyte left."""

    def free_bytes(self, path: Path) -> int:
        return 1_000_000


def test_too_little_room_for_the_checkpoints_is_found_before_anything_starts(studio: Studio) -> None:
    shop = msgspec.structs.replace(studio.shop, files=SmallDisk())
    settings = msgspec.structs.replace(studio.settings, keep_last=100)
    with pytest.raises(StoreError, match=r"the disk has 1\.0 MB free, and \d+\.\d MB are needed"):
        sessions.create(shop, studio.store, studio.loaded, settings, studio.text)
    assert list(studio.store.items("sessions")) == []


def test_a_disk_that_fills_up_ends_the_session_with_the_stores_own_words(studio: Studio) -> None:
    record = studio.create()
    studio.shop = msgspec.structs.replace(studio.shop, files=SmallDisk())
    with pytest.raises(StoreError) as caught:
        studio.go_on(record)
    assert "MB free" in str(caught.value)
    assert studio.status(record) == "failed"
    studio.shop = studio.app.workshop(0)
    assert studio.go_on(record)["status"] == "finished"


def other_network(studio: Studio, old: str, new: str) -> LoadedNetwork:
    return load_network(network_text().replace(old, new), file="x.yaml", registry=studio.app.registry)


def test_what_does_not_fit_is_refused_before_a_session_exists(studio: Studio) -> None:
    small = other_network(studio, "vocabulary: 300", "vocabulary: 200")
    with pytest.raises(InvalidError, match="the tokenizer has 300 ids"):
        sessions.create(studio.shop, studio.store, small, studio.settings, studio.text)
    renamed = other_network(studio, "targets", "wanted")
    with pytest.raises(InvalidError, match="takes tokens, wanted"):
        sessions.create(studio.shop, studio.store, renamed, studio.settings, studio.text)
    with pytest.raises(UserError, match="a batch needs 1000000"):
        studio.create(msgspec.structs.replace(studio.settings, batch=1_000_000))
    with pytest.raises(InvalidError):
        sessions.create(studio.app.workshop(50), studio.store, studio.loaded, studio.settings, studio.text)
    assert list(studio.store.items("sessions")) == []


def test_a_network_that_knows_more_ids_than_the_tokenizer_draws_none_of_them(studio: Studio) -> None:
    wide = network_text().replace("vocabulary: 300", "vocabulary: 3000")
    studio.loaded = load_network(wide, file="wide.yaml", registry=studio.app.registry)
    assert studio.loaded.vocabulary == 3000
    # one step of training: nearly every id is as likely as any other
    record = studio.create(msgspec.structs.replace(studio.settings, steps=1))
    result = studio.go_on(record)
    assert (result["status"], studio.status(record)) == ("finished", "finished")
    assert result["sample"].startswith("ab")


def test_a_run_whose_every_step_overflows_is_ended_and_says_why(studio: Studio) -> None:
    optimizer = msgspec.structs.replace(studio.settings.optimizer, learning_rate=1e30)
    record = studio.create(msgspec.structs.replace(studio.settings, steps=60, optimizer=optimizer))
    with pytest.raises(
        DivergedError, match=r"20 steps in a row were skipped: since step .* lower learning rate"
    ):
        studio.go_on(record)
    assert studio.status(record) == "failed"


def test_a_sample_that_cannot_be_written_does_not_fail_the_training(studio: Studio) -> None:
    optimizer = msgspec.structs.replace(studio.settings.optimizer, learning_rate=1e30)
    record = studio.create(msgspec.structs.replace(studio.settings, steps=3, optimizer=optimizer))
    watch = Watch()
    result = studio.go_on(record, watch)
    assert (result["status"], result["sample"]) == ("finished", "")
    assert any("not finite" in line for line in watch.lines)


def test_settings_that_a_later_version_wrote_are_refused_in_words(studio: Studio) -> None:
    record = msgspec.structs.replace(studio.create(), settings={"steps": 3, "from_the_future": 1})
    with pytest.raises(StoreError, match="settings"):
        sessions.settings_of(record)


def test_text_that_changed_on_disk_is_not_trained_on(studio: Studio) -> None:
    record = studio.create()
    shard = next(studio.text.dataset.folder.glob("train-*.tok"))
    raw = shard.read_bytes()
    shard.write_bytes(raw[2000:] + raw[:2000])
    with pytest.raises(StoreError, match=r"changed|sha256"):
        studio.go_on(record)
