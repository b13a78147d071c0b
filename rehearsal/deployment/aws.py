"""Clients and environments that can reach the rehearsal's server and nothing else."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import boto3
from botocore.config import Config

from rehearsal.deployment.state import DEPLOYMENT, ROOT
from trainium_catalogue import contract

ACCOUNT = "123456789012"
CREDENTIALS = {"AWS_ACCESS_KEY_ID": "rehearsal", "AWS_SECRET_ACCESS_KEY": "rehearsal"}
SUBMITTER = "submitter"
"""IAM user who runs the jobs, with the policy that is published for submitters."""
POLICY = ROOT / "docs" / "submitter-policy.json"
# The user's settings for these tools must neither reach a real account nor change the outcome.
_FOREIGN = ("AWS_", "CDK_", "TRAINIUM_", "JSII_DEBUG")


class Aws:
    """The emulated account in one region."""

    def __init__(self, *, endpoint: str, region: str) -> None:
        self.endpoint, self.region = endpoint, region
        # Shared: each session would read the list of all regions and services again.
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
                    # Not every resolver resolves <bucket>.localhost.
                    config=Config(s3={"addressing_style": "path"}, retries={"max_attempts": 2}),
                )
            return self._clients[service]


def create_submitter(aws: Aws) -> dict[str, str]:
    """Create the user who submits; returns its credentials as variables."""
    iam = aws.client("iam")
    iam.create_user(UserName=SUBMITTER)
    key = iam.create_access_key(UserName=SUBMITTER)["AccessKey"]
    return {
        "AWS_ACCESS_KEY_ID": key["AccessKeyId"],
        "AWS_SECRET_ACCESS_KEY": key["SecretAccessKey"],
    }


def allow_submitter(aws: Aws) -> None:
    """Attach the published policy, with the names of the deployment put in."""
    parameter = contract.ssm_parameter(DEPLOYMENT, contract.SSM_BUCKET)
    bucket = aws.client("ssm").get_parameter(Name=parameter)["Parameter"]["Value"]
    text = POLICY.read_text(encoding="utf-8")
    for placeholder, name in (
        ("REGION", aws.region),
        ("ACCOUNT", ACCOUNT),
        ("DEPLOYMENT", DEPLOYMENT),
        ("BUCKET", bucket),
    ):
        text = text.replace(placeholder, name)
    aws.client("iam").put_user_policy(UserName=SUBMITTER, PolicyName=SUBMITTER, PolicyDocument=text)


def desk_environment(
    base: Mapping[str, str], *, aws: Aws | None, docker: Path, bin_folder: Path
) -> dict[str, str]:
    """Environment of the CLIs: the user's, minus anything that leads to an AWS account."""
    environment = {name: value for name, value in base.items() if not name.startswith(_FOREIGN)}
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


def endpoint_environment(aws: Aws) -> dict[str, str]:
    """Variables that point a CLI at the server."""
    return {
        "AWS_ENDPOINT_URL": aws.endpoint,
        "AWS_REGION": aws.region,
        "AWS_DEFAULT_REGION": aws.region,
    }
