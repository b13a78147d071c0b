"""Checkpoints of one rank: saved asynchronously, complete with their marker, verified."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

from tests.training.checkpoint.conftest import BUCKET
from tests.training.checkpoint.documents import assert_valid
from tests.training.checkpoint.faulty import Fault, FaultyProxy, Request, first_time
from tests.training.s3_server import REGION
from training.checkpoint import CheckpointInfo, Checkpoints, CheckpointUnusable
from training.core.ranks import Ranks
from training.storage import Objects, RetryPolicy, StorageRefused, open_objects
from trainium_catalogue.contract import CHECKPOINT_MARKER

META = {"model": {"hidden_size": 64}, "tokenizer_sha256": "a" * 64, "world_size": 1}
FILE = "__0_0.distcp"

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")


def state(value: float, *, rows: int = 300) -> dict[str, Any]:
    """Return about 1 MB that differs by value."""
    return {
        "model": {"w": torch.full((rows, 1000), value), "b": torch.full((7,), value)},
        "optimizer": {"step": torch.tensor(value)},
    }


class Recorder:
    """Records everything that checkpoints report."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.saved: list[int] = []
        self.failed: list[tuple[int, str]] = []

    def open(self, objects: Objects, *, keep_last: int = 3, keep_every: int = 0) -> Checkpoints:
        return Checkpoints(
            objects,
            Ranks.open(),
            keep_last=keep_last,
            keep_every=keep_every,
            say=self.lines.append,
            on_saved=lambda info: self.saved.append(info.step),
            on_failed=lambda step, reason: self.failed.append((step, reason)),
        )


@pytest.fixture
def recorder() -> Recorder:
    return Recorder()


def save(checkpoints: Checkpoints, *steps: int) -> CheckpointInfo:
    for step in steps:
        checkpoints.save(state(step), step, META, asynchronous=False)
    info = checkpoints.latest()
    assert info is not None
    return info


def flip(objects: Objects, key: str, *, at: int = 1000) -> None:
    data = bytearray(objects.get(key))
    data[at] ^= 1
    objects.put(key, bytes(data))


def folders(objects: Objects) -> set[str]:
    return {info.key.split("/")[0] for info in objects.list()}


def assert_holds(loaded: dict[str, Any], value: float) -> None:
    assert bool((loaded["model"]["w"] == value).all())
    assert float(loaded["optimizer"]["step"]) == value


def assert_latest_holds(checkpoints: Checkpoints, value: float, **at_most: int) -> None:
    """Load the newest checkpoint, which must be intact and have this value."""
    info, loaded = checkpoints.latest(**at_most), state(0)
    assert info is not None
    assert checkpoints.load(loaded, info) == info
    assert_holds(loaded, value)


def test_training_may_change_the_state_as_soon_as_an_asynchronous_save_returns(
    folder: Objects, recorder: Recorder
) -> None:
    checkpoints = recorder.open(folder)
    training = state(10)

    checkpoints.save(training, 10, META, asynchronous=True)
    training["model"]["w"].fill_(-1)
    training["optimizer"]["step"].fill_(-1)
    checkpoints.wait()

    assert (recorder.saved, recorder.failed) == ([10], [])
    assert_latest_holds(checkpoints, 10)


def test_a_save_that_reuses_memory_is_complete(folder: Objects, recorder: Recorder) -> None:
    checkpoints = recorder.open(folder)
    for step in (10, 20, 30):
        checkpoints.save(state(step), step, META, asynchronous=True)
    checkpoints.wait()

    for step in (10, 20, 30):
        assert_latest_holds(checkpoints, step, at_most=step)


def test_a_save_waits_for_the_previous_one(
    proxy: FaultyProxy, faulty_bucket: Objects, recorder: Recorder
) -> None:
    checkpoints = recorder.open(faulty_bucket)
    proxy.reset(lambda request: Fault.SLOW)

    checkpoints.save(state(10), 10, META, asynchronous=True)
    assert recorder.saved == []
    checkpoints.save(state(20), 20, META, asynchronous=True)
    assert recorder.saved == [10]
    checkpoints.wait()

    assert recorder.saved == [10, 20]


