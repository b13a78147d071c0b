"""`jobs report`: the history of a run, from its bucket and the services."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from tests.jobs.conftest import Cli
from tests.jobs.test_refusals import assert_refused
from tests.support.schemas import conforms
from trainium_catalogue import contract
from trainium_catalogue.instances import INSTANCE_TYPES, USD_PER_JOB_HOUR_ESTIMATE

BEGAN = datetime(2026, 11, 20, 9, tzinfo=UTC)
TYPE = "trn1.32xlarge"
PRICE = INSTANCE_TYPES[TYPE].usd_per_hour_estimate
TOKENS = 1000
"""Tokens of a step."""


def at(seconds: float) -> str:
    return (BEGAN + timedelta(seconds=seconds)).isoformat(timespec="milliseconds")


class Traces:
    """Objects of a run in the bucket; times are seconds after ``BEGAN``."""

    def __init__(self, cli: Cli, *, workload: str = "llama-tiny") -> None:
        self.cli, self.workload = cli, workload
        self._lines: list[dict[str, Any]] = []

    def submission(self, job: str, seconds: float, *, nodes: int = 2) -> None:
        self._put(
            f"{job}/submission.json",
            schema=1, workload=self.workload, orchestrator="batch", num_nodes=nodes,
            submitted_at=at(seconds),
        )  # fmt: skip

    def attempt(
        self,
        job: str,
        number: int,
        began: float,
        ended: float | None,
        *,
        code: int | None = 0,
        nodes: int = 2,
        child: int = 0,
        instance_type: str | None = TYPE,
        **more: Any,
    ) -> None:
        record = {
            "schema": 1, "workload": self.workload, "orchestrator": "batch", "job_id": job,
            "attempt": number, "child": child, "num_nodes": nodes, "device": "xla",
            "instance_type": instance_type, "started_at": at(began), "joined_at": at(began + 1),
            "lost": [], "ended_at": None if ended is None else at(ended),
            "code": None if ended is None else code, "reason": None, "steps": None, **more,
        }  # fmt: skip
        name = f"{number}-child-{child}" if child else str(number)
        self._put(f"{job}/{name}.json", **record)

    def begin(self, seconds: float, job: str, number: int, step: int, **more: Any) -> None:
        fields = {
            "step": step, "dropped": 0, "job_id": job, "num_nodes": 2, "device": "xla",
            "instance_type": TYPE, **more,
        }  # fmt: skip
        self.line(seconds, "resume" if step else "start", attempt=number, **fields)

    def steps(self, seconds: float, *numbers: int, each_s: float) -> None:
        """Add lines of steps; the last one is at ``seconds``."""
        for step in numbers:
            self.line(
                seconds - each_s * (numbers[-1] - step),
                "step",
                step=step, step_s=each_s, loss=10 - step / 10, tokens_total=TOKENS * step,
                mfu=None,
            )  # fmt: skip

    def line(self, seconds: float, event: str, **fields: Any) -> None:
        self._lines.append({"time": at(seconds), "event": event, "attempt": 1, **fields})
        text = "".join(f"{json.dumps(line)}\n" for line in self._lines)
        self.cli.put("runs/mine/metrics/train.jsonl", text.encode())

    def _put(self, name: str, **document: Any) -> None:
        self.cli.put(f"runs/mine/results/attempts/{name}", document)


def reported(cli: Cli, run: str = "mine") -> dict[str, Any]:
    """Return the document, after checking that text and page can be created too."""
    result = cli.run("report", run, "--json")
    assert result.exit_code == 0, result.stderr
    document: dict[str, Any] = json.loads(result.stdout)
    conforms("jobs-report", document)
    assert cli.run("report", run).exit_code == 0
    return document


def killed_and_resumed(cli: Cli) -> None:
    """Add a run that loses a node in step 8 of 10, two steps after its checkpoint."""
    made = Traces(cli)
    made.submission("job", -60)
    made.attempt(
        "job", 1, 0, 100, code=75, reason="node 1 was lost: <script>alert(1)</script>", steps=8,
        lost=[{"node": 1, "at": at(95), "reason": "<script>alert(1)</script>"}],
    )  # fmt: skip
    made.attempt("job", 2, 130, 200)
    made.begin(20, "job", 1, 0, reached=0)
    made.steps(80, *range(1, 7), each_s=10)
    made.line(82, "save", step=6, checkpoint_s=1.5)
    made.line(85, "saved", step=6, bytes=7_000_000)
    # Only the launcher knows about step 8: its line was never uploaded.
    made.begin(150, "job", 2, 6, reached=7, reached_at=at(92), dropped=1)
    made.steps(195, *range(7, 11), each_s=9)
    made.line(196, "evaluation", step=10, val_loss=9.5, evaluation_s=2.0)
    made.line(199, "save-failed", step=10, reason="AccessDenied")


def test_goodput_is_useful_step_time_over_paid_time(cli: Cli) -> None:
    killed_and_resumed(cli)
    document = reported(cli)

    paid = 2 * (100 + 70)
    assert document["node_seconds"] == pytest.approx(paid)
    assert document["goodput"] == pytest.approx(2 * (6 * 10 + 4 * 9) / paid)
    assert document["usd"] == pytest.approx(paid / 3600 * PRICE)
    assert document["usd_per_million_tokens"] == pytest.approx(
        document["usd"] / (10 * TOKENS / 1e6)
    )
    assert document["tokens_per_second"] == pytest.approx(10 * TOKENS / (6 * 10 + 4 * 9))
    spent = {part["on"]: part["node_seconds"] for part in document["spent"]}
    assert sum(spent.values()) == pytest.approx(paid)
    assert spent["starting"] == pytest.approx(2 * (20 + 20))
    assert (spent["checkpoints"], spent["validation"]) == (2 * 1.5, 2 * 2.0)
    assert spent["repeated"] == pytest.approx(2 * 2 * 10)


def test_compilation_in_first_step_is_not_goodput(cli: Cli) -> None:
    made = Traces(cli)
    made.attempt("job", 1, 0, 3600)
    made.begin(810, "job", 1, 0, reached=0)
    for step in range(1, 101):
        step_s = 1800 if step == 1 else 10
        made.line(
            2610 + 10 * (step - 1), "step",
            step=step, step_s=step_s, loss=9.0, tokens_total=TOKENS * step, mfu=4 / step_s,
        )  # fmt: skip
    document = reported(cli)
    spent = {part["on"]: part["node_seconds"] for part in document["spent"]}

    assert document["goodput"] == pytest.approx(100 * 10 / 3600)
    assert document["tokens_per_second"] == pytest.approx(TOKENS / 10)
    assert document["mfu"] == pytest.approx(0.4)
    assert spent["starting"] == pytest.approx(2 * (810 + 1790))
    assert document["curve"][0]["steps_per_second"] == pytest.approx(0.1)


def test_attempt_has_wait_lost_node_and_repeated_steps(cli: Cli) -> None:
    killed_and_resumed(cli)
    document = reported(cli)
    first, second = document["attempts"]

    assert (document["steps"], document["repeated_steps"]) == (10, 2)
    assert not document["is_repeated_lower_bound"] and not document["is_time_lower_bound"]
    assert (first["repeated_steps"], first["reached_step"], second["from_step"]) == (2, 8, 6)
    assert (first["code"], first["code_name"]) == (75, "HOST")
    assert [loss["node"] for loss in first["lost"]] == [1]
    assert (first["waited_since"], second["waited_since"]) == (at(-60), at(100))
    complete, failed = document["checkpoints"]
    assert (complete["bytes"], complete["paused_s"], complete["at"]) == (7_000_000, 1.5, at(85))
    assert failed["failure"] == "AccessDenied"
    assert document["last_validation"] == {"step": 10, "loss": 9.5}
    assert document["state"] == "succeeded"


def test_text_has_figures_and_cost_exclusions(cli: Cli) -> None:
    killed_and_resumed(cli)
    said = cli.run("report", "mine").stdout

    for words in ("75 HOST", "10, loss 9.0000", "repeated steps     2", "56.5% of paid time",
                  "Not included: hosts that boot"):  # fmt: skip
        assert words in said


class Elements(HTMLParser):
    """Elements and text of a page."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.names: list[str] = []
        self.addresses: list[str | None] = []
        self.text = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names.append(tag)
        self.addresses += [value for name, value in attrs if name in ("src", "href")]
        assert not any(name.startswith("on") for name, _ in attrs)

    def handle_data(self, data: str) -> None:
        self.text += data


