"""Access to AWS: boto3's clients, created on first use.

The protocols list what the rest of the CLI uses of each client, so that tests can pass small
objects instead.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol
from urllib.parse import urlsplit

from jobs.errors import Refusal
from trainium_catalogue.suggest import did_you_mean

Response = Mapping[str, Any]


class SsmClient(Protocol):
    """The part of the boto3 SSM client that is used here."""

    def get_parameters(self, **kwargs: Any) -> Response: ...

    def get_parameters_by_path(self, **kwargs: Any) -> Response: ...


class ManagedInstancesClient(Protocol):
    """The part of the boto3 SSM client that knows which instances take sessions."""

    def describe_instance_information(self, **kwargs: Any) -> Response: ...


class BatchClient(Protocol):
    """The part of the boto3 Batch client that is used here."""

    def submit_job(self, **kwargs: Any) -> Response: ...

    def list_jobs(self, **kwargs: Any) -> Response: ...

    def describe_jobs(self, **kwargs: Any) -> Response: ...

    def terminate_job(self, **kwargs: Any) -> Response: ...

    def describe_job_queues(self, **kwargs: Any) -> Response: ...

    def describe_compute_environments(self, **kwargs: Any) -> Response: ...

    def describe_job_definitions(self, **kwargs: Any) -> Response: ...


class CloudFormationClient(Protocol):
    """The part of the boto3 CloudFormation client that is used here."""

    def get_paginator(self, operation: str) -> Any: ...

    def get_template(self, **kwargs: Any) -> Response: ...


class S3Client(Protocol):
    """The part of the boto3 S3 client that is used here, beside what transfers use."""

    def put_object(self, **kwargs: Any) -> Response: ...

    def get_object(self, **kwargs: Any) -> Response: ...

    def head_object(self, **kwargs: Any) -> Response: ...

    def list_objects_v2(self, **kwargs: Any) -> Response: ...


class LogsClient(Protocol):
    """The part of the boto3 CloudWatch Logs client that is used here."""

    def get_log_events(self, **kwargs: Any) -> Response: ...


class LogStreamsClient(LogsClient, Protocol):
    """The part of the same client that finds the streams of pods."""

    def describe_log_streams(self, **kwargs: Any) -> Response: ...


class EksClient(Protocol):
    """The part of the boto3 EKS client that is used here."""

    def describe_cluster(self, **kwargs: Any) -> Response: ...

    def describe_nodegroup(self, **kwargs: Any) -> Response: ...


class AutoScalingClient(Protocol):
    """The part of the boto3 Auto Scaling client that is used here."""

    def describe_auto_scaling_groups(self, **kwargs: Any) -> Response: ...

    def describe_scaling_activities(self, **kwargs: Any) -> Response: ...


class EcsClient(Protocol):
    """The part of the boto3 ECS client that is used here."""

    def describe_container_instances(self, **kwargs: Any) -> Response: ...


class Ec2Client(Protocol):
    """The part of the boto3 EC2 client that is used here."""

    def describe_security_groups(self, **kwargs: Any) -> Response: ...

    def describe_capacity_reservations(self, **kwargs: Any) -> Response: ...

    def describe_instances(self, **kwargs: Any) -> Response: ...

    def describe_subnets(self, **kwargs: Any) -> Response: ...

    def get_console_output(self, **kwargs: Any) -> Response: ...


class QuotasClient(Protocol):
    """The part of the boto3 Service Quotas client that is used here."""

    def get_service_quota(self, **kwargs: Any) -> Response: ...


class Aws:
    """Clients of one session and region."""

    def __init__(self, region: str | None) -> None:
        # Imported only when a command needs it, so that `--help` and `catalogue` stay fast. boto3's
        # own layer (resources, S3 transfers) only delegates to this session, and takes as long to
        # import as everything else.
        from botocore.session import Session

        self._session = Session()
        if region is not None:
            self._check_region(region)
            self._session.set_config_variable("region", region)

    @property
    def region(self) -> str | None:
        """The region in force: --region, AWS_REGION or the profile's."""
        name = self._session.get_config_variable("region")
        return str(name) if name else None

    def ssm(self) -> SsmClient:
        """Client for the deployment's parameters."""
        client: SsmClient = self._client("ssm", mode="standard", attempts=3)
        return client

    def managed_instances(self) -> ManagedInstancesClient:
        """Client that tells whether an instance takes sessions."""
        client: ManagedInstancesClient = self._client("ssm", mode="standard", attempts=3)
        return client

    def batch(self) -> BatchClient:
        """Client for reading jobs and stopping them."""
        client: BatchClient = self._client("batch", mode="standard", attempts=3)
        return client

    def batch_once(self) -> BatchClient:
        """Client that never retries by itself.

        SubmitJob has no client token (API reference), so a retry after a lost answer would start a
        second job; ``jobs.batch.service`` looks for the first one before it retries.
        """
        client: BatchClient = self._client("batch", mode="standard", attempts=1)
        return client

    def cloudformation(self) -> CloudFormationClient:
        """Client for the deployed stacks."""
        client: CloudFormationClient = self._client("cloudformation", mode="standard", attempts=5)
        return client

    def s3(self) -> S3Client:
        """Client for the bucket; its pauses between attempts suit large transfers."""
        client: S3Client = self._client("s3", mode="standard", attempts=6, connections=32)
        return client

    def logs(self) -> LogStreamsClient:
        """Client for log events; adaptive because GetLogEvents has a low rate limit."""
        client: LogStreamsClient = self._client("logs", mode="adaptive", attempts=8)
        return client

    def eks(self) -> EksClient:
        """Client for the cluster and its node group."""
        client: EksClient = self._client("eks", mode="standard", attempts=3)
        return client

    def autoscaling(self) -> AutoScalingClient:
        """Client for the group of instances behind the node group."""
        client: AutoScalingClient = self._client("autoscaling", mode="standard", attempts=3)
        return client

    def ecs(self) -> EcsClient:
        """Client that finds the instance of a container."""
        client: EcsClient = self._client("ecs", mode="standard", attempts=3)
        return client

    def ec2(self) -> Ec2Client:
        """Client that reads security groups, reservations, instances and subnets."""
        client: Ec2Client = self._client("ec2", mode="standard", attempts=3)
        return client

    def quotas(self) -> QuotasClient:
        """Client that reads the account's quotas."""
        client: QuotasClient = self._client("service-quotas", mode="standard", attempts=3)
        return client

    def reading(self, service: str) -> Any:
        """Client of any service, for probes, which only read."""
        return self._client(service, mode="standard", attempts=4)

    def destroying(self, service: str) -> Any:
        """Client of any service, for `jobs down`, whose caller may destroy the deployment."""
        return self._client(service, mode="standard", attempts=5)

    @property
    def is_emulated(self) -> bool:
        """True if calls go to an endpoint other than AWS (AWS_ENDPOINT_URL)."""
        host = urlsplit(self.reading("sts").meta.endpoint_url).hostname or ""
        return not host.endswith((".amazonaws.com", ".amazonaws.com.cn", ".api.aws"))

    def sts(self) -> Any:
        """Client that signs the cluster's tokens."""
        return self._client("sts", mode="standard", attempts=3)

    @property
    def profile(self) -> str | None:
        """The named profile in force, if any."""
        name = self._session.get_config_variable("profile")
        return str(name) if name else None

    def _check_region(self, region: str) -> None:
        """Refuse a region unknown to botocore: its address could be anybody's."""
        known: set[str] = set()
        for partition in self._session.get_available_partitions():
            known.update(self._session.get_available_regions("batch", partition_name=partition))
            if region in known:
                return
        hint = did_you_mean(region, known)
        if not hint.startswith("did you mean"):
            hint = "a region looks like us-west-2"
        raise Refusal(
            "unknown-region",
            f"--region {region} (or AWS_REGION) names no region that this boto3 knows; {hint}",
        )

    def _client(self, service: str, *, mode: str, attempts: int, connections: int = 10) -> Any:
        from botocore.config import Config

        config = Config(
            connect_timeout=5,
            read_timeout=30,
            max_pool_connections=connections,
            retries={"mode": mode, "total_max_attempts": attempts},
        )
        try:
            client = self._session.create_client(service, config=config)
            address = urlsplit(client.meta.endpoint_url)
            is_one = bool(
                address.scheme in ("http", "https") and address.hostname and address.port != 0
            )
        except ValueError as error:  # of botocore, or of a port that is none
            raise _wrong_endpoint(str(error)) from None
        if not is_one:
            raise _wrong_endpoint(f"{client.meta.endpoint_url!r} is no address of a server")
        return client


def _wrong_endpoint(reason: str) -> Refusal:
    return Refusal(
        "invalid-endpoint",
        f"AWS_ENDPOINT_URL, or endpoint_url of the profile: {reason[:1].lower()}{reason[1:]}; give "
        "one like http://127.0.0.1:5000, or unset it for AWS itself",
    )