def test_the_marker_is_written_after_every_other_file(
    proxy: FaultyProxy, faulty_bucket: Objects, recorder: Recorder
) -> None:
    order: list[str] = []

    def record(request: Request) -> None:
        if request.method == "PUT":
            order.append(request.path.rsplit("/")[-1])

    proxy.reset(record)
    save(recorder.open(faulty_bucket), 10)

    assert order[0] == order[-1] == CHECKPOINT_MARKER
    # And an empty one before them, so that a replaced job cannot complete them.
    assert sorted(order[1:-1]) == [".metadata", FILE]


def test_an_intermittent_storage_failure_loses_nothing(
    proxy: FaultyProxy, faulty_bucket: Objects, recorder: Recorder
) -> None:
    proxy.reset(
        first_time(Fault.SLOW_DOWN, Fault.RESET, Fault.LOST_ANSWER, Fault.CUT_BODY, Fault.SLOW)
    )
    checkpoints = recorder.open(faulty_bucket)
    save(checkpoints, 10)

    assert_latest_holds(checkpoints, 10)
    assert (recorder.saved, recorder.failed) == ([10], [])
    assert {fault for fault, _ in proxy.injected} >= {Fault.SLOW_DOWN, Fault.RESET, Fault.CUT_BODY}


def impatient(proxy: FaultyProxy, name: str) -> Objects:
    return open_objects(
        f"s3://{BUCKET}/{name}",
        region=REGION,
        endpoint_url=proxy.url,
        retry_policy=RetryPolicy(total_s=0.2, first_delay_s=0.02, longest_delay_s=0.05),
    )


def test_a_failed_save_is_reported_and_retried_by_the_next(
    proxy: FaultyProxy, recorder: Recorder
) -> None:
    checkpoints = recorder.open(impatient(proxy, "failed-save"))
    proxy.reset(lambda request: Fault.SLOW_DOWN if FILE in request.path else None)

    checkpoints.save(state(10), 10, META, asynchronous=True)
    checkpoints.wait()
    proxy.reset(lambda request: None)
    info = save(checkpoints, 20)

    ((step, reason),) = recorder.failed
    assert step == 10 and "SlowDown" in reason and "\n" not in reason
    assert recorder.lines[0].startswith(
        "checkpoint step-00000010 could not be saved; training continues: rank 0: cannot write "
        "s3://"
    )
    assert (info.step, recorder.saved) == (20, [20])


def test_storage_errors_during_a_load_are_not_blamed_on_checkpoint_or_model(
    proxy: FaultyProxy, recorder: Recorder
) -> None:
    checkpoints = recorder.open(impatient(proxy, "failed-load"))
    info = save(checkpoints, 10)
    proxy.reset(lambda request: Fault.ACCESS_DENIED if FILE in request.path else None)

    with pytest.raises(StorageRefused, match="AccessDenied; allow the job's role to do it"):
        checkpoints.load(state(0), info)
    assert recorder.lines == []


MARKER = f"step-00000020/{CHECKPOINT_MARKER}"
WEIGHTS = f"step-00000020/{FILE}"


