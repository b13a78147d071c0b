"""Clients and environments that can reach only the rehearsal's server."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import boto3
from botocore.config import Config
from botocore.exceptions import ClientError

from rehearsal.deployment.state import DEPLOYMENT, ROOT
from trainium_catalogue import contract

ACCOUNT = "123456789012"
CREDENTIALS = {"AWS_ACCESS_KEY_ID": "rehearsal", "AWS_SECRET_ACCESS_KEY": "rehearsal"}
SUBMITTER = "submitter"
"""IAM user who submits the jobs, with the published policy for submitters."""
POLICY = ROOT / "docs" / "submitter-policy.json"
# The user's settings of these tools must neither reach a real account nor affect the result.
_EXCLUDED = ("AWS_", "CDK_", "TRAINIUM_", "JSII_DEBUG")


class EmulatedAccount:
    """The emulated account in one region."""

    def __init__(self, *, endpoint: str, region: str) -> None:
        self.endpoint, self.region = endpoint, region
        # Shared, because every session reads the list of all regions and services.
        self._session = boto3.session.Session(
            aws_access_key_id=CREDENTIALS["AWS_ACCESS_KEY_ID"],
            aws_secret_access_key=CREDENTIALS["AWS_SECRET_ACCESS_KEY"],
            region_name=region,
        )
        self._clients: dict[str, Any] = {}
        # Clients are thread-safe, but a session is not.
        self._lock = threading.Lock()

    def client(self, service: str) -> Any:
        """Return a boto3 client, one per service."""
        with self._lock:
            if service not in self._clients:
                self._clients[service] = self._session.client(
                    service,
                    endpoint_url=self.endpoint,
                    # Not all resolvers support <bucket>.localhost.
                    config=Config(s3={"addressing_style": "path"}, retries={"max_attempts": 2}),
                )
            return self._clients[service]


class DeploymentBucket:
    """The deployment's bucket."""

    def __init__(self, aws: EmulatedAccount) -> None:
        parameter = contract.ssm_parameter(DEPLOYMENT, contract.SSM_BUCKET)
        response = aws.client("ssm").get_parameter(Name=parameter)
        self.name = str(response["Parameter"]["Value"])
        self._s3 = aws.client("s3")

    def text(self, key: str) -> str:
        """Return an object's text; empty if it does not exist."""
        try:
            body = self._s3.get_object(Bucket=self.name, Key=key)["Body"].read()
        except ClientError:
            return ""
        return str(body.decode())

    def document(self, key: str) -> dict[str, Any]:
        """Read a JSON document; empty if it does not exist."""
        document: dict[str, Any] = json.loads(self.text(key) or "{}")
        return document

    def sizes(self, prefix: str) -> dict[str, int]:
        """Return the size of every object under ``prefix``, by relative key."""
        pages = self._s3.get_paginator("list_objects_v2").paginate(Bucket=self.name, Prefix=prefix)
        return {
            entry["Key"].removeprefix(prefix): entry["Size"]
            for page in pages
            for entry in page.get("Contents", ())
        }


def create_submitter(aws: EmulatedAccount) -> dict[str, str]:
    """Create the user who submits jobs; return its credentials as environment variables."""
    iam = aws.client("iam")
    iam.create_user(UserName=SUBMITTER)
    key = iam.create_access_key(UserName=SUBMITTER)["AccessKey"]
    return {
        "AWS_ACCESS_KEY_ID": key["AccessKeyId"],
        "AWS_SECRET_ACCESS_KEY": key["SecretAccessKey"],
    }


def allow_submitter(aws: EmulatedAccount) -> None:
    """Embed the published policy in the user, with the deployment's names filled in."""
    text = POLICY.read_text(encoding="utf-8")
    for placeholder, name in (
        ("REGION", aws.region),
        ("ACCOUNT", ACCOUNT),
        ("DEPLOYMENT", DEPLOYMENT),
        ("BUCKET", DeploymentBucket(aws).name),
    ):
        text = text.replace(placeholder, name)
    aws.client("iam").put_user_policy(UserName=SUBMITTER, PolicyName=SUBMITTER, PolicyDocument=text)


def client_environment(
    base: Mapping[str, str], *, aws: EmulatedAccount | None, docker: Path, bin_folder: Path
) -> dict[str, str]:
    """Return the CLIs' environment: the user's, without access to any AWS account."""
    environment = {name: value for name, value in base.items() if not name.startswith(_EXCLUDED)}
    environment |= CREDENTIALS
    environment |= {
        "PATH": f"{bin_folder}:{base.get('PATH', '/usr/bin:/bin')}",
        # Use neither profiles nor the metadata service of a cloud machine.
        "AWS_CONFIG_FILE": "/dev/null",
        "AWS_SHARED_CREDENTIALS_FILE": "/dev/null",
        "AWS_EC2_METADATA_DISABLED": "true",
        "NO_PROXY": "localhost,127.0.0.1",
        "no_proxy": "localhost,127.0.0.1",
        "CDK_DOCKER": str(docker),
        "CDK_DISABLE_CLI_TELEMETRY": "true",
    }
    if aws is not None:
        environment |= endpoint_environment(aws)
    return environment


def endpoint_environment(aws: EmulatedAccount) -> dict[str, str]:
    """Return the variables that point a CLI at the server."""
    return {
        "AWS_ENDPOINT_URL": aws.endpoint,
        "AWS_REGION": aws.region,
        "AWS_DEFAULT_REGION": aws.region,
    }
