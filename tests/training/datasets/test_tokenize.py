"""Tokenized datasets: complete, the same bytes however they are made, and safely restartable."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

from tests.training.datasets.conftest import Tokenize, dataset, opened, text_of
from training.datasets.manifest import DatasetError, PackedManifest
from training.datasets.text import parts
from training.datasets.text.encoders import PROBES, FastEncoder, Ids
from training.datasets.text.tokenize import ProgressLine
from training.datasets.text.vocabulary import Vocabulary
from training.storage import LocalObjects


def contents(folder: Path) -> dict[str, bytes]:
    """Read every object of a dataset, ignoring partial files of killed processes."""
    objects = LocalObjects(folder)
    return {info.key: objects.get(info.key) for info in objects.list()}


def complete(found: PackedManifest | None) -> PackedManifest:
    assert found is not None
    return found


def test_every_token_of_every_document_is_present_in_order(
    tmp_path: Path, run_tokenize: Tokenize, small_tokenizer: Path
) -> None:
    plain = Tokenizer.from_file(str(small_tokenizer))
    expected = [token for number in range(120) for token in [*plain.encode(text_of(number)).ids, 0]]

    manifest = complete(run_tokenize())

    assert manifest.num_tokens == len(expected)
    assert (manifest.documents, manifest.dtype, manifest.eos_id) == (120, "uint16", 0)
    assert manifest.source.files == 6
    # Shards of the requested size, except for the last of a part.
    assert max(shard.tokens for shard in manifest.shards) <= 1024
    assert len(manifest.shards) > 3
    packed = opened(tmp_path)
    assert packed.sequence(0, len(expected) - 1).tolist() == expected
    assert packed.num_sequences(64) == (len(expected) - 1) // 64


def test_any_number_of_jobs_gives_the_same_bytes(tmp_path: Path, run_tokenize: Tokenize) -> None:
    complete(run_tokenize(dataset="one"))
    shares = [run_tokenize(dataset="array", array_index=i, array_size=3) for i in (2, 0, 1)]

    expected = contents(dataset(tmp_path, "one"))
    assert contents(dataset(tmp_path, "array")) == expected
    # The last one completes it.
    assert [share is not None for share in shares] == [False, False, True]


class Failing(FastEncoder):
    """An accelerator that fails some time after its checks."""

    left = len(PROBES) + 40

    def encode(self, texts: Sequence[str]) -> Ids:
        self.left -= len(texts)
        if self.left < 0:
            raise Panic("index out of bounds")
        return super().encode(texts)


class Panic(BaseException):
    """pyo3's exception for a Rust panic."""


def test_an_accelerator_that_fails_midway_leaves_no_trace(
    tmp_path: Path,
    run_tokenize: Tokenize,
    llama: Vocabulary,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "tokenizer.json").write_text(llama.json)
    order = {"tokenizer": str(tmp_path / "tokenizer.json")}
    complete(run_tokenize(**order, dataset="plain"))
    monkeypatch.setattr("training.datasets.text.encoders.FastEncoder", Failing)

    complete(run_tokenize(**order, dataset="fast", accelerate=True))

    assert contents(dataset(tmp_path, "fast")) == contents(dataset(tmp_path, "plain"))
    assert "with tokenizers with a word cache" in capsys.readouterr().out


def test_documents_without_text_are_counted_and_left_out(
    corpus: Path, run_tokenize: Tokenize
) -> None:
    with (corpus / "0.jsonl").open("a") as file:
        file.write('{"text": ""}\n' * 3)

    manifest = complete(run_tokenize())

    assert (manifest.documents, manifest.empty_documents) == (120, 3)


