"""A kubeconfig for kubectl and torchx, whose credentials this helper signs without the AWS CLI."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jobs.aws import Aws
from jobs.deployment import Deployment
from jobs.eks.cluster import Endpoint
from jobs.errors import Refusal

Json = dict[str, Any]

_ROOT = Path(__file__).resolve().parents[2]
"""Where `python -m jobs` is found, from whatever folder kubectl is called in."""


def context_name(deployment: Deployment) -> str:
    """Of context, cluster and user."""
    return f"trainium-{deployment.name}"


def entries(deployment: Deployment, endpoint: Endpoint, aws: Aws) -> Json:
    """The kubeconfig of one deployment."""
    assert deployment.eks is not None
    name = context_name(deployment)
    cluster = {"server": endpoint.url}
    if endpoint.certificate:
        cluster["certificate-authority-data"] = endpoint.certificate
    profile = [{"name": "AWS_PROFILE", "value": aws.profile}] if aws.profile else []
    command = {
        "apiVersion": "client.authentication.k8s.io/v1beta1",
        "command": sys.executable,
        "args": ["-m", "jobs", "--region", deployment.region, "token", endpoint.name],
        "env": [{"name": "PYTHONPATH", "value": str(_ROOT)}, *profile],
        "interactiveMode": "Never",
    }
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": name, "cluster": cluster}],
        "users": [{"name": name, "user": {"exec": command}}],
        "contexts": [
            {
                "name": name,
                # torchx lists and watches in the context's namespace.
                "context": {
                    "cluster": name,
                    "user": name,
                    "namespace": deployment.eks.namespace,
                },
            }
        ],
        "current-context": name,
    }


def merged(old: Mapping[str, Any], new: Mapping[str, Any]) -> Json:
    """``old`` with the entries of ``new``, which replace those of the same names."""
    result: Json = {**old, **{key: value for key, value in new.items() if isinstance(value, str)}}
    for section in ("clusters", "users", "contexts"):
        names = {item["name"] for item in new[section]}
        kept = [item for item in old.get(section) or () if item.get("name") not in names]
        result[section] = [*kept, *new[section]]
    return result


def write(path: Path, new: Mapping[str, Any]) -> str | None:
    """Merge into the file, which only its owner may read; refuses one that is no kubeconfig.

    Returns the context that was current before.
    """
    import yaml

    old: Any = {}
    if path.exists():
        try:
            old = yaml.safe_load(path.read_text()) or {}
        except (yaml.YAMLError, UnicodeDecodeError):
            old = None
    if not isinstance(old, dict):
        raise Refusal(
            "not-a-kubeconfig",
            f"{path} is no kubeconfig, and would be lost; give another with --kubeconfig",
        )
    before = old.get("current-context") or None
    # A link, as to a folder that is kept elsewhere, stays one.
    path = path.resolve()
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f"{path.name}.{os.getpid()}")
    partial.touch(mode=0o600)
    partial.write_text(yaml.safe_dump(merged(old, new), sort_keys=False))
    partial.replace(path)
    return before
