"""The bucket: datasets, runs, compile cache and exports."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import aws_cdk as cdk
from aws_cdk import aws_iam as iam
from aws_cdk import aws_s3 as s3
from constructs import Construct

from trainium_catalogue.contract import (
    CACHE_PREFIX,
    CLUSTER_SNAPSHOT,
    JOINING_FOLDER,
    NOTIFICATIONS_PREFIX,
    NOTIFICATIONS_SENT,
    RESULT_FOLDERS,
    RUN_SUBMISSION,
    RUNS_PREFIX,
    request_key,
)
from trainium_catalogue.workloads import Hardware, Workload
from trainium_constructs.nag import (
    acknowledge,
    acknowledge_wildcard,
    acknowledge_wildcards,
    spelling_of,
)

# A compile cache is cheap to rebuild and useless after a compiler upgrade.
CACHE_EXPIRY = cdk.Duration.days(90)
NONCURRENT_EXPIRY = cdk.Duration.days(30)
# Old versions under runs/ are mostly deleted checkpoints: 81 GB each for Llama-2-7B. A few days are
# enough to undo a mistake. If two rules apply, the shorter expiry wins (S3 User Guide, conflicts in
# lifecycle configurations).
RUNS_NONCURRENT_EXPIRY = cdk.Duration.days(3)
# A cluster snapshot is replaced up to once a minute, and old ones are useless.
NOTIFICATIONS_NONCURRENT_EXPIRY = cdk.Duration.days(1)
# A lost node's unfinished multipart upload is invisible, but billed.
UPLOAD_EXPIRY = cdk.Duration.days(7)

_READ = ("s3:GetObject",)
_WRITE = ("s3:PutObject", "s3:AbortMultipartUpload")


class TrainingBucket(Construct):
    """An encrypted, versioned, TLS-only bucket for data that must outlive the machines."""

    def __init__(
        self,
        scope: Construct,
        construct_id: str,
        *,
        bucket_name: str | None = None,
        kms_key_arn: str | None = None,
        retain_data: bool = True,
        notifies: bool = False,
    ) -> None:
        """Create the bucket, or use an existing one.

        Args:
            bucket_name: An existing bucket, which is left unchanged. Default: a new one.
            kms_key_arn: KMS key of an existing bucket. Default: SSE-S3, which needs no grant.
            retain_data: Keep a new bucket, with its contents, when the stack is destroyed.
            notifies: Expire old versions of the cluster snapshots written for notifications.
        """
        super().__init__(scope, construct_id)
        self._kms_key_arn = kms_key_arn
        self.bucket: s3.IBucket = (
            self._new_bucket(retain_data, notifies)
            if bucket_name is None
            else s3.Bucket.from_bucket_name(self, "Bucket", bucket_name)
        )
        self._arn = self.bucket.bucket_arn

    def _new_bucket(self, retain_data: bool, notifies: bool) -> s3.Bucket:
        notifications_rule = s3.LifecycleRule(
            id="ExpireOldVersionsOfNotifications",
            prefix=NOTIFICATIONS_PREFIX,
            noncurrent_version_expiration=NOTIFICATIONS_NONCURRENT_EXPIRY,
        )
        bucket = s3.Bucket(
            self,
            "Bucket",
            encryption=s3.BucketEncryption.S3_MANAGED,
            block_public_access=s3.BlockPublicAccess.BLOCK_ALL,
            enforce_ssl=True,
            versioned=True,
            lifecycle_rules=[
                s3.LifecycleRule(
                    id="AbortUnfinishedUploads",
                    abort_incomplete_multipart_upload_after=UPLOAD_EXPIRY,
                ),
                s3.LifecycleRule(
                    id="ExpireOldVersions",
                    noncurrent_version_expiration=NONCURRENT_EXPIRY,
                    expired_object_delete_marker=True,
                ),
                s3.LifecycleRule(
                    id="ExpireOldVersionsOfRuns",
                    prefix=RUNS_PREFIX,
                    noncurrent_version_expiration=RUNS_NONCURRENT_EXPIRY,
                ),
                s3.LifecycleRule(
                    id="ExpireCompileCache", prefix=CACHE_PREFIX, expiration=CACHE_EXPIRY
                ),
                *([notifications_rule] if notifies else []),
            ],
            removal_policy=cdk.RemovalPolicy.RETAIN if retain_data else cdk.RemovalPolicy.DESTROY,
            # CloudFormation cannot delete a bucket with objects, and no native property empties it.
            auto_delete_objects=not retain_data,
        )
        acknowledge(
            bucket,
            "AwsSolutions-S1",
            "every range that a rank reads would be a line of access log; for an audit trail, "
            "enable CloudTrail data events, which cover every bucket alike",
        )
        return bucket

    def grant(self, role: iam.Role, workload: Workload) -> None:
        """Grant ``role`` the workload's permissions."""
        # Submitters choose run names, so a role can be limited to runs, but not to one run.
        results = [f"{RUNS_PREFIX}*/{folder}/*" for folder in RESULT_FOLDERS]
        reads = [f"{prefix}*" for prefix in (*workload.reads, *workload.writes)]
        writes = [f"{prefix}*" for prefix in workload.writes]
        self._allow(role, {_WRITE: results, _READ: reads, (*_WRITE, "s3:DeleteObject"): writes})
        # A multipart upload needs both actions (S3 User Guide, SSE-KMS, permissions).
        self._allow_key(role, ["kms:Decrypt", "kms:GenerateDataKey"])
        if reads:
            # For a missing object S3 returns 403 instead of 404 to a role without s3:ListBucket,
            # which it checks without a prefix (HeadObject, API reference, permissions). Neuron's
            # compile cache looks up objects that may not exist and needs the 404.
            condition = "StringLikeIfExists" if _runs_neuron(workload) else "StringLike"
            self._allow_listing(role, {condition: {"s3:prefix": reads}})

        if _runs_neuron(workload) and RUNS_PREFIX not in (*workload.reads, *workload.writes):
            # Nodes that cannot reach each other look for records of their peers.
            records = f"{RUNS_PREFIX}*/results/{JOINING_FOLDER}/*"
            self._allow_listing(role, {"StringLike": {"s3:prefix": records}})

    def grant_notifying(self, role: iam.Role) -> None:
        """Let the notifier read attempt and submission records, and record its notifications."""
        attempts = f"{RUNS_PREFIX}*/results/attempts/*"
        submissions = f"{RUNS_PREFIX}*/{RUN_SUBMISSION}"
        read = [attempts, submissions, CLUSTER_SNAPSHOT, NOTIFICATIONS_SENT]
        self._allow(role, {_READ: read, ("s3:PutObject",): [NOTIFICATIONS_SENT]})
        # Also without a prefix: the function looks up objects that may not exist yet.
        self._allow_listing(role, {"StringLikeIfExists": {"s3:prefix": attempts}})
        self._allow_key(role, ["kms:Decrypt", "kms:GenerateDataKey"])

    def grant_submitting(self, role: iam.Role) -> None:
        """Let a function resubmit runs: reserve their names, and read requests."""
        # These also match the record of the same name in a run's results: "*" matches "/" too.
        submissions = f"{RUNS_PREFIX}*/{RUN_SUBMISSION}"
        requests = request_key("*", "*")
        self._allow(role, {_READ: [submissions, requests], ("s3:PutObject",): [submissions]})
        # Also without a prefix: the function looks up objects that may not exist yet.
        self._allow_listing(role, {"StringLikeIfExists": {"s3:prefix": submissions}})
        self._allow_key(role, ["kms:Decrypt", "kms:GenerateDataKey"])

    def grant_snapshot(self, role: iam.Role) -> None:
        """Let the node scaler write cluster snapshots."""
        self._allow(role, {("s3:PutObject",): [CLUSTER_SNAPSHOT]})
        self._allow_key(role, ["kms:GenerateDataKey"])

    def _allow_key(self, role: iam.Role, actions: Sequence[str]) -> None:
        """Let ``role`` use the bucket's KMS key, only through S3."""
        if self._kms_key_arn is None:
            return
        role.add_to_policy(
            iam.PolicyStatement(
                actions=list(actions),
                resources=[self._kms_key_arn],
                conditions={
                    "StringEquals": {"kms:ViaService": f"s3.{cdk.Aws.REGION}.{cdk.Aws.URL_SUFFIX}"}
                },
            )
        )

    def _allow_listing(self, role: iam.Role, conditions: Mapping[str, object]) -> None:
        role.add_to_policy(
            iam.PolicyStatement(
                actions=["s3:ListBucket"],
                resources=[self._arn],
                conditions=conditions,
            )
        )

    def _allow(self, role: iam.Role, granted: Mapping[tuple[str, ...], Sequence[str]]) -> None:
        """Grant ``role`` each entry's actions on that entry's keys."""
        for actions, keys in granted.items():
            if keys:
                role.add_to_policy(
                    iam.PolicyStatement(
                        actions=list(actions), resources=[f"{self._arn}/{key}" for key in keys]
                    )
                )
        bucket_arn = spelling_of(self._arn, owner=self, reader=role)
        acknowledge_wildcards(
            role,
            sorted({f"{bucket_arn}/{key}" for keys in granted.values() for key in keys}),
            "submitters choose names long after the role is created",
        )


