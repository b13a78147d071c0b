"""Draw docs/architecture.svg from the synthesized templates; run by `make diagram`.

Boxes are the templates' resources, arrows are references. Resource types that are not in `SHOWN`
are hidden, and arrows pass through them.
"""

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent.parent

SHOWN = {
    "AWS::EC2::VPC": "VPC",
    "AWS::EC2::Subnet": "subnet",
    "AWS::EC2::NatGateway": "NAT gateway",
    "AWS::EC2::VPCEndpoint": "VPC endpoint",
    "AWS::EC2::SecurityGroup": "security group",
    "AWS::S3::Bucket": "S3 bucket",
    "AWS::ECR::Repository": "ECR repository",
    "AWS::EC2::LaunchTemplate": "launch template",
    "AWS::EC2::PlacementGroup": "placement group",
    "AWS::Batch::ComputeEnvironment": "Batch compute environment",
    "AWS::Batch::JobQueue": "Batch job queue",
    "AWS::Batch::JobDefinition": "Batch job definition",
    "AWS::EKS::Cluster": "EKS cluster",
    "AWS::EKS::Nodegroup": "EKS node group",
    "AWS::EKS::Addon": "EKS add-on",
    "AWS::EKS::PodIdentityAssociation": "service account's role",
    "Custom::AWSCDK-EKS-HelmChart": "Helm chart",
    "Custom::AWSCDK-EKS-KubernetesResource": "Kubernetes objects",
    "AWS::FSx::FileSystem": "FSx for Lustre",
    "AWS::KMS::Key": "KMS key",
    "AWS::Logs::LogGroup": "log group",
    "AWS::SSM::Parameter": "SSM parameters",
}
"""Resource types with a box, and their labels."""

Node = tuple[str, str]
"""Stack name and logical id."""


def references(value: Any) -> Iterator[tuple[str, str]]:
    """Yield ``("local", id)``, ``("export", name)`` and ``("text", string)`` found in ``value``."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            if key == "Ref" and isinstance(inner, str):
                yield "local", inner
            elif key == "Fn::GetAtt":
                yield "local", inner[0] if isinstance(inner, list) else inner.split(".")[0]
            elif key == "Fn::ImportValue" and isinstance(inner, str):
                yield "export", inner
            else:
                yield from references(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from references(inner)
    elif isinstance(value, str):
        yield "text", value


def read_graph(
    templates: Mapping[str, dict[str, Any]],
) -> tuple[dict[Node, str], dict[Node, set[Node]]]:
    """Return the type and the references of every resource."""
    exports: dict[str, Node] = {}
    repositories: dict[str, Node] = {}
    types: dict[Node, str] = {}
    edges: dict[Node, set[Node]] = {}
    for stack, template in templates.items():
        for output in template.get("Outputs", {}).values():
            for kind, target in references(output["Value"]):
                if kind == "local" and "Export" in output:
                    exports[str(output["Export"]["Name"])] = (stack, target)
        for logical_id, resource in template["Resources"].items():
            types[stack, logical_id] = resource["Type"]
            # An image does not reference its repository: the CLI pushes by name.
            if resource["Type"] == "AWS::ECR::Repository":
                repositories[f"/{resource['Properties']['RepositoryName']}:"] = (stack, logical_id)
    for stack, template in templates.items():
        for logical_id, resource in template["Resources"].items():
            targets: set[Node | None] = set()
            for kind, name in references(resource.get("Properties", {})):
                if kind == "text":
                    targets |= {node for part, node in repositories.items() if part in name}
                else:
                    targets.add((stack, name) if kind == "local" else exports.get(name))
            edges[stack, logical_id] = {node for node in targets if node in types}
    return types, edges


def shown_targets(
    node: Node, types: Mapping[Node, str], edges: Mapping[Node, set[Node]]
) -> set[Node]:
    """Return the nearest shown resources that ``node`` references, through hidden ones."""
    targets: set[Node] = set()
    seen, waiting = {node}, [node]
    while waiting:
        for target in edges[waiting.pop()] - seen:
            seen.add(target)
            if types[target] in SHOWN:
                targets.add(target)
            else:
                waiting.append(target)
    return targets


def box(node: Node, types: Mapping[Node, str], template: Mapping[str, Any]) -> str:
    """Return the label of the box that ``node`` shares with similar resources of its stack."""
    properties = template["Resources"][node[1]].get("Properties", {})
    words = SHOWN[types[node]]
    if types[node] == "AWS::EC2::Subnet":
        public = "Public" in node[1]
        words = f"{'public' if public else 'private'} {words}"
    elif types[node] == "AWS::EC2::VPCEndpoint":
        words = f"{properties.get('VpcEndpointType', 'Gateway')} {words}".lower()
        words = words.replace("vpc", "VPC")
    return words


def dot(templates: Mapping[str, dict[str, Any]]) -> str:
    """Render the diagram in Graphviz's language."""
    types, edges = read_graph(templates)
    boxes: dict[tuple[str, str], int] = {}
    box_of: dict[Node, tuple[str, str]] = {}
    for node, kind in types.items():
        if kind in SHOWN:
            key = (node[0], box(node, types, templates[node[0]]))
            box_of[node] = key
            boxes[key] = boxes.get(key, 0) + 1
    arrows = {
        (box_of[node], box_of[target])
        for node in box_of
        for target in shown_targets(node, types, edges)
        if box_of[node] != box_of[target]
    }
    # Drop arrows implied by a longer path.
    arrows = {
        (start, end)
        for start, end in arrows
        if not any((start, via) in arrows and (via, end) in arrows for via in boxes)
    }
    lines = [
        "digraph {",
        '  rankdir=LR; fontname="Helvetica"; nodesep=0.25; ranksep=0.8;',
        '  node [shape=box style="rounded,filled" fillcolor=white fontname="Helvetica" '
        'margin="0.3,0.1"];',
        '  edge [color="#777777" arrowsize=0.7];',
    ]
    for stack in templates:
        lines.append(f'  subgraph "cluster_{stack}" {{ label="{stack}"; style="rounded,filled";')
        lines.append('    color="#cccccc"; fillcolor="#f4f7fb";')
        for (owner, words), count in boxes.items():
            if owner == stack:
                times = f" x {count}" if count > 1 else ""
                lines.append(f'    "{owner}/{words}" [label="{words}{times}"];')
        lines.append("  }")
    lines += [f'  "{a[0]}/{a[1]}" -> "{b[0]}/{b[1]}";' for a, b in sorted(arrows)]
    return "\n".join([*lines, "}"])


def main() -> None:
    """Read the templates in build/diagram and write docs/architecture.svg."""
    assembly = ROOT / "build" / "diagram"
    manifest = json.loads((assembly / "manifest.json").read_text())
    templates = {
        artifact["displayName"]: json.loads(
            (assembly / artifact["properties"]["templateFile"]).read_text()
        )
        for artifact in manifest["artifacts"].values()
        if artifact["type"] == "aws:cloudformation:stack"
    }
    drawn = subprocess.run(
        ["node", str(Path(__file__).parent / "render.mjs")],
        input=dot(templates),
        text=True,
        stdout=subprocess.PIPE,
    )
    if drawn.returncode:
        sys.exit("drawing failed; see the message above")
    (ROOT / "docs" / "architecture.svg").write_text(drawn.stdout)


if __name__ == "__main__":
    main()
