"""`jobs verify`: the record that it writes and reads, and what it shows."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from jobs.bucket.objects import Bucket
from jobs.commands.verify import markdown, summary
from jobs.errors import Refusal
from jobs.verify import verification
from jobs.verify.claims import Claim
from jobs.verify.probes import PROBES
from jobs.verify.verification import Row, counts, is_good, joined, parse_record, rows_of
from tests.jobs.conftest import Desk
from tests.jobs.fakes import client_error
from tests.jobs.probes.world import TARGET
from tests.support.schemas import conforms
from trainium_catalogue.documents import as_document
from trainium_catalogue.probing import Finding, Probes, ProbeSite, Seen, State, is_intact, sealed

CLAIMS = (
    Claim(id="memory", subject="node", claim="memory | fits", evidence="", open="x",
          probe=(ProbeSite.NODE,)),
    Claim(id="quota", subject="batch", claim="the quota is enough", evidence="", open="x",
          probe=(ProbeSite.DESK,)),
    Claim(id="destroy", subject="eks", claim="nothing is left", evidence="", open="x",
          why="nobody is left to ask"),
    Claim(id="prices", subject="batch", claim="prices", evidence="source: a list"),
)  # fmt: skip


def finding(name: str, place: ProbeSite, state: State, seen: str = "", *needs: str) -> Finding:
    return Finding(
        id=name, place=place, state=state, seen=seen, expected="2" if seen else "", needs=needs
    )


def node_record(*findings: Finding, **more: Any) -> dict[str, Any]:
    return sealed(
        {
            "schema": 1,
            "contract_version": "3",
            "time": "2026-11-22T04:00:00.000+00:00",
            "deployment": "default",
            "region": "us-west-2",
            "emulated": False,
            "run": "check",
            "job_id": "job",
            "num_nodes": 1,
            "num_ranks": 32,
            "device": "xla",
            "instance_type": "trn1.32xlarge",
            "neuron_release": "2.28.0",
            "findings": [as_document(entry) for entry in findings],
            **more,
        }
    )


def join(*desk: Finding, nodes: Any = None, earlier: Any = None) -> dict[str, Any]:
    return joined(
        TARGET, desk, nodes=nodes, earlier=earlier, emulated=False, run="check", job_id="job"
    )


def states(record: dict[str, Any]) -> dict[str, str]:
    return {row.claim.id: row.state for row in rows_of(record, CLAIMS)}


def test_nodes_and_desk_make_one_intact_record() -> None:
    nodes = node_record(finding("memory", ProbeSite.NODE, State.GREEN, "2"))

    record = join(finding("quota", ProbeSite.DESK, State.RED, "1"), nodes=nodes)

    conforms("verification-record", record)
    assert is_intact(record)
    assert record["device"] == "xla"
    assert states(record) == {"memory": "green", "quota": "red", "destroy": "no probe"}


def test_without_a_run_of_verify_the_nodes_rows_say_what_they_need() -> None:
    record = join(finding("quota", ProbeSite.DESK, State.GREEN, "2"))

    conforms("verification-record", record)
    (row,) = [row for row in rows_of(record, CLAIMS) if row.claim.id == "memory"]
    assert (row.state, row.seen) == ("not run", "needs a run of verify")


def test_what_was_seen_while_the_job_ran_is_kept() -> None:
    while_it_ran = join(finding("quota", ProbeSite.DESK, State.GREEN, "2"))

    afterwards = join(
        finding("quota", ProbeSite.DESK, State.NOT_RUN, "", "a job that runs now"),
        earlier=while_it_ran,
    )
    of_another_job = join(
        finding("quota", ProbeSite.DESK, State.NOT_RUN, "", "a job that runs now"),
        earlier={**while_it_ran, "job_id": "another"},
    )

    assert states(afterwards)["quota"] == "green"
    assert states(of_another_job)["quota"] == "not run"


def test_what_is_seen_now_replaces_what_was_seen_before() -> None:
    before = join(finding("quota", ProbeSite.DESK, State.GREEN, "2"))

    assert states(join(finding("quota", ProbeSite.DESK, State.RED, "1"), earlier=before)) == {
        "memory": "not run",
        "quota": "red",
        "destroy": "no probe",
    }


def test_the_worst_place_speaks_for_a_claim() -> None:
    both = (
        Claim(
            id="image",
            subject="batch",
            claim="",
            evidence="",
            probe=(ProbeSite.NODE, ProbeSite.DESK),
        ),
    )
    record = join(
        finding("image", ProbeSite.DESK, State.GREEN, "2"),
        nodes=node_record(finding("image", ProbeSite.NODE, State.CRASHED, "KeyError: 0")),
    )

    (row,) = rows_of(record, both)

    assert (row.state, row.seen) == ("crashed", "KeyError: 0")


def rows() -> list[Row]:
    return rows_of(
        join(
            finding("quota", ProbeSite.DESK, State.RED, "1 | <b> `<id>`"),
            nodes=node_record(finding("memory", ProbeSite.NODE, State.GREEN, "2")),
        ),
        CLAIMS,
    )


def test_rows_are_counted_by_their_state() -> None:
    assert counts(rows()) == {"green": 1, "red": 1, "crashed": 0, "not run": 0, "no probe": 1}
    assert summary(rows()) == "1 green, 1 red, 0 crashed, 0 not run, 1 no probe"
    assert not is_good(rows())


def test_a_block_for_an_issue_begins_with_what_is_wrong_and_folds_the_rest() -> None:
    record = join()

    text = markdown(record, rows())

    lines = text.splitlines()
    assert lines[0].startswith("### Verification: trn1.32xlarge, Neuron 2.28.0")
    table = [line for line in lines if line.startswith("| `")]
    assert table[0] == "| `quota`: the quota is enough | red | 1 \\| &lt;b> `<id>` | 2 |"
    assert table[1] == "| `memory`: memory \\| fits | green | 2 | 2 |"
    assert "<details><summary>1 claims were not looked at</summary>" in lines
    assert lines[-1] == f"sha256 of the record: `{record['sha256']}`"


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (b"no json", "no-record"),
        (b'{"findings": []}', "record-schema"),
        (b"[]", "no-record"),
        (json.dumps({**node_record(), "device": "cpu"}).encode(), "record-changed"),
    ],
)
def test_a_record_that_is_none_or_was_changed_is_refused(data: bytes, code: str) -> None:
    with pytest.raises(Refusal) as caught:
        parse_record(data, "file")

    assert caught.value.code == code


@pytest.fixture
def few_probes(monkeypatch: pytest.MonkeyPatch) -> Iterator[Probes[Any]]:
    """One probe of the desk, which is green."""
    made: Probes[Any] = Probes(ProbeSite.DESK)
    made.probe("quota")(lambda desk: Seen(ok=True, seen="2", expected="2"))
    monkeypatch.setattr("jobs.verify.probes.PROBES", made)
    monkeypatch.setattr(verification, "read_claims", lambda: CLAIMS)
    yield made


def stored(desk: Desk, key: str, data: bytes) -> None:
    desk.client("s3").put_object(Bucket="bucket", Key=key, Body=data)


def left_by_nodes(desk: Desk) -> str:
    """A run of verify, on which one probe of the nodes was green; the job's id."""
    job_id = desk.submitted("check")
    record = node_record(finding("memory", ProbeSite.NODE, State.GREEN, "2"), job_id=job_id)
    stored(desk, "runs/check/results/probes.json", json.dumps(record).encode())
    return job_id