def test_page_loads_nothing_and_escapes_foreign_text(cli: Cli, tmp_path: Path) -> None:
    killed_and_resumed(cli)
    path = tmp_path / "report.html"
    result = cli.run("report", "mine", "--html", str(path))
    elements = Elements(path.read_text())

    assert (result.exit_code, result.stdout) == (0, "")
    assert "script" not in elements.names and "link" not in elements.names
    assert elements.addresses == []
    assert "<script>alert(1)</script>" in elements.text
    assert "url(" not in elements.text and "@import" not in elements.text
    assert elements.names.count("svg") == 2  # loss and speed
    assert elements.names.count("table") == elements.names.count("caption") == 3


def test_submissions_of_one_name_are_one_run(cli: Cli) -> None:
    made = Traces(cli)
    made.submission("first", 0, nodes=4)
    made.submission("second", 1000, nodes=1)
    made.attempt("first", 1, 10, 110, nodes=4, code=143, steps=5)
    made.attempt("second", 1, 1100, 1200, nodes=1)
    made.begin(20, "first", 1, 0, reached=0, num_nodes=4)
    made.steps(70, *range(1, 6), each_s=10)
    made.begin(1110, "second", 1, 5, reached=5, reached_at=at(70), num_nodes=1)
    made.steps(1190, *range(6, 8), each_s=40)
    document = reported(cli)

    assert [job["job_id"] for job in document["jobs"]] == ["first", "second"]
    assert document["node_seconds"] == pytest.approx(4 * 100 + 100)
    assert document["goodput"] == pytest.approx((4 * 50 + 80) / 500)
    assert document["repeated_steps"] == 0
    assert [item["waited_since"] for item in document["attempts"]] == [at(0), at(1000)]


