"""`jobs verify`: the record it writes and reads, and its output."""

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
from tests.jobs.conftest import Cli
from tests.jobs.fakes import client_error
from tests.jobs.probes.world import TARGET
from tests.support.schemas import conforms
from trainium_catalogue.documents import as_document
from trainium_catalogue.probing import (
    Finding,
    ProbeResult,
    Probes,
    ProbeSite,
    State,
    is_intact,
    sealed,
)

CLAIMS = (
    Claim(id="memory", subject="node", claim="memory | fits", evidence="", open="x",
          probe=(ProbeSite.NODE,)),
    Claim(id="quota", subject="batch", claim="the quota is enough", evidence="", open="x",
          probe=(ProbeSite.CLIENT,)),
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


def join(*cli: Finding, nodes: Any = None, earlier: Any = None) -> dict[str, Any]:
    return joined(
        TARGET, cli, nodes=nodes, earlier=earlier, emulated=False, run="check", job_id="job"
    )


def states(record: dict[str, Any]) -> dict[str, str]:
    return {row.claim.id: row.state for row in rows_of(record, CLAIMS)}


def test_findings_of_nodes_and_client_are_joined_into_intact_record() -> None:
    nodes = node_record(finding("memory", ProbeSite.NODE, State.GREEN, "2"))

    record = join(finding("quota", ProbeSite.CLIENT, State.RED, "1"), nodes=nodes)

    conforms("verification-record", record)
    assert is_intact(record)
    assert record["device"] == "xla"
    assert states(record) == {"memory": "green", "quota": "red", "destroy": "no probe"}


def test_node_claims_without_verify_run_are_not_run() -> None:
    record = join(finding("quota", ProbeSite.CLIENT, State.GREEN, "2"))

    conforms("verification-record", record)
    (row,) = [row for row in rows_of(record, CLAIMS) if row.claim.id == "memory"]
    assert (row.state, row.seen) == ("not run", "needs a run of verify")


def test_findings_during_job_are_kept() -> None:
    while_it_ran = join(finding("quota", ProbeSite.CLIENT, State.GREEN, "2"))

    afterwards = join(
        finding("quota", ProbeSite.CLIENT, State.NOT_RUN, "", "a running job"),
        earlier=while_it_ran,
    )
    of_another_job = join(
        finding("quota", ProbeSite.CLIENT, State.NOT_RUN, "", "a running job"),
        earlier={**while_it_ran, "job_id": "another"},
    )

    assert states(afterwards)["quota"] == "green"
    assert states(of_another_job)["quota"] == "not run"


def test_current_findings_replace_earlier_ones() -> None:
    before = join(finding("quota", ProbeSite.CLIENT, State.GREEN, "2"))

    assert states(join(finding("quota", ProbeSite.CLIENT, State.RED, "1"), earlier=before)) == {
        "memory": "not run",
        "quota": "red",
        "destroy": "no probe",
    }


def test_worst_finding_decides_state_of_claim() -> None:
    both = (
        Claim(
            id="image",
            subject="batch",
            claim="",
            evidence="",
            probe=(ProbeSite.NODE, ProbeSite.CLIENT),
        ),
    )
    record = join(
        finding("image", ProbeSite.CLIENT, State.GREEN, "2"),
        nodes=node_record(finding("image", ProbeSite.NODE, State.CRASHED, "KeyError: 0")),
    )

    (row,) = rows_of(record, both)

    assert (row.state, row.seen) == ("crashed", "KeyError: 0")


def rows() -> list[Row]:
    return rows_of(
        join(
            finding("quota", ProbeSite.CLIENT, State.RED, "1 | <b> `<id>`"),
            nodes=node_record(finding("memory", ProbeSite.NODE, State.GREEN, "2")),
        ),
        CLAIMS,
    )


def test_rows_are_counted_by_state() -> None:
    assert counts(rows()) == {"green": 1, "red": 1, "crashed": 0, "not run": 0, "no probe": 1}
    assert summary(rows()) == "1 green, 1 red, 0 crashed, 0 not run, 1 no probe"
    assert not is_good(rows())


def test_issue_block_starts_with_failures_and_folds_the_rest() -> None:
    record = join()

    text = markdown(record, rows())

    lines = text.splitlines()
    assert lines[0].startswith("### Verification: trn1.32xlarge, Neuron 2.28.0")
    table = [line for line in lines if line.startswith("| `")]
    assert table[0] == "| `quota`: the quota is enough | red | 1 \\| &lt;b> `<id>` | 2 |"
    assert table[1] == "| `memory`: memory \\| fits | green | 2 | 2 |"
    assert "<details><summary>1 claim not checked</summary>" in lines
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
def test_invalid_or_modified_record_is_refused(data: bytes, code: str) -> None:
    with pytest.raises(Refusal) as caught:
        parse_record(data, "file")

    assert caught.value.code == code


@pytest.fixture
def few_probes(monkeypatch: pytest.MonkeyPatch) -> Iterator[Probes[Any]]:
    """A single client-side probe, which is green."""
    made: Probes[Any] = Probes(ProbeSite.CLIENT)
    made.probe("quota")(lambda cli: ProbeResult(ok=True, seen="2", expected="2"))
    monkeypatch.setattr("jobs.verify.probes.PROBES", made)
    monkeypatch.setattr(verification, "read_claims", lambda: CLAIMS)
    yield made


def stored(cli: Cli, key: str, data: bytes) -> None:
    cli.client("s3").put_object(Bucket="bucket", Key=key, Body=data)


def left_by_nodes(cli: Cli) -> str:
    """Add a verify run with one green node probe, and return its job id."""
    job_id = cli.submitted("check")
    record = node_record(finding("memory", ProbeSite.NODE, State.GREEN, "2"), job_id=job_id)
    stored(cli, "runs/check/results/probes.json", json.dumps(record).encode())
    return job_id


@pytest.mark.usefixtures("few_probes")
def test_newest_verify_run_is_joined_and_record_written(cli: Cli) -> None:
    job_id = left_by_nodes(cli)

    result = cli.run("verify")

    assert result.exit_code == 0, result.output
    assert "2 green, 0 red, 0 crashed, 0 not run, 1 no probe" in result.stdout
    assert "AWS is emulated" in result.stdout
    body = cli.client("s3").get_object(Bucket="bucket", Key="runs/check/results/verification.json")[
        "Body"
    ]
    record = json.loads(body.read())
    assert is_intact(record)
    assert (record["run"], record["job_id"]) == ("check", job_id)


@pytest.mark.usefixtures("few_probes")
def test_unchanged_claims_are_shown_only_on_request(cli: Cli) -> None:
    left_by_nodes(cli)

    first, again, everything = (cli.run("verify", *rest) for rest in ((), (), ("--all",)))

    assert all("2 green, 0 red" in result.stdout for result in (first, again, everything))
    assert "memory" not in first.stdout
    assert ("3 claims neither failed nor changed; --all shows every claim") in again.stdout
    assert "memory" in everything.stdout
    assert "not shown" not in everything.stdout


@pytest.mark.usefixtures("few_probes")
@pytest.mark.parametrize("place", ["check", "runs/check/results/verification.json", "s3", "file"])
def test_record_is_read_from_any_location(cli: Cli, place: str, tmp_path: Path) -> None:
    left_by_nodes(cli)
    written = json.loads(cli.run("verify", "check", "--json").stdout)
    file = tmp_path / "record.json"
    file.write_text(json.dumps(written))
    places = {"s3": "s3://bucket/runs/check/results/verification.json", "file": str(file)}

    result = cli.run("verify", "--read", places.get(place, place), "--json")

    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout) == written
    conforms("verification-record", written)


