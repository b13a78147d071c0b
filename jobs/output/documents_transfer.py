"""The documents of `upload --json` and `download --json`."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from jobs.bucket.downloads import Download
from jobs.bucket.transfers import Item, Outcome
from jobs.bucket.uploads import Upload
from jobs.deployment import Deployment
from jobs.output.documents import Document


def upload_document(deployment: Deployment, planned: Upload, outcome: Outcome | None) -> Document:
    """What ``upload --json`` prints; without an outcome nothing was uploaded."""
    return {
        **_transfer(deployment, planned.prefix, planned.items, outcome),
        "kind": planned.kind,
        "name": planned.name,
        "left_out": list(planned.left_out),
    }


def download_document(
    deployment: Deployment, planned: Download, outcome: Outcome | None, *, to: Path
) -> Document:
    """What ``download --json`` prints; without an outcome nothing was downloaded."""
    return {
        **_transfer(deployment, planned.prefix, planned.items, outcome),
        "run": planned.run,
        "step": planned.step,
        "to": str(to),
    }


def _transfer(
    deployment: Deployment, prefix: str, items: Iterable[Item], outcome: Outcome | None
) -> Document:
    skipped = {item.key for item in outcome.skipped} if outcome else set()

    def action(item: Item) -> str:
        if outcome is None:
            return "dry-run"
        return "skipped" if item.key in skipped else "moved"

    return {
        "deployment": deployment.name,
        "region": deployment.region,
        "uri": f"s3://{deployment.bucket}/{prefix}",
        "files": [
            {"path": str(item.path), "key": item.key, "bytes": item.size, "action": action(item)}
            for item in items
        ],
    }