@pytest.mark.usefixtures("few_probes")
def test_the_newest_run_of_verify_is_joined_and_the_record_written(desk: Desk) -> None:
    job_id = left_by_nodes(desk)

    result = desk.run("verify")

    assert result.exit_code == 0, result.output
    assert "2 green, 0 red, 0 crashed, 0 not run, 1 no probe" in result.stdout
    assert "an emulator" in result.stdout
    body = desk.client("s3").get_object(
        Bucket="bucket", Key="runs/check/results/verification.json"
    )["Body"]
    record = json.loads(body.read())
    assert is_intact(record)
    assert (record["run"], record["job_id"]) == ("check", job_id)


@pytest.mark.usefixtures("few_probes")
def test_what_is_as_it_was_is_shown_only_when_asked_for(desk: Desk) -> None:
    left_by_nodes(desk)

    first, again, everything = (desk.run("verify", *rest) for rest in ((), (), ("--all",)))

    assert all("2 green, 0 red" in result.stdout for result in (first, again, everything))
    assert "memory" not in first.stdout
    assert "3 claims not shown: none failed, none is new; --all shows them" in again.stdout
    assert "memory" in everything.stdout
    assert "not shown" not in everything.stdout


@pytest.mark.usefixtures("few_probes")
@pytest.mark.parametrize("place", ["check", "runs/check/results/verification.json", "s3", "file"])
def test_a_record_is_shown_from_wherever_it_is(desk: Desk, place: str, tmp_path: Path) -> None:
    left_by_nodes(desk)
    written = json.loads(desk.run("verify", "check", "--json").stdout)
    file = tmp_path / "record.json"
    file.write_text(json.dumps(written))
    places = {"s3": "s3://bucket/runs/check/results/verification.json", "file": str(file)}

    result = desk.run("verify", "--read", places.get(place, place), "--json")

    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout) == written
    conforms("verification-record", written)