def without_metadata(folder: Objects) -> None:
    document = json.loads(folder.get(MARKER))
    del document["files"][".metadata"]
    folder.put(MARKER, json.dumps(document).encode())


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (lambda to: to.delete([MARKER]), f"it is incomplete: there is no {CHECKPOINT_MARKER}"),
        (lambda to: to.put(MARKER, b'{"schema": 1, "format": "dcp"}'), ".* cannot be read: "),
        (lambda to: to.put(MARKER, b'{"schema": 2, "format": "dcp"}'), ".* has schema 2 and "),
        (
            lambda to: to.put(MARKER, to.get(MARKER.replace("2", "1"))),
            "complete.json belongs to step-00000010",
        ),
        (without_metadata, ".metadata is not among its files"),
        (lambda to: to.delete([WEIGHTS]), f"{FILE} is missing"),
        (
            lambda to: to.put(WEIGHTS, to.get(WEIGHTS)[:-1]),
            rf"{FILE} has \d+ bytes, but \d+ were written",
        ),
    ],
)
def test_an_incomplete_checkpoint_is_named_and_the_previous_one_is_used(
    folder: Objects, recorder: Recorder, damage: Callable[[Objects], object], reason: str
) -> None:
    save(recorder.open(folder), 10, 20)
    damage(folder)

    info = recorder.open(folder).latest()

    assert info is not None and info.step == 10
    (line,) = recorder.lines
    assert re.match(f"skipping checkpoint step-00000020: {reason}", line)


def test_a_run_with_only_damaged_checkpoints_does_not_start_over(
    folder: Objects, recorder: Recorder
) -> None:
    checkpoints = recorder.open(folder)
    save(checkpoints, 10, 20)
    folder.put(f"step-00000020/{CHECKPOINT_MARKER}", b"{")
    folder.delete([f"step-00000010/{FILE}"])

    with pytest.raises(
        CheckpointUnusable,
        match=r"damaged: step-00000020 \(complete.json cannot be read: .*\), step-00000010 "
        rf"\({FILE} is missing\); restore the files",
    ):
        checkpoints.latest()


def test_a_run_with_only_an_incomplete_checkpoint_starts_from_the_beginning(
    folder: Objects, recorder: Recorder
) -> None:
    save(recorder.open(folder), 10)
    folder.delete([f"step-00000010/{CHECKPOINT_MARKER}"])

    assert recorder.open(folder).latest() is None


@pytest.mark.parametrize("name", [FILE, ".metadata"])
def test_a_flipped_bit_is_named_and_the_previous_checkpoint_is_loaded(
    folder: Objects, recorder: Recorder, name: str
) -> None:
    checkpoints = recorder.open(folder)
    info = save(checkpoints, 10, 20)
    flip(folder, f"step-00000020/{name}", at=100)
    loaded = state(0)

    used = checkpoints.load(loaded, info)

    assert used.step == 10
    assert_holds(loaded, 10)
    (line,) = recorder.lines
    assert line.startswith(f"skipping checkpoint step-00000020: {name} has changed")


def test_a_damaged_checkpoint_is_skipped_and_its_step_saved_again(
    folder: Objects, recorder: Recorder
) -> None:
    checkpoints = recorder.open(folder)
    info = save(checkpoints, 10, 20)
    flip(folder, f"step-00000020/{FILE}")
    checkpoints.load(state(0), info)

    before = checkpoints.latest()
    after = save(checkpoints, 20)

    assert before is not None and (before.step, after.step) == (10, 20)
    assert_latest_holds(checkpoints, 20)


def test_training_does_not_start_over_silently_when_every_checkpoint_is_damaged(
    folder: Objects, recorder: Recorder
) -> None:
    checkpoints = recorder.open(folder)
    info = save(checkpoints, 10, 20)
    for name in ("step-00000010", "step-00000020"):
        flip(folder, f"{name}/{FILE}")

    with pytest.raises(
        CheckpointUnusable,
        match=r"step-00000020, step-00000010 are damaged .*start over under another run name",
    ):
        checkpoints.load(state(0), info)


def test_another_model_is_refused_with_its_tensor(folder: Objects, recorder: Recorder) -> None:
    checkpoints = recorder.open(folder)
    info = save(checkpoints, 10)

    with pytest.raises(
        CheckpointUnusable, match=r"step-00000010 does not match .*model\.w; use another run name"
    ):
        checkpoints.load(state(0, rows=100), info)


