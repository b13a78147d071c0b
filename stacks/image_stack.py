"""The image stack: the repository of the training image."""

from __future__ import annotations

from typing import Any

import aws_cdk as cdk
from constructs import Construct

from stacks.config import AppConfig
from trainium_constructs import ImageRepository


class ImageStack(cdk.Stack):
    """The deployment's own ECR repository, deployed before the stack whose image it stores."""

    def __init__(
        self, scope: Construct, construct_id: str, *, config: AppConfig, **kwargs: Any
    ) -> None:
        """Create the repository of one deployment."""
        super().__init__(scope, construct_id, **kwargs)
        # Physical names, because the CDK CLI pushes by name, before CloudFormation could supply
        # one (docs/adr/0002).
        self.repository_name = f"trainium-{config.deployment}"
        # Role names are unique in an account, not in a region: the region distinguishes deployments
        # of the same name.
        self.publishing_role_name = f"cdk-trainium-{config.deployment}-images-{config.region}"
        self.images = ImageRepository(
            self,
            "Images",
            repository_name=self.repository_name,
            publishing_role_name=self.publishing_role_name,
        )