def test_killed_attempt_ends_at_last_sign_of_life(cli: Cli) -> None:
    made = Traces(cli)
    made.attempt("job", 1, 0, None)
    made.attempt("job", 2, 130, 200)
    made.begin(20, "job", 1, 0, reached=0)
    made.steps(60, *range(1, 5), each_s=10)
    made.begin(150, "job", 2, 4, reached=7, reached_at=at(90), dropped=3)
    made.steps(190, *range(5, 9), each_s=10)
    document = reported(cli)
    first = document["attempts"][0]

    assert (first["ended_at"], first["last_seen_at"], first["repeated_steps"]) == (None, at(90), 3)
    assert document["node_seconds"] == pytest.approx(2 * (90 + 70))
    assert document["is_time_lower_bound"] and document["is_repeated_lower_bound"]
    assert any("1 attempt without a recorded end" in text for text in document["unknown"])
    assert "at least 3" in cli.run("report", "mine").stdout


def test_active_run_is_counted_until_now(cli: Cli) -> None:
    job = cli.submitted("mine")
    cli.with_nodes(job, {}, {}, status="RUNNING", attempts=[])
    now = datetime.now(UTC)
    began = (now - BEGAN).total_seconds() - 50
    Traces(cli, workload="all-reduce").attempt(job, 1, began, None)
    document = reported(cli)
    (attempt,) = document["attempts"]

    assert (document["state"], document["ended_at"], attempt["is_running"]) == (
        "running", None, True,
    )  # fmt: skip
    assert 2 * 50 <= document["node_seconds"] < 2 * 110
    assert attempt["waited_since"] is not None  # as recorded by the submission
    assert document["goodput"] is None


def test_immediately_failed_run_shows_service_data(cli: Cli) -> None:
    job = cli.submitted("mine", status="FAILED")
    start = round(BEGAN.timestamp() * 1000)
    ended = {
        "container": {"exitCode": 64, "logStreamName": "0", "reason": None},
        "startedAt": start,
        "stoppedAt": start + 3000,
        "statusReason": "Essential container in task exited",
    }
    cli.with_nodes(job, {}, {}, status="FAILED", attempts=[ended])
    document = reported(cli)
    (attempt,) = document["attempts"]

    assert (document["state"], attempt["code_name"]) == ("failed", "CONFIGURATION")
    assert attempt["meaning"] == "the launcher refused its configuration"
    assert document["node_seconds"] == pytest.approx(2 * 3)
    assert not document["is_time_lower_bound"]
    assert document["steps"] is None


def test_waiting_job_has_no_attempt(cli: Cli, tmp_path: Path) -> None:
    job = cli.submitted("mine", status="RUNNABLE")
    cli.with_nodes(job, {}, {}, status="RUNNABLE", attempts=[])
    document = reported(cli)
    page = tmp_path / "page.html"
    cli.run("report", "mine", "--html", str(page))

    assert (document["state"], document["attempts"], document["usd"]) == ("waiting", [], 0)
    assert "RUNNABLE" in Elements(page.read_text()).text


def test_data_job_pays_for_each_array_child(cli: Cli) -> None:
    made = Traces(cli, workload="tokenize")
    made.submission("job", 0)
    for child, ended in enumerate((110, 130)):
        made.attempt("job", 1, 10, ended, child=child, nodes=1, instance_type=None)
    document = reported(cli)

    assert document["usd"] == pytest.approx((100 + 120) / 3600 * USD_PER_JOB_HOUR_ESTIMATE)
    assert [item["child"] for item in document["attempts"]] == [0, 1]
    assert document["unknown"] == []


