"""Access to AWS: boto3 clients, created on first use.

The protocols list the operations of each client that the CLI uses, so that tests can pass small
fakes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol
from urllib.parse import urlsplit

from jobs.errors import Refusal
from trainium_catalogue.suggest import did_you_mean

Response = Mapping[str, Any]


def pages(
    call: Callable[..., Response], *, token: str = "nextToken", **arguments: Any
) -> Iterator[Response]:
    """Yield the pages of a list; ``token`` is the name of the next page's token."""
    following: dict[str, str] = {}
    while True:
        page = call(**arguments, **following)
        yield page
        if not page.get(token):
            return
        following = {token: page[token]}


class SsmClient(Protocol):
    """Subset of the boto3 SSM client."""

    def get_parameters(self, **kwargs: Any) -> Response: ...

    def get_parameters_by_path(self, **kwargs: Any) -> Response: ...


class ManagedInstancesClient(Protocol):
    """Subset of the boto3 SSM client that lists instances accepting sessions."""

    def describe_instance_information(self, **kwargs: Any) -> Response: ...


class BatchClient(Protocol):
    """Subset of the boto3 Batch client."""

    def submit_job(self, **kwargs: Any) -> Response: ...

    def list_jobs(self, **kwargs: Any) -> Response: ...

    def describe_jobs(self, **kwargs: Any) -> Response: ...

    def terminate_job(self, **kwargs: Any) -> Response: ...

    def cancel_job(self, **kwargs: Any) -> Response: ...

    def describe_job_queues(self, **kwargs: Any) -> Response: ...

    def describe_compute_environments(self, **kwargs: Any) -> Response: ...

    def describe_job_definitions(self, **kwargs: Any) -> Response: ...


class CloudFormationClient(Protocol):
    """Subset of the boto3 CloudFormation client."""

    def get_paginator(self, operation: str) -> Any: ...

    def get_template(self, **kwargs: Any) -> Response: ...


class S3Client(Protocol):
    """Subset of the boto3 S3 client, without the operations used by transfers."""

    def put_object(self, **kwargs: Any) -> Response: ...

    def get_object(self, **kwargs: Any) -> Response: ...

    def head_object(self, **kwargs: Any) -> Response: ...

    def list_objects_v2(self, **kwargs: Any) -> Response: ...


class LogsClient(Protocol):
    """Subset of the boto3 CloudWatch Logs client."""

    def get_log_events(self, **kwargs: Any) -> Response: ...


class LogStreamsClient(LogsClient, Protocol):
    """Subset of the same client that finds the log streams of pods."""

    def describe_log_streams(self, **kwargs: Any) -> Response: ...


class EksClient(Protocol):
    """Subset of the boto3 EKS client."""

    def describe_cluster(self, **kwargs: Any) -> Response: ...

    def describe_nodegroup(self, **kwargs: Any) -> Response: ...


class AutoScalingClient(Protocol):
    """Subset of the boto3 Auto Scaling client."""

    def describe_auto_scaling_groups(self, **kwargs: Any) -> Response: ...

    def describe_scaling_activities(self, **kwargs: Any) -> Response: ...


class EcsClient(Protocol):
    """Subset of the boto3 ECS client."""

    def describe_container_instances(self, **kwargs: Any) -> Response: ...


class Ec2Client(Protocol):
    """Subset of the boto3 EC2 client."""

    def describe_security_groups(self, **kwargs: Any) -> Response: ...

    def describe_capacity_reservations(self, **kwargs: Any) -> Response: ...

    def describe_instances(self, **kwargs: Any) -> Response: ...

    def describe_subnets(self, **kwargs: Any) -> Response: ...

    def get_console_output(self, **kwargs: Any) -> Response: ...

    def describe_images(self, **kwargs: Any) -> Response: ...

    def describe_instance_type_offerings(self, **kwargs: Any) -> Response: ...

    def describe_vpc_endpoints(self, **kwargs: Any) -> Response: ...


class EcrClient(Protocol):
    """Subset of the boto3 ECR client."""

    def batch_get_image(self, **kwargs: Any) -> Response: ...


class KmsClient(Protocol):
    """Subset of the boto3 KMS client."""

    def describe_key(self, **kwargs: Any) -> Response: ...


class QuotasClient(Protocol):
    """Subset of the boto3 Service Quotas client."""

    def get_service_quota(self, **kwargs: Any) -> Response: ...