def grant_data_uris(role: iam.Role, workload: Workload, uris: Sequence[str]) -> None:
    """Grant ``role`` access to the deployment's ``data_uris``, if the workload uses them."""
    for uri in uris if workload.reads_data_uris else ():
        bucket, _, prefix = uri.removeprefix("s3://").partition("/")
        bucket_arn = f"arn:{cdk.Aws.PARTITION}:s3:::{bucket}"
        objects = f"{bucket_arn}/{prefix}*"
        writes = (*_WRITE, "s3:DeleteObject") if workload.writes_data_uris else ()
        # Looking up a checkpoint that may not exist needs the 404 (see ``grant``).
        condition = "StringLikeIfExists" if writes and _runs_neuron(workload) else "StringLike"
        role.add_to_policy(iam.PolicyStatement(actions=[*_READ, *writes], resources=[objects]))
        role.add_to_policy(
            iam.PolicyStatement(
                actions=["s3:ListBucket"],
                resources=[bucket_arn],
                conditions={condition: {"s3:prefix": f"{prefix}*"}},
            )
        )
        acknowledge_wildcard(
            role,
            f"arn:<AWS::Partition>:s3:::{bucket}/{prefix}*",
            "the deployment's data_uris name this prefix",
        )


def _runs_neuron(workload: Workload) -> bool:
    return workload.hardware is Hardware.TRAINIUM