def test_an_interrupted_job_resumes_from_its_finished_work(
    tmp_path: Path, run_tokenize: Tokenize, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(line: ProgressLine, parts: int, *progress: int) -> None:
        if parts == 2:
            raise KeyboardInterrupt

    complete(run_tokenize(dataset="whole"))
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(ProgressLine, "show", stop)
        run_tokenize(dataset="stopped")
    stopped = dataset(tmp_path, "stopped")
    finished = sorted(stopped.glob("parts/*.json"))
    inodes = [path.stat().st_ino for path in finished]
    with pytest.raises(DatasetError, match="not a complete dataset"):
        opened(tmp_path, "stopped")

    complete(run_tokenize(dataset="stopped"))

    assert 2 == len(finished) < len(list(stopped.glob("parts/*.json")))
    assert [path.stat().st_ino for path in finished] == inodes
    assert contents(stopped) == contents(dataset(tmp_path, "whole"))


def test_a_killed_worker_process_is_reported_as_out_of_memory(
    tmp_path: Path, run_tokenize: Tokenize, monkeypatch: pytest.MonkeyPatch
) -> None:
    victims: list[int] = []

    def kill_a_child(*progress: int) -> None:
        children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
        for pid in children:
            if not victims and b"spawn_main" in Path(f"/proc/{pid}/cmdline").read_bytes():
                victims.append(int(pid))
                os.kill(int(pid), signal.SIGKILL)

    monkeypatch.setattr(ProgressLine, "show", lambda self, *progress: kill_a_child())
    big = tmp_path / "big.jsonl"
    big.write_text("".join(json.dumps({"text": text_of(n)}) + "\n" for n in range(30_000)))
    with pytest.raises(RuntimeError, match="was killed, most likely because it ran out of memory"):
        run_tokenize(input=str(big), processes=2, shard_tokens=2**15)
    assert victims


def test_a_repaired_input_is_picked_up_without_deleting_anything(
    tmp_path: Path, corpus: Path, run_tokenize: Tokenize
) -> None:
    good = (corpus / "5.jsonl").read_text()
    (corpus / "5.jsonl").write_text(good + "no json\n")
    with pytest.raises(DatasetError, match=r"5.jsonl, line 21: not JSON"):
        run_tokenize()
    (corpus / "5.jsonl").write_text(good)

    complete(run_tokenize())
    complete(run_tokenize(dataset="fresh"))

    assert contents(dataset(tmp_path)) == contents(dataset(tmp_path, "fresh"))


def test_a_bad_line_found_by_a_worker_process_fails_the_job(
    corpus: Path, run_tokenize: Tokenize
) -> None:
    (corpus / "3.jsonl").write_text('{"text": "fine"}\n{"title": "no text"}\n')

    with pytest.raises(DatasetError, match=r"3.jsonl, line 2: no field 'text'; fields: 'title'"):
        run_tokenize(processes=2)


def test_a_dataset_of_other_input_is_not_overwritten(
    tmp_path: Path, corpus: Path, run_tokenize: Tokenize, small_tokenizer: Path
) -> None:
    run_tokenize()
    before = contents(dataset(tmp_path))
    document = json.loads(small_tokenizer.read_text())
    document["model"]["vocab"]["new"] = 320
    (tmp_path / "tokenizer.json").write_text(json.dumps(document))
    with pytest.raises(DatasetError, match=r"made with another tokenizer \(tokenizer.json, sha256"):
        run_tokenize(tokenizer=str(tmp_path / "tokenizer.json"))
    with pytest.raises(DatasetError, match=r"made with another text-field .text.; use another"):
        run_tokenize(text_field="body")
    (corpus / "1.jsonl").write_text((corpus / "1.jsonl").read_text())
    with pytest.raises(DatasetError, match=r"made with another content .other files.; "):
        run_tokenize()
    shutil.copy(corpus / "1.jsonl", corpus / "7.jsonl")
    with pytest.raises(DatasetError, match=r"made with another input .*, 6 files, "):
        run_tokenize()

    assert contents(dataset(tmp_path)) == before


def test_a_dataset_of_images_is_not_overwritten(
    tmp_path: Path, corpus: Path, run_tokenize: Tokenize
) -> None:
    folder = dataset(tmp_path)
    folder.mkdir(parents=True)
    (folder / "manifest.json").write_text('{"schema": 1, "kind": "images"}')

    with pytest.raises(DatasetError, match="holds a dataset of kind images, and this job would"):
        run_tokenize()
    assert [path.name for path in folder.iterdir()] == ["manifest.json"]


def test_a_job_does_not_complete_a_dataset_restarted_by_another(
    tmp_path: Path, run_tokenize: Tokenize, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_tokenize(array_index=0, array_size=2)
    plan = dataset(tmp_path) / "plan.json"
    document = json.loads(plan.read_text())

    def make_parts(*args: Any, **kwargs: Any) -> Any:
        plan.write_text(json.dumps({**document, "text-field": "body"}))
        return parts.make_parts(*args, **kwargs)

    # Another job, started while this one works.
    monkeypatch.setattr("training.datasets.text.tokenize.make_parts", make_parts)
    with pytest.raises(DatasetError, match="restarted by another job, with another"):
        run_tokenize(array_index=1, array_size=2)
    assert not (dataset(tmp_path) / "manifest.json").exists()


def test_input_without_words_is_refused_and_leaves_no_files(
    tmp_path: Path, corpus: Path, run_tokenize: Tokenize
) -> None:
    for path in corpus.iterdir():
        path.write_text('{"text": ""}\n')

    with pytest.raises(DatasetError, match="no documents with text in 6 files; check --input"):
        run_tokenize()

    assert contents(dataset(tmp_path)) == {}


def test_worker_processes_write_the_same_bytes_and_log_like_the_others(
    run_tokenize: Tokenize, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    # A kind unsupported by fastokens, in which every document's number has its own ids.
    words = ["[UNK]", "</s>", *"0123456789", *(f"##{digit}" for digit in "0123456789")]
    vocab = {word: number for number, word in enumerate(words)}
    pieces = Tokenizer(models.WordPiece(vocab, unk_token="[UNK]"))
    pieces.pre_tokenizer = pre_tokenizers.Whitespace()
    pieces.add_special_tokens(["</s>"])
    pieces.save(str(tmp_path / "tokenizer.json"))
    order = {"tokenizer": str(tmp_path / "tokenizer.json"), "shard_tokens": 2**10}

    complete(run_tokenize(**order, dataset="two", processes=2, accelerate=True))
    said = capfd.readouterr().out.splitlines()
    complete(run_tokenize(**order, dataset="one"))

    assert contents(dataset(tmp_path, "two")) == contents(dataset(tmp_path, "one"))
    assert 1 <= sum(line.startswith("fastokens is not used; ") for line in said) <= 2
    assert any(line.endswith(" million per second") for line in said)
    assert all(line.startswith(("fastokens is not used; ", "tokenize: ")) for line in said)