class Aws:
    """Clients for one session and region."""

    def __init__(self, region: str | None) -> None:
        # Imported here to keep `--help` and `catalogue` fast. boto3's own layer (resources, S3
        # transfers) only delegates to this session, and would double the import time.
        from botocore.session import Session

        self._session = Session()
        self._clients: dict[tuple[Any, ...], Any] = {}
        if region is not None:
            self._check_region(region)
            self._session.set_config_variable("region", region)

    @property
    def region(self) -> str | None:
        """The effective region: --region, AWS_REGION or the profile's."""
        name = self._session.get_config_variable("region")
        return str(name) if name else None

    def ssm(self) -> SsmClient:
        """Client for the deployment's parameters."""
        client: SsmClient = self._client("ssm", mode="standard", attempts=3)
        return client

    def managed_instances(self) -> ManagedInstancesClient:
        """Client that reports whether an instance accepts sessions."""
        client: ManagedInstancesClient = self._client("ssm", mode="standard", attempts=3)
        return client

    def batch(self) -> BatchClient:
        """Client for reading and stopping jobs."""
        client: BatchClient = self._client("batch", mode="standard", attempts=3)
        return client

    def batch_once(self) -> BatchClient:
        """Client without automatic retries.

        SubmitJob has no client token (API reference), so a retry after a lost response would start
        a second job; ``jobs.batch.service`` checks for the first one before retrying.
        """
        client: BatchClient = self._client("batch", mode="standard", attempts=1)
        return client

    def cloudformation(self) -> CloudFormationClient:
        """Client for the deployed stacks."""
        client: CloudFormationClient = self._client("cloudformation", mode="standard", attempts=5)
        return client

    def s3(self) -> S3Client:
        """Client for the bucket, with retries suited to large transfers."""
        client: S3Client = self._client("s3", mode="standard", attempts=6, connections=32)
        return client

    def logs(self) -> LogStreamsClient:
        """Client for logs, with adaptive retries because GetLogEvents has a low rate limit."""
        client: LogStreamsClient = self._client("logs", mode="adaptive", attempts=8)
        return client

    def eks(self) -> EksClient:
        """Client for the cluster and its node groups."""
        client: EksClient = self._client("eks", mode="standard", attempts=3)
        return client

    def autoscaling(self) -> AutoScalingClient:
        """Client for the Auto Scaling groups of the node groups."""
        client: AutoScalingClient = self._client("autoscaling", mode="standard", attempts=3)
        return client

    def ecs(self) -> EcsClient:
        """Client that finds the instance of a container."""
        client: EcsClient = self._client("ecs", mode="standard", attempts=3)
        return client

    def ec2(self) -> Ec2Client:
        """Client for reading networks, reservations, instances and images."""
        client: Ec2Client = self._client("ec2", mode="standard", attempts=3)
        return client

    def ecr(self, region: str) -> EcrClient:
        """Client for a region's registry; jobs may pull images from another region."""
        client: EcrClient = self._client("ecr", mode="standard", attempts=3, region=region)
        return client

    def kms(self) -> KmsClient:
        """Client for the state of keys."""
        client: KmsClient = self._client("kms", mode="standard", attempts=3)
        return client

    def quotas(self) -> QuotasClient:
        """Client for the account's quotas."""
        client: QuotasClient = self._client("service-quotas", mode="standard", attempts=3)
        return client

    def client(self, service: str) -> Any:
        """Client for reading from any service."""
        return self._client(service, mode="standard", attempts=4)

    def teardown_client(self, service: str) -> Any:
        """Client for any service, for `jobs down`, which changes and destroys the deployment."""
        return self._client(service, mode="standard", attempts=5)

    @property
    def is_emulated(self) -> bool:
        """True if calls go to an endpoint other than AWS's (AWS_ENDPOINT_URL)."""
        host = urlsplit(self.client("sts").meta.endpoint_url).hostname or ""
        return not host.endswith((".amazonaws.com", ".amazonaws.com.cn", ".api.aws"))

    def sts(self) -> Any:
        """A new client, which signs tokens of one cluster."""
        return self._create("sts", mode="standard", attempts=3)

    @property
    def profile(self) -> str | None:
        """The effective named profile, if any."""
        name = self._session.get_config_variable("profile")
        return str(name) if name else None

    def _check_region(self, region: str) -> None:
        """Refuse a region unknown to botocore: its hostname could belong to someone else."""
        known: set[str] = set()
        for partition in self._session.get_available_partitions():
            known.update(self._session.get_available_regions("batch", partition_name=partition))
            if region in known:
                return
        hint = did_you_mean(region, known)
        if not hint.startswith("did you mean"):
            hint = "specify a region such as us-west-2"
        raise Refusal(
            "unknown-region",
            f"--region {region} (or AWS_REGION) is not a region known to boto3; {hint}",
        )

    def _client(self, service: str, **settings: Any) -> Any:
        """Return the client with these settings, which keeps its connections between calls."""
        key = service, *sorted(settings.items())
        if key not in self._clients:
            self._clients[key] = self._create(service, **settings)
        return self._clients[key]

    def _create(
        self,
        service: str,
        *,
        mode: str,
        attempts: int,
        connections: int = 10,
        region: str | None = None,
    ) -> Any:
        from botocore.config import Config

        config = Config(
            connect_timeout=5,
            read_timeout=30,
            max_pool_connections=connections,
            retries={"mode": mode, "total_max_attempts": attempts},
        )
        try:
            client = self._session.create_client(service, region_name=region, config=config)
            address = urlsplit(client.meta.endpoint_url)
            is_valid = bool(
                address.scheme in ("http", "https") and address.hostname and address.port != 0
            )
        except ValueError as error:  # from botocore, or for an invalid port
            raise _invalid_endpoint(str(error)) from None
        if not is_valid:
            raise _invalid_endpoint(f"{client.meta.endpoint_url!r} is not a valid endpoint URL")
        return client


def _invalid_endpoint(reason: str) -> Refusal:
    return Refusal(
        "invalid-endpoint",
        f"AWS_ENDPOINT_URL, or the profile's endpoint_url: {reason[:1].lower()}{reason[1:]}; set a "
        "URL such as http://127.0.0.1:5000, or unset it to use AWS itself",
    )
