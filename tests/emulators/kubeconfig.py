"""Writes a kubeconfig for the emulated cluster."""

from __future__ import annotations

from pathlib import Path

import yaml

from trainium_catalogue.kubernetes import NAMESPACE


def write(path: Path, endpoint: str) -> Path:
    """Write a file with one context, whose namespace TorchX and kubectl take by default."""
    name = "rehearsal"
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": name, "cluster": {"server": endpoint}}],
        "users": [{"name": name, "user": {}}],
        "contexts": [
            {"name": name, "context": {"cluster": name, "user": name, "namespace": NAMESPACE}}
        ],
        "current-context": name,
    }
    path.write_text(yaml.safe_dump(document), encoding="utf-8")
    path.chmod(0o600)
    return path