def test_another_model_and_another_tokenizer_are_refused_by_the_marker(
    folder: Objects, recorder: Recorder
) -> None:
    info = save(recorder.open(folder), 10)

    info.refuse_other(model={"hidden_size": 64}, tokenizer_sha256="a" * 64)
    with pytest.raises(CheckpointUnusable, match=r"another model: hidden_size=64 \(now 32\)"):
        info.refuse_other(model={"hidden_size": 32}, tokenizer_sha256="a" * 64)
    with pytest.raises(
        CheckpointUnusable, match="tokenizer aaaaaaaaaaaa, but the dataset has bbbbbb"
    ):
        info.refuse_other(model={"hidden_size": 64}, tokenizer_sha256="b" * 64)


def test_fields_missing_from_an_older_marker_have_their_former_values(
    folder: Objects, recorder: Recorder
) -> None:
    info, older = save(recorder.open(folder), 10), {"rope_theta": 1e4}

    info.refuse_other(
        model={"hidden_size": 64, "rope_theta": 1e4}, tokenizer_sha256=None, assumed=older
    )
    with pytest.raises(CheckpointUnusable, match=r"model: rope_theta=10000\.0 \(now 500000\.0\)"):
        info.refuse_other(
            model={"hidden_size": 64, "rope_theta": 5e5}, tokenizer_sha256=None, assumed=older
        )


def test_the_latest_and_every_mth_are_kept(folder: Objects, recorder: Recorder) -> None:
    save(recorder.open(folder, keep_last=2, keep_every=20), 10, 20, 30, 40, 50)

    assert folders(folder) == {"step-00000020", "step-00000040", "step-00000050"}


def test_an_incomplete_checkpoint_is_deleted_once_a_newer_one_is_complete(
    folder: Objects, recorder: Recorder
) -> None:
    folder.put("step-00000005/__3_0.distcp", b"left by a killed job")
    folder.put("step-00000099/__3_0.distcp", b"may be being written")

    save(recorder.open(folder), 10)

    assert folders(folder) == {"step-00000010", "step-00000099"}


def test_a_step_saved_again_has_no_files_of_an_earlier_attempt(
    folder: Objects, recorder: Recorder
) -> None:
    folder.put("step-00000010/__7_0.distcp", b"of a larger job")

    info = save(recorder.open(folder), 10)

    assert sorted(info.files) == [".metadata", FILE]
    assert sorted(entry.key for entry in folder.list()) == [
        "step-00000010/.metadata",
        f"step-00000010/{FILE}",
        f"step-00000010/{CHECKPOINT_MARKER}",
    ]


def test_old_checkpoints_that_cannot_be_deleted_do_not_fail_the_save(
    proxy: FaultyProxy, recorder: Recorder
) -> None:
    checkpoints = recorder.open(impatient(proxy, "undeletable"), keep_last=1)
    save(checkpoints, 10)
    proxy.reset(lambda request: Fault.SLOW_DOWN if request.path.endswith("?delete") else None)

    info = save(checkpoints, 20)

    assert (info.step, recorder.failed) == (20, [])
    assert recorder.lines[0].startswith("old checkpoints could not be deleted: ")


def test_torchs_tools_read_the_files(folder: Objects, recorder: Recorder, tmp_path: Path) -> None:
    info = save(recorder.open(folder), 10)

    dcp_to_torch_save(f"{folder.uri}/{info.name}", tmp_path / "whole.pt")

    assert_holds(torch.load(tmp_path / "whole.pt", weights_only=False), 10)


def test_the_marker_records_its_inputs_and_findings(folder: Objects, recorder: Recorder) -> None:
    info = save(recorder.open(folder), 10)
    document = json.loads(folder.get(f"step-00000010/{CHECKPOINT_MARKER}"))

    assert_valid(document, "checkpoint.schema.json")

    assert document | META == document
    assert info.meta == META
    assert info.num_bytes > 1_200_000
    assert (document["schema"], document["format"], document["step"]) == (1, "dcp", 10)
    assert sorted(document["files"][FILE]) == ["bytes", "chunk_bytes", "crc32"]
    assert CheckpointInfo.parse(info.dump(), folder="step-00000010") == info
