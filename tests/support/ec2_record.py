"""Moto's record of what EC2 describes and offers."""

from __future__ import annotations

import gzip
import json
from functools import cache
from importlib.resources import files
from typing import Any

_FOLDER = files("moto") / "ec2" / "resources"
_OFFERINGS = _FOLDER / "instance_type_offerings" / "availability-zone-id"


def _read(path: Any) -> Any:
    """Read a file of the record, which moto compresses in some versions."""
    data = path.read_bytes()
    return json.loads(gzip.decompress(data) if path.name.endswith(".gz") else data)


@cache
def descriptions() -> dict[str, Any]:
    """Return the results of DescribeInstanceTypes, by name."""
    (path,) = (p for p in _FOLDER.iterdir() if p.name.startswith("instance_types.json"))
    data = _read(path)
    return data if isinstance(data, dict) else {item["InstanceType"]: item for item in data}


def offering_regions() -> list[str]:
    """Return the recorded regions."""
    return [path.name.partition(".")[0] for path in _OFFERINGS.iterdir()]


@cache
def types_by_zone(region: str) -> dict[str, set[str]]:
    """Return the instance types that each zone of a region offers, by zone id."""
    (path,) = (p for p in _OFFERINGS.iterdir() if p.name.partition(".")[0] == region)
    found: dict[str, set[str]] = {}
    for row in _read(path):
        found.setdefault(row["Location"], set()).add(row["InstanceType"])
    return found