@pytest.mark.usefixtures("few_probes")
def test_record_of_nodes_alone_can_be_read(cli: Cli) -> None:
    left_by_nodes(cli)

    result = cli.run("verify", "--read", "check", "--markdown")

    assert result.exit_code == 0, result.output
    assert result.stdout.startswith("### Verification: 1 x trn1.32xlarge")


def test_red_or_crashed_probe_exits_with_1(cli: Cli, few_probes: Probes[Any]) -> None:
    left_by_nodes(cli)
    few_probes.by_id.clear()

    def crash(cli: Any) -> ProbeResult:
        raise KeyError("Quota")

    few_probes.probe("quota")(crash)

    result = cli.run("verify")

    assert result.exit_code == 1
    assert "KeyError: 'Quota'" in result.stdout
    assert "1 green, 0 red, 1 crashed" in result.stdout


@pytest.mark.usefixtures("few_probes")
def test_unwritable_record_is_still_shown(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    left_by_nodes(cli)

    def deny(bucket: Bucket, key: str, data: bytes) -> str:
        raise client_error("AccessDenied", operation="PutObject")

    monkeypatch.setattr(Bucket, "write", deny)

    result = cli.run("verify")

    assert result.exit_code == 0, result.output
    assert "the record was not written, because s3:PutObject is denied" in result.stderr
    assert "2 green, 0 red" in result.stdout


@pytest.mark.usefixtures("few_probes")
def test_client_probes_run_without_verify_run_and_write_nothing(cli: Cli) -> None:
    result = cli.run("verify")

    assert result.exit_code == 0, result.output
    assert "no verify run has results, so the record is not written" in result.stderr
    assert "Contents" not in cli.client("s3").list_objects_v2(Bucket="bucket")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("verify", "nobody"), "there is neither a job nor a record of run 'nobody'"),
        (("verify", "--read", "nobody"), "there is no record 'nobody'"),
        (("verify", "check", "--read", "other"), "omit the run check"),
    ],
)
def test_missing_or_conflicting_record_is_refused(
    cli: Cli, words: tuple[str, ...], said: str
) -> None:
    result = cli.run(*words)

    assert result.exit_code == 2
    assert said in result.stderr


def test_probes_do_not_crash_in_empty_deployment(cli: Cli) -> None:
    result = cli.run("verify", "--json")

    found = json.loads(result.stdout)["findings"]
    assert {entry["id"] for entry in found} == set(PROBES.by_id)
    assert [entry for entry in found if entry["state"] == "crashed"] == []
