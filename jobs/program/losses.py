"""The losses printed by a program's run, merged over all attempts."""

from __future__ import annotations

from collections.abc import Sequence

from jobs.bucket.objects import Bucket
from jobs.program.record import read_record
from trainium_catalogue import contract
from trainium_catalogue.typed_json import read_object

_EXAMPLE = r"'step=(?P<step>\d+) loss=(?P<loss>\S+)'"


def read_losses(bucket: Bucket, run: str) -> dict[int, float]:
    """Read the losses by step; later attempts replace repeated steps."""
    keys = [item.key for item in bucket.objects(contract.run_key(run, contract.PROGRAM_LOSSES))]
    return joined([_points(bucket.read(key) or b"") for key in sorted(keys)])


def joined(attempts: Sequence[dict[int, float]]) -> dict[int, float]:
    """Merge the losses of attempts: a later one replaces all steps from its first step on."""
    losses: dict[int, float] = {}
    for points in attempts:
        if points:
            first = min(points)
            losses = {step: loss for step, loss in losses.items() if step < first} | points
    return losses


def why_no_losses(bucket: Bucket, run: str) -> str:
    """Explain why there is no curve, and how to get one."""
    status = bucket.document(contract.run_key(run, contract.RUN_STATUS)) or {}
    if not status.get("last_line"):
        return f"run {run} has printed nothing yet, so there is no curve to draw"
    ran = read_record(bucket, run)
    pattern = str(ran[-1].parameters.get("progress-pattern") or "") if ran else ""
    again = f"submit the run with --progress-pattern {_EXAMPLE} for lines like `step=20 loss=2.5`"
    if pattern and "(?P<loss>" not in pattern:
        return f"run {run}: --progress-pattern {pattern} has no group for the loss; {again}"
    if pattern:
        return (
            f"run {run}: fewer than two lines with a loss matched --progress-pattern {pattern}; "
            "test it with Python's re.search on a line of the log"
        )
    return (
        f"run {run}: fewer than two lines have a loss in the format of Hugging Face, Lightning, "
        f"tqdm or nanoGPT; for other formats {again}"
    )


def _points(data: bytes) -> dict[int, float]:
    points: dict[int, float] = {}
    for line in data.decode(errors="replace").splitlines():
        try:
            document = read_object(line)
            points[int(document["step"])] = float(document["loss"])
        except (KeyError, TypeError, ValueError, OverflowError):
            continue  # not a line of a step and its loss
    return points
