"""The formats in which a step is reported, and non-blocking uploads."""

from __future__ import annotations

import itertools
import json
import math
import re
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from training.core.heartbeat import Pacer
from training.storage import LocalObjects
from training.storage.results import Uploads
from training.trainer.metrics import Window
from training.trainer.records import (
    EvaluationRecord,
    StepRecord,
    embedded_metrics,
    log_line,
    results_document,
)
from training.trainer.run_files import _METRICS_INTERVAL_S

RECORD = StepRecord(
    step=12,
    max_steps=100,
    epoch=1,
    loss=2.5,
    lr=3e-4,
    grad_norm=0.75,
    step_s=2.0,
    data_s=0.1,
    sequences_per_second=4.0,
    tokens_per_second=16384.0,
    mfu=0.25,
    throughput=3.5,
    tokens_total=393216,
)


def test_the_references_parsers_read_the_log_line() -> None:
    pattern = (
        r"LOG (.+) - \((\d+), (\d+)\) step_loss : (\S+) learning_rate : (\S+) "
        r"throughput : (\S+)"
    )

    found = re.match(pattern, log_line(RECORD))

    assert found is not None
    assert found.groups()[1:] == ("1", "12", "2.5000", "3.00e-04", "3.50")


def test_a_non_finite_number_is_null_in_json() -> None:
    step = replace(RECORD, loss=float("nan")).fields()
    evaluation = EvaluationRecord(step=7, val_loss=1e9, sequences=16, evaluation_s=2.0).fields()

    assert step["loss"] is None
    assert (evaluation["perplexity"], evaluation["val_loss"]) == (None, 1e9)
    json.dumps([step, evaluation], allow_nan=False)


@given(
    log_every=st.integers(1, 30),
    samples=st.lists(st.tuples(st.integers(1, 1000), st.floats(0.001, 100)), min_size=1),
)
def test_throughput_covers_the_last_ten_steps(
    log_every: int, samples: list[tuple[int, float]]
) -> None:
    window = Window(log_every)

    found = [window.add(*sample) for sample in samples][-1]

    last = samples[-math.ceil(10 / log_every) :]
    assert found == pytest.approx(sum(n for n, _ in last) / sum(s for _, s in last))


def test_results_without_a_logged_step_have_no_metrics() -> None:
    # The reference raises IndexError here (runs shorter than its logging interval).
    document = results_document(
        None, parameters={}, throughputs=[], last=None, log_every=10, seconds=1.0
    )

    assert document == {"results": {"parameters": {}, "metrics": []}}


def test_results_exclude_the_first_ten_steps_from_the_average() -> None:
    throughputs = [1.0] * 10 + [4.0, 6.0]

    document = results_document(
        None, parameters={}, throughputs=throughputs, last=RECORD, log_every=1, seconds=90
    )

    named = {m["MetricName"]: m["MeasuredValue"] for m in document["results"]["metrics"]}
    assert (named["Average throughput"], named["Peak throughput"]) == (5.0, 6.0)
    assert named["Time to train"] == 1.5


@pytest.mark.parametrize("earlier", [b'{"results": 3}', b"\xff"])
def test_foreign_results_are_replaced(earlier: bytes) -> None:
    document = results_document(
        earlier, parameters={}, throughputs=[1.0], last=RECORD, log_every=1, seconds=1
    )

    assert len(document["results"]["metrics"]) == 6


def test_cloudwatch_reads_its_metrics_from_the_line() -> None:
    line = embedded_metrics(
        replace(RECORD, mfu=None),  # no value, no metric
        deployment="default",
        run="r",
        workload="llama2-7b",
        time_ms=1700000000000,
        checkpoint_s=1.5,
    )

    document = json.loads(line)
    assert "\n" not in line
    (directive,) = document["_aws"]["CloudWatchMetrics"]
    assert document["_aws"]["Timestamp"] == 1700000000000
    assert directive["Namespace"] == "Trainium/Training"
    names = [metric["Name"] for metric in directive["Metrics"]]
    assert names == [
        "Loss", "LearningRate", "GradientNorm", "SequencesPerSecond", "TokensPerSecond",
        "StepTime", "DataTime", "CheckpointTime",
    ]  # fmt: skip
    assert all(isinstance(document[name], float) for name in names)
    assert all(isinstance(document[name], str) for name in directive["Dimensions"][0])
    evaluation = EvaluationRecord(step=7, val_loss=3.5, sequences=16, evaluation_s=2.0)
    document = json.loads(
        embedded_metrics(evaluation, deployment="d", run="r", workload="w", time_ms=1)
    )
    (directive,) = document["_aws"]["CloudWatchMetrics"]
    assert [document[each["Name"]] for each in directive["Metrics"]] == [3.5, 2.0]