def test_old_run_lists_unrecorded_data(cli: Cli) -> None:
    made = Traces(cli)
    made.begin(20, "job", 1, 0)
    made.steps(60, *range(1, 5), each_s=10)
    made.begin(150, "job", 2, 4, dropped=3)
    made.steps(190, *range(5, 9), each_s=10)
    document = reported(cli)

    assert (document["repeated_steps"], document["is_time_lower_bound"]) == (0, True)
    assert document["goodput"] == pytest.approx(80 / (40 + 40))
    said = " ".join(document["unknown"])
    assert "2 attempts without a recorded start" in said
    assert "3 lines of steps or evaluations were repeated" in said


def lose(cli: Cli, name: str, *points: tuple[int, float]) -> None:
    """Add the losses of a program's attempt: steps and times."""
    lines = [{"step": s, "loss": 9.0 - s / 10, "time": at(seconds)} for s, seconds in points]
    text = "".join(f"{json.dumps(line)}\n" for line in lines)
    cli.put(contract.run_key("mine", f"{contract.PROGRAM_LOSSES}{name}"), text.encode())


def test_steps_of_program_are_its_printed_steps(cli: Cli) -> None:
    made = Traces(cli, workload="program")
    made.attempt("job", 1, 0, 100, code=75)
    made.attempt("job", 2, 120, 200)
    lose(cli, "20261120T090004Z-attempt-1.jsonl", *((s, 10.0 * s) for s in range(1, 9)))
    lose(cli, "20261120T090203Z-attempt-2.jsonl", *((s, 100 + 6.0 * s) for s in range(6, 11)))
    snapshot = {"number": 3, "at": at(60), "files": 2, "bytes": 500}
    cli.put("runs/mine/results/status.json", {"kind": "program", "snapshots": [snapshot]})
    document = reported(cli)

    assert (document["steps"], document["repeated_steps"]) == (10, 3)
    assert document["goodput"] == pytest.approx((4 * 10 + 4 * 6) / (100 + 80))
    assert [item["number"] for item in document["checkpoints"]] == [3]
    assert document["tokens"] is None and document["usd_per_million_tokens"] is None


def test_program_without_parsed_lines_has_no_goodput(cli: Cli) -> None:
    Traces(cli, workload="program").attempt("job", 1, 0, 100)
    cli.put("runs/mine/results/status.json", {"kind": "program", "last_line": "done"})
    document = reported(cli)

    assert (document["goodput"], document["steps"]) == (None, None)
    assert any("no loss was recognized" in text for text in document["unknown"])


def test_invalid_records_are_skipped(cli: Cli) -> None:
    made = Traces(cli)
    made.attempt("job", 1, 0, 100)
    prefix = "runs/mine/results/attempts"
    for name in ("job/2.json", "job/submission.json", "job/deep/1.json", "other/1.json"):
        cli.put(f"{prefix}/{name}", b'{"schema": 1, "attempt": "x"}')
    cli.put(f"{prefix}/else/1.json", {"job_id": "job"})
    cli.put("runs/mine/metrics/train.jsonl", b'\xff\n{"event": "step"}\n[1]\n{"time": 1}\n')

    assert len(reported(cli)["attempts"]) == 1


def test_unencodable_reason_is_escaped(cli: Cli, tmp_path: Path) -> None:
    Traces(cli).attempt("job", 1, 0, 100, code=75, reason="half of a pair: \ud800")
    path = tmp_path / "report.html"
    path.write_text("an older page")
    result = cli.run("report", "mine", "--html", str(path))

    assert result.exit_code == 0, result.stderr
    assert r"half of a pair: \ud800" in Elements(path.read_text()).text
    assert list(tmp_path.iterdir()) == [path]
    missing = str(tmp_path / "missing" / "report.html")
    assert_refused(cli.run("report", "mine", "--html", missing), f"{missing}: no such file")


@pytest.mark.parametrize("time", ["0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59.9999999-12:00"])
def test_invalid_time_is_ignored(cli: Cli, time: str) -> None:
    made = Traces(cli)
    made.attempt("job", 1, 0, 100)
    made.attempt("job", 2, 0, 100, started_at=time, ended_at=time)

    assert len(reported(cli)["attempts"]) == 1


def test_unknown_run_is_refused(cli: Cli) -> None:
    assert_refused(cli.run("report", "nothing"), "no run 'nothing'", "deleted 7 days")


def test_submission_writes_record(cli: Cli) -> None:
    job = cli.submitted("mine")
    (key,) = cli.keys("runs/mine/results/attempts/")
    document = json.loads(cli.client("s3").get_object(Bucket="bucket", Key=key)["Body"].read())

    assert key == f"{contract.attempts_prefix('mine', job)}submission.json"
    conforms("submission", document)
    assert (document["workload"], document["num_nodes"]) == ("all-reduce", 2)
