"""The storage stack: what outlives the machines."""

from __future__ import annotations

from typing import Any

import aws_cdk as cdk
from constructs import Construct

from stacks.config import AppConfig
from stacks.network_stack import NetworkStack
from trainium_catalogue.contract import SSM_BUCKET
from trainium_constructs import LustreFileSystem, LustreMount, PublishedContract, TrainingBucket


class StorageStack(cdk.Stack):
    """Bucket and file system, apart from compute so that compute can go without them."""

    def __init__(
        self,
        scope: Construct,
        construct_id: str,
        *,
        config: AppConfig,
        network: NetworkStack,
        **kwargs: Any,
    ) -> None:
        """Create the bucket, or take the one that ``config`` names, and the file system if any."""
        super().__init__(scope, construct_id, **kwargs)
        self.bucket = TrainingBucket(
            self,
            "Data",
            bucket_name=config.bucket_name,
            kms_key_arn=config.bucket_kms_key_arn,
            retain_data=config.retain_data,
        )
        PublishedContract(
            self,
            "Contract",
            deployment=config.deployment,
            values={SSM_BUCKET: self.bucket.bucket.bucket_name},
        )
        self.lustre = self._lustre(config, network)
        kept = config.retain_data or config.bucket_name is not None
        # The CLI prints an output's name after each deployment; `cdk destroy` shows the bucket as
        # DELETE_SKIPPED and has no other place for a word of ours.
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

    def _lustre(self, config: AppConfig, network: NetworkStack) -> LustreMount | None:
        if config.lustre_dns_name is not None:
            assert config.lustre_mount_name is not None
            return LustreMount(
                # fs-0123456789abcdef0.fsx.us-west-2.amazonaws.com
                file_system_id=config.lustre_dns_name.partition(".")[0],
                dns_name=config.lustre_dns_name,
                mount_name=config.lustre_mount_name,
            )
        if not config.lustre_gib:
            return None
        return LustreFileSystem(
            self,
            "Lustre",
            network=network.network,
            opens_nodes=config.security_group_id is None,
            capacity_gib=config.lustre_gib,
            mbps_per_tib=config.lustre_mbps_per_tib,
            bucket_name=self.bucket.bucket.bucket_name,
        ).mount