@given(st.lists(st.floats(0, 50), max_size=30))
def test_cloudwatch_gets_one_line_a_minute_at_most(gaps: list[float]) -> None:
    now, lines = 0.0, []
    pacer = Pacer(_METRICS_INTERVAL_S)
    for gap in gaps:
        now += gap
        if pacer.due(now):
            lines.append(now)

    assert all(later - earlier >= 60 for earlier, later in itertools.pairwise(lines))
    assert len(lines) >= bool(gaps)


class Slow(LocalObjects):
    """Storage that responds only when released."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.allowed = threading.Event()
        self.puts: list[str] = []
        self.failures = 2

    def put(
        self, key: str, data: bytes, *, if_absent: bool = False, if_match: str | None = None
    ) -> str:
        self.allowed.wait()
        self.puts.append(key)
        if key == "bad" and self.puts.count(key) <= self.failures:
            raise OSError("no space left")
        return super().put(key, data, if_absent=if_absent, if_match=if_match)


def test_slow_storage_does_not_block(tmp_path: Path) -> None:
    objects = Slow(tmp_path)
    uploads = Uploads.open(objects, every_s=0.0)
    began = time.monotonic()

    for number in range(1000):
        uploads.offer("a", str(number).encode())
    assert not uploads.close(within_s=0.01)
    assert time.monotonic() - began < 1

    objects.allowed.set()
    assert uploads.close(within_s=5)
    assert (tmp_path / "a").read_text() == "999"
    assert len(objects.puts) <= 3


def test_a_failed_upload_is_reported_and_retried_while_others_continue(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    objects = Slow(tmp_path)
    objects.allowed.set()
    uploads = Uploads.open(objects, every_s=0.0)

    uploads.offer("bad", b"1")
    uploads.offer("good", b"2")

    assert uploads.close(within_s=5)
    assert capsys.readouterr().out == (
        "bad could not be uploaded; training continues: no space left\n"
    )
    assert (tmp_path / "good").read_text() == "2"
    assert (tmp_path / "bad").read_text() == "1"


def test_a_persistently_failing_upload_is_not_mistaken_for_complete(tmp_path: Path) -> None:
    objects = Slow(tmp_path)
    objects.failures = 1000
    objects.allowed.set()
    uploads = Uploads.open(objects, every_s=0.0)

    uploads.offer("bad", b"1")

    assert not uploads.close(within_s=1)


@pytest.mark.parametrize("holds", [True, False])
def test_only_the_lock_holder_replaces_another_jobs_files(tmp_path: Path, holds: bool) -> None:
    objects = LocalObjects(tmp_path)
    objects.put("a", b"before")
    uploads = Uploads.open(objects, every_s=0.0, holds=lambda: holds)
    assert uploads.claim("a") == b"before"
    objects.put("a", b"another job's")

    uploads.offer("a", b"mine")

    assert uploads.close(within_s=5)
    assert objects.get("a") == (b"mine" if holds else b"another job's")


@pytest.mark.parametrize("claims", [True, False])
def test_a_job_frozen_before_its_first_upload_replaces_nothing(
    tmp_path: Path, claims: bool
) -> None:
    objects = LocalObjects(tmp_path)
    objects.put("a", b"another job's")
    uploads = Uploads.open(objects, every_s=0.0, holds=lambda: False)

    if claims:
        uploads.claim("a")
    uploads.offer("a", b"mine")

    assert uploads.close(within_s=5)
    assert objects.get("a") == b"another job's"


def test_uploads_of_a_file_are_rate_limited(tmp_path: Path) -> None:
    objects = Slow(tmp_path)
    objects.allowed.set()
    uploads = Uploads.open(objects, every_s=60.0)

    for number in range(5):
        uploads.offer("a", str(number).encode())
        time.sleep(0.02)
    assert objects.puts == ["a"]
    assert uploads.close(within_s=5)
    assert (tmp_path / "a").read_text() == "4"
