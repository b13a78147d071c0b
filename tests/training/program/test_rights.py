"""A program's job runs with the permissions of its role, and no others."""

from __future__ import annotations

import json
from fnmatch import fnmatchcase
from urllib.parse import parse_qs, unquote, urlsplit

from tests.support.limits import scaled
from tests.training.checkpoint.faulty import Fault, Request, faulty_proxy
from tests.training.conftest import BUCKET, Cluster
from tests.training.program.bundles import bundle, upload
from tests.training.s3_server import s3_client
from trainium_catalogue import contract
from trainium_catalogue.workloads import WORKLOADS

SCRIPT = """
import os, pathlib, time
kept = pathlib.Path(os.environ["TRAINIUM_CHECKPOINT_DIR"])
for step in range(4):
    print(f"step {step} loss {1 / (step + 1)}", flush=True)
    (kept / f"{step}.pt").write_text(str(step))
    time.sleep(1)
"""
PROGRAM = WORKLOADS[contract.PROGRAM]
WRITES = PROGRAM.writes
READS = (*PROGRAM.reads, *WRITES)
RESULTS = tuple(f"{contract.RUNS_PREFIX}*/{folder}/" for folder in contract.RESULT_FOLDERS)
LISTS = (*READS, f"{contract.RUNS_PREFIX}*/results/{contract.JOINING_FOLDER}/")


def refused(request: Request) -> Fault | None:
    """Deny what the program role does not grant."""
    url = urlsplit(request.path)
    query = parse_qs(url.query, keep_blank_values=True)
    key = unquote(url.path).removeprefix(f"/{BUCKET}").removeprefix("/")
    match request.method:
        case "GET" if "list-type" in query:
            key, granted = query.get("prefix", [""])[0], LISTS
        case "GET" | "HEAD":
            granted = READS
        case "DELETE":
            granted = WRITES
        case "POST" if "delete" in query:
            return None  # the keys are in the body
        case _:
            granted = (*WRITES, *RESULTS)
    return None if any(fnmatchcase(key, f"{one}*") for one in granted) else Fault.ACCESS_DENIED


def test_a_program_is_persisted_and_reported_with_its_roles_permissions(
    cluster: Cluster, bucket: dict[str, str]
) -> None:
    direct = bucket["AWS_ENDPOINT_URL"]
    digest = upload(bucket, bundle({"train.py": SCRIPT}))
    with faulty_proxy(direct) as proxy:
        proxy.reset(refused)
        cluster.start(
            *(f"--code={digest}", "--script=train.py", "--snapshot-every-s=1"),
            workload="program",
            extra=bucket | {"AWS_ENDPOINT_URL": proxy.url},
        )
        assert set(cluster.end(within_s=scaled(60)).values()) == {0}, cluster.all_logs()
        assert "snapshot 1 of" in cluster.log(0)
        assert [request for _, request in proxy.injected] == []
    key = contract.run_key("test-run", contract.RUN_STATUS)
    found = s3_client(direct).get_object(Bucket=BUCKET, Key=key)
    status = json.loads(found["Body"].read())
    assert status["state"] == "ended" and len(status["snapshots"]) >= 1
