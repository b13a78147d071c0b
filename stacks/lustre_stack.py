"""The Lustre stack: only the file system, which can outlive everything that mounts it."""

from __future__ import annotations

from typing import Any

import aws_cdk as cdk
from constructs import Construct

from stacks.config import AppConfig
from stacks.exports import always_export
from stacks.network_stack import NetworkStack
from stacks.storage_stack import StorageStack
from trainium_catalogue.contract import NO_LUSTRE, SSM_LUSTRE
from trainium_constructs import LustreFileSystem, LustreMount, PublishedContract


class LustreStack(cdk.Stack):
    """The file system that nodes mount, or only a parameter with the value ``none``."""

    def __init__(
        self,
        scope: Construct,
        construct_id: str,
        *,
        config: AppConfig,
        network: NetworkStack,
        storage: StorageStack,
        **kwargs: Any,
    ) -> None:
        """Create the file system, or refer to the existing one, that ``config`` specifies.

        Args:
            config: Configuration of the deployment.
            network: Network of the nodes.
            storage: Stack of the bucket whose datasets appear in the file system.
        """
        super().__init__(scope, construct_id, **kwargs)
        self.mount: LustreMount | None = None
        if config.lustre_gib:
            self.mount = LustreFileSystem(
                self,
                "Lustre",
                network=network.network,
                subnet=network.lustre_subnet,
                adds_node_rules=config.security_group_id is None,
                capacity_gib=config.lustre_gib,
                mbps_per_tib=config.lustre_mbps_per_tib,
                bucket_name=storage.bucket.bucket.bucket_name,
            ).mount
        elif config.lustre_dns_name is not None:
            assert config.lustre_mount_name is not None
            self.mount = LustreMount(
                # fs-0123456789abcdef0.fsx.us-west-2.amazonaws.com
                file_system_id=config.lustre_dns_name.partition(".")[0],
                dns_name=config.lustre_dns_name,
                mount_name=config.lustre_mount_name,
            )
        if self.mount is not None:
            always_export(
                self, self.mount.file_system_id, self.mount.dns_name, self.mount.mount_name
            )
        # A stack needs at least one resource, and this one outlives its file system: `cdk deploy`
        # does not destroy stacks that are no longer part of the app.
        PublishedContract(
            self,
            "Contract",
            deployment=config.deployment,
            values={SSM_LUSTRE: self.mount.file_system_id if self.mount else NO_LUSTRE},
        )

    def deploy_after(self, users: list[cdk.Stack]) -> None:
        """Deploy this stack after ``users`` if the file system is being removed.

        While it exists, they import its exports and are deployed after it. Removing it requires
        the opposite order, because CloudFormation does not delete an export in use.
        """
        for user in users:
            self.add_stack_dependency(user, "it releases the file system")