@pytest.mark.usefixtures("few_probes")
def test_the_nodes_record_alone_can_be_read(desk: Desk) -> None:
    left_by_nodes(desk)

    result = desk.run("verify", "--read", "check", "--markdown")

    assert result.exit_code == 0, result.output
    assert result.stdout.startswith("### Verification: 1 x trn1.32xlarge")


def test_a_red_or_crashed_probe_ends_the_command_with_1(
    desk: Desk, few_probes: Probes[Any]
) -> None:
    left_by_nodes(desk)
    few_probes.by_id.clear()

    def crash(desk: Any) -> Seen:
        raise KeyError("Quota")

    few_probes.probe("quota")(crash)

    result = desk.run("verify")

    assert result.exit_code == 1
    assert "KeyError: 'Quota'" in result.stdout
    assert "1 green, 0 red, 1 crashed" in result.stdout


@pytest.mark.usefixtures("few_probes")
def test_a_record_that_may_not_be_written_is_shown_all_the_same(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    left_by_nodes(desk)

    def deny(bucket: Bucket, key: str, data: bytes) -> str:
        raise client_error("AccessDenied", operation="PutObject")

    monkeypatch.setattr(Bucket, "write", deny)

    result = desk.run("verify")

    assert result.exit_code == 0, result.output
    assert "the record is not written: that needs s3:PutObject" in result.stderr
    assert "2 green, 0 red" in result.stdout


@pytest.mark.usefixtures("few_probes")
def test_without_a_run_the_desk_is_looked_at_and_nothing_written(desk: Desk) -> None:
    result = desk.run("verify")

    assert result.exit_code == 0, result.output
    assert "no run of verify has left a record, so nothing is written" in result.stderr
    assert "Contents" not in desk.client("s3").list_objects_v2(Bucket="bucket")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("verify", "nobody"), "there is neither a job nor a record of run 'nobody'"),
        (("verify", "--read", "nobody"), "there is no record 'nobody'"),
        (("verify", "check", "--read", "other"), "leave out the run check"),
    ],
)
def test_what_is_not_there_is_refused(desk: Desk, words: tuple[str, ...], said: str) -> None:
    result = desk.run(*words)

    assert result.exit_code == 2
    assert said in result.stderr


def test_the_real_probes_find_nothing_to_crash_on_in_an_empty_deployment(desk: Desk) -> None:
    result = desk.run("verify", "--json")

    found = json.loads(result.stdout)["findings"]
    assert {entry["id"] for entry in found} == set(PROBES.by_id)
    assert [entry for entry in found if entry["state"] == "crashed"] == []
