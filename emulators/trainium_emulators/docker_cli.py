"""Emulates docker for the CDK CLI: records requested builds, and pushes a small image.

It implements the commands that cdk-assets runs (``aws-cdk/lib/index.js``, class Docker) and refuses
all others.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import boto3

# Docker's own exit codes for a bad command line and for an unknown image.
UNSUPPORTED = 125
UNKNOWN_IMAGE = 1

IMAGE = re.compile(
    r"(?P<account>\d{12})\.dkr\.ecr\.(?P<region>[a-z0-9-]+)\.[a-z.]+/(?P<repository>[^:]+):(?P<tag>.+)"
)
_MANIFEST_TYPE = "application/vnd.docker.distribution.manifest.v2+json"

Entry = dict[str, Any]


class UnsupportedRequest(Exception):
    """Raised for docker features that this emulator does not support."""

    def __init__(self, message: str, code: int = UNSUPPORTED):
        super().__init__(message)
        self.code = code


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> Any:
        raise UnsupportedRequest(f"{self.prog}: {message}")


def read_record(record: Path) -> list[Entry]:
    """Read all recorded requests."""
    if not record.exists():
        return []
    return [json.loads(line) for line in record.read_text(encoding="utf-8").splitlines()]


def built_images(entries: Sequence[Entry]) -> dict[str, Entry]:
    """Return the build behind each local image, by tag."""
    images: dict[str, Entry] = {}
    for entry in entries:
        if entry["command"] == "build":
            images[entry["tag"]] = entry
        elif entry["command"] == "tag":
            images[entry["target"]] = images[entry["source"]]
    return images


def build(argv: Sequence[str], known: dict[str, Entry]) -> Entry:
    """Record a build: base image, platform, Dockerfile and everything in the context."""
    parser = _Parser("docker build", add_help=False, allow_abbrev=False)
    parser.add_argument("--build-arg", action="append", default=[])
    parser.add_argument("--tag", required=True)
    parser.add_argument("--file", default="Dockerfile")
    parser.add_argument("--platform", required=True)
    parser.add_argument("context", type=Path)
    options = parser.parse_args(argv)
    context: Path = options.context.resolve()
    dockerfile = context / options.file
    if not dockerfile.is_file():
        raise UnsupportedRequest(
            f"unable to prepare context: {dockerfile} does not exist", UNKNOWN_IMAGE
        )
    arguments = dict(pair.split("=", 1) for pair in options.build_arg)
    declared = re.findall(r"^ARG\s+(\w+)", dockerfile.read_text(encoding="utf-8"), re.MULTILINE)
    if unknown := sorted(set(arguments) - set(declared)):
        raise UnsupportedRequest(f"build arguments that {options.file} does not declare: {unknown}")
    return {
        "command": "build",
        "tag": options.tag,
        "platform": options.platform,
        "build_args": arguments,
        "base_image": arguments.get("BASE_IMAGE"),
        "context": str(context),
        "dockerfile": options.file,
        "dockerfile_sha256": hashlib.sha256(dockerfile.read_bytes()).hexdigest(),
        "context_files": sorted(
            str(path.relative_to(context)) for path in context.rglob("*") if path.is_file()
        ),
    }


def inspect(argv: Sequence[str], known: dict[str, Entry]) -> Entry:
    """Report whether an image is known."""
    (tag,) = _require_names(argv, 1, "inspect")
    _find_image(tag, known)
    return {"command": "inspect", "tag": tag}


def tag(argv: Sequence[str], known: dict[str, Entry]) -> Entry:
    """Give a built image another name."""
    source, target = _require_names(argv, 2, "tag")
    _find_image(source, known)
    return {"command": "tag", "source": source, "target": target}


def login(argv: Sequence[str], known: dict[str, Entry]) -> Entry:
    """Read the password from standard input, as docker does, and discard it."""
    parser = _Parser("docker login", add_help=False, allow_abbrev=False)
    parser.add_argument("--username", required=True)
    parser.add_argument("--password-stdin", action="store_true", required=True)
    parser.add_argument("registry")
    options = parser.parse_args(argv)
    if not sys.stdin.read().strip():
        raise UnsupportedRequest("login: no password on standard input")
    return {"command": "login", "username": options.username, "registry": options.registry}


def push(argv: Sequence[str], known: dict[str, Entry]) -> Entry:
    """Push an image, so that the repository is not empty when it is destroyed."""
    (name,) = _require_names(argv, 1, "push")
    source = _find_image(name, known)
    if (parts := IMAGE.fullmatch(name)) is None:
        raise UnsupportedRequest(f"push: {name} is not in an ECR repository")
    pushed = boto3.client("ecr", region_name=parts["region"]).put_image(
        registryId=parts["account"],
        repositoryName=parts["repository"],
        imageTag=parts["tag"],
        imageManifest=json.dumps(manifest(source)),
        imageManifestMediaType=_MANIFEST_TYPE,
    )["image"]
    return {"command": "push", "image": name, "digest": pushed["imageId"]["imageDigest"]}


def manifest(source: Entry) -> Entry:
    """Return an image manifest without layers, with the build's inputs as configuration."""
    config = json.dumps(source, sort_keys=True).encode()
    return {
        "schemaVersion": 2,
        "mediaType": _MANIFEST_TYPE,
        "config": {
            "mediaType": "application/vnd.docker.container.image.v1+json",
            "size": len(config),
            "digest": f"sha256:{hashlib.sha256(config).hexdigest()}",
        },
        "layers": [],
    }


def _require_names(argv: Sequence[str], number: int, command: str) -> Sequence[str]:
    if len(argv) != number or any(word.startswith("-") for word in argv):
        raise UnsupportedRequest(
            f"{command} supports exactly {number} name(s), but was given: {list(argv)}"
        )
    return argv


def _find_image(image: str, known: dict[str, Entry]) -> Entry:
    if image not in known:
        raise UnsupportedRequest(f"no such image: {image}", UNKNOWN_IMAGE)
    return known[image]


COMMANDS: dict[str, Callable[[Sequence[str], dict[str, Entry]], Entry]] = {
    "build": build,
    "inspect": inspect,
    "tag": tag,
    "login": login,
    "push": push,
}


def main(arguments: Sequence[str]) -> int:
    """Execute the docker command that follows ``--record FILE``."""
    if len(arguments) < 3 or arguments[0] != "--record":
        print("docker emulator: usage: --record FILE COMMAND [ARGUMENT ...]", file=sys.stderr)
        return UNSUPPORTED
    record, command, argv = Path(arguments[1]), arguments[2], arguments[3:]
    try:
        if command not in COMMANDS:
            raise UnsupportedRequest(
                f"docker {command} is not supported, because the CDK CLI does not call it"
            )
        entry = COMMANDS[command](argv, built_images(read_record(record)))
    except UnsupportedRequest as refusal:
        print(f"docker emulator: {refusal}", file=sys.stderr)
        return refusal.code
    with record.open("a", encoding="utf-8") as stream:
        stream.write(json.dumps({**entry, "at": round(time.time(), 3)}) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
