"""Charts and manifests that a template puts into its cluster, with placeholders for references."""

from __future__ import annotations

import json
from typing import Any

from tests.stacks.synthesis import Deployment, deployment

EKS: dict[str, object] = {
    "orchestrators": "eks",
    "eks_admin_arns": "arn:aws:iam::111122223333:role/admin",
    "eks_endpoint_cidrs": "203.0.113.7/32",
}

CHART = "Custom::AWSCDK-EKS-HelmChart"
MANIFEST = "Custom::AWSCDK-EKS-KubernetesResource"


def with_cluster(**keys: object) -> Deployment:
    """Synthesize a deployment on EKS."""
    return deployment(**{**EKS, **keys})


def plain(value: Any) -> str:
    """Render a property as text, with placeholders where CloudFormation fills something in."""
    match value:
        case str():
            return value
        case {"Fn::Join": [str(separator), list(parts)]}:
            return separator.join(plain(part) for part in parts)
        case {"Fn::Select": [0, {"Fn::Split": ["-", of]}]}:
            return f"<first part of {plain(of)}>"
        case {"Fn::Select": [2, {"Fn::Split": ["/", {"Ref": "AWS::StackId"}]}]}:
            return "<the stack's own id>"
        case {"Ref": str(name)} | {"Fn::ImportValue": str(name)} | {"Fn::Sub": str(name)}:
            return f"<{name}>"
        case {"Fn::GetAtt": [str(name), str(attribute)]}:
            return f"<{name}.{attribute}>"
    raise TypeError(value)


def objects_of(made: Deployment) -> list[dict[str, Any]]:
    """List every object that the stack applies."""
    return [
        each
        for properties in made.resources("eks", MANIFEST)
        for each in json.loads(plain(properties["Manifest"]))
    ]


def object_of(made: Deployment, kind: str, name: str) -> dict[str, Any]:
    """Find the one object of a kind and name."""
    (found,) = (
        each
        for each in objects_of(made)
        if (each["kind"], each["metadata"]["name"]) == (kind, name)
    )
    return found


def chart_values(made: Deployment) -> dict[str, dict[str, Any]]:
    """Read the values of every chart, by release."""
    return {
        properties["Release"]: json.loads(plain(properties["Values"]))
        for properties in made.resources("eks", CHART)
    }
