"""Probes of the bucket and Lustre with the job's role: conditional writes, permissions, mount."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from training.diagnostics.probes.node import PROBES, ProbedNode
from training.storage import ObjectMissing, PreconditionFailed, StorageRefused
from trainium_catalogue.contract import CACHE_PREFIX, DATASETS_PREFIX, run_prefix
from trainium_catalogue.probing import ProbeResult

_WRITERS = 8
_MAX_LISTED = 1000
_REFUSED = frozenset({"412", "PreconditionFailed"})


def _key(node: ProbedNode, name: str) -> str:
    return f"{run_prefix(node.context.run, 'results')}probe-{name}"


@PROBES.probe("conditional-writes", needs=("a bucket", "the main node"))
def conditional_writes(node: ProbedNode) -> ProbeResult:
    """One of several concurrent writers wins, and a stale write is refused."""
    key = _key(node, "lock")
    node.storage.delete([key])

    def write(number: int) -> bool:
        try:
            node.storage.put(key, str(number).encode(), if_absent=True)
        except PreconditionFailed:
            return False
        return True

    try:
        with ThreadPoolExecutor(_WRITERS) as pool:
            winners = list(pool.map(write, range(_WRITERS))).count(True)
        _, etag = node.storage.get_with_etag(key)
        node.storage.put(key, b"newer", if_match=etag)
        try:
            node.storage.put(key, b"outdated", if_match=etag)
            outdated = "written"
        except PreconditionFailed:
            outdated = "refused"
    finally:
        node.storage.delete([key])
    return ProbeResult(
        ok=winners == 1 and outdated == "refused",
        seen=f"{winners} of {_WRITERS} writers won; a stale write was {outdated}",
        expected=f"1 of {_WRITERS} writers won; a stale write was refused",
    )


@PROBES.probe("missing-object-answer", needs=("a bucket", "the main node"))
def missing_object(node: ProbedNode) -> ProbeResult:
    """The job's role gets 404 for a missing object, not an access-denied error."""
    try:
        node.storage.get(_key(node, "nothing"))
        answer = "an object"
    except ObjectMissing:
        answer = "404"
    except StorageRefused as error:
        answer = f"a refusal ({error})"
    return ProbeResult(ok=answer == "404", seen=answer, expected="404")


@PROBES.probe("s3-if-match-read", needs=("a bucket", "the main node"))
def changed_part(node: ProbedNode) -> ProbeResult:
    """A range request for an object that has changed is refused."""
    from botocore.exceptions import ClientError

    key = _key(node, "part")
    old = node.storage.put(key, b"old bytes")
    node.storage.put(key, b"new bytes")
    wanted = {"Bucket": node.context.bucket, "Key": key, "Range": "bytes=0-2"}
    try:
        # boto3 keeps the quotes of an ETag, and accepts it with or without them.
        data = node.s3().get_object(**wanted, IfMatch=f'"{old.strip(chr(34))}"')["Body"].read()
        answer = f"{len(data)} bytes"
    except ClientError as error:
        code = str(error.response["Error"]["Code"])
        answer = "412" if code in _REFUSED else code
    finally:
        node.storage.delete([key])
    return ProbeResult(ok=answer == "412", seen=answer, expected="412")


@PROBES.probe("least-rights", needs=("AWS", "the main node"))
def least_rights(node: ProbedNode) -> ProbeResult:
    """This workload's role cannot write below a prefix that only data jobs may write to."""
    key = f"{DATASETS_PREFIX}.probe-{node.context.job_id}"
    try:
        node.storage.put(key, b"")
        answer = "written"
        node.storage.delete([key])
    except StorageRefused:
        answer = "denied"
    return ProbeResult(ok=answer == "denied", seen=f"{key}: {answer}", expected="denied")


@PROBES.probe("cache-shared", needs=("torch_xla", "a bucket", "the main node", "check parity"))
def shared_cache(node: ProbedNode) -> ProbeResult:
    """Compiled graphs are in the bucket after a compilation."""
    count = 0
    for _ in node.storage.list(f"{CACHE_PREFIX}neuron/"):
        count += 1
        if count == _MAX_LISTED:
            break
    return ProbeResult(
        ok=count > 0,
        seen=f"{count} objects below {CACHE_PREFIX}neuron/",
        expected="compiled graphs in the bucket",
    )


@PROBES.probe("lustre-client", "lustre-in-container", needs=("Batch", "Lustre", "AWS"))
@PROBES.probe("static-volume", needs=("EKS", "Lustre", "AWS"))
def lustre(node: ProbedNode) -> ProbeResult:
    """The file system is mounted in the container and writable."""
    folder = node.context.lustre
    assert folder is not None
    kind = node.host.file_system_type(folder)
    writable = node.host.is_writable(folder)
    return ProbeResult(
        ok=kind == "lustre" and writable,
        seen=f"{kind or 'nothing'} at {folder}, {'writable' if writable else 'not writable'}",
        expected=f"lustre at {folder}, writable",
    )
