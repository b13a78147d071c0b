"""The storage stack: the bucket, which outlives all compute."""

from __future__ import annotations

from typing import Any

import aws_cdk as cdk
from constructs import Construct

from stacks.config import AppConfig
from trainium_catalogue.contract import SSM_BUCKET
from trainium_constructs import PublishedContract, TrainingBucket


class StorageStack(cdk.Stack):
    """The bucket, in a separate stack so that compute can be destroyed without it."""

    def __init__(
        self,
        scope: Construct,
        construct_id: str,
        *,
        config: AppConfig,
        **kwargs: Any,
    ) -> None:
        """Create the bucket, or use the existing one named by ``config``."""
        super().__init__(scope, construct_id, **kwargs)
        self.bucket = TrainingBucket(
            self,
            "Data",
            bucket_name=config.bucket_name,
            kms_key_arn=config.bucket_kms_key_arn,
            retain_data=config.retain_data,
            notifies=config.notifies,
        )
        PublishedContract(
            self,
            "Contract",
            deployment=config.deployment,
            values={SSM_BUCKET: self.bucket.bucket.bucket_name},
        )
        kept = config.retain_data or config.bucket_name is not None
        # The CDK CLI prints outputs after each deployment; `cdk destroy` shows the bucket only as
        # DELETE_SKIPPED.
        cdk.CfnOutput(
            self,
            "BucketKeptByDestroy" if kept else "BucketEmptiedByDestroy",
            value=self.bucket.bucket.bucket_name,
            description=(
                "cdk destroy keeps this bucket and what is in it"
                if kept
                else "cdk destroy empties and deletes this bucket"
            ),
        )
