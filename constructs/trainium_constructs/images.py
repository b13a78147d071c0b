"""The container image: our own repository, the publishing role, and the build."""

from __future__ import annotations

import re
from dataclasses import asdict
from pathlib import Path

import aws_cdk as cdk
from aws_cdk import aws_ecr as ecr
from aws_cdk import aws_ecr_assets as assets
from aws_cdk import aws_iam as iam
from aws_cdk import cloud_assembly_schema as schema
from constructs import Construct

from trainium_catalogue.releases import TorchNeuronPackages
from trainium_constructs.host_setup import EFA_KEY_FINGERPRINT, EFA_VERSION
from trainium_constructs.nag import acknowledge_wildcard

# Every change to the training code creates an image; old ones are useless and take 10 GB each.
IMAGES_KEPT = 10

DOCKERFILE = "docker/neuron/Dockerfile"


class ImageRepository(Construct):
    """An ECR repository that is emptied on deletion, and the role with which the CDK pushes to it.

    The bootstrap's repository is shared by all CDK apps of an account and keeps images forever;
    ``cdk destroy`` deletes this one with its images (docs/adr/0002).
    """

    def __init__(
        self,
        scope: Construct,
        construct_id: str,
        *,
        repository_name: str,
        publishing_role_name: str,
    ) -> None:
        """Create the repository.

        Args:
            repository_name: A physical name, because the CDK CLI pushes by name.
            publishing_role_name: A physical name, because the CDK CLI assumes it by name; with
                the prefix ``cdk-`` it works for users who may assume only the bootstrap's roles.
        """
        super().__init__(scope, construct_id)
        self.repository = ecr.Repository(
            self,
            "Repository",
            repository_name=repository_name,
            image_scan_on_push=True,
            # The CDK tags an image with the hash of its sources, so a tag never needs to move.
            image_tag_mutability=ecr.TagMutability.IMMUTABLE,
            lifecycle_rules=[
                ecr.LifecycleRule(
                    description=f"keep the newest {IMAGES_KEPT} images",
                    max_image_count=IMAGES_KEPT,
                )
            ],
            removal_policy=cdk.RemovalPolicy.DESTROY,
            empty_on_delete=True,
        )
        self.publishing_role = iam.Role(
            self,
            "PublishingRole",
            role_name=publishing_role_name,
            description="cdk deploy pushes training images with this role",
            assumed_by=iam.AccountRootPrincipal(),
        )
        self.repository.grant_pull_push(self.publishing_role)
        # The CLI makes these calls before and after a push; the bootstrap's role allows them too.
        self.repository.grant(
            self.publishing_role, "ecr:DescribeRepositories", "ecr:DescribeImages"
        )
        acknowledge_wildcard(
            self.publishing_role,
            "*",
            "ecr:GetAuthorizationToken has no resource-level permissions",
        )


class TrainingImage(Construct):
    """The container image of nodes: a Neuron base image plus this repository's training code."""

    def __init__(
        self,
        scope: Construct,
        construct_id: str,
        *,
        context: Path,
        base: str | TorchNeuronPackages,
    ) -> None:
        """Declare the image; the CDK CLI builds and pushes it on deployment.

        Args:
            context: Build context; its ``.dockerignore`` is an allow-list.
            base: The Neuron Deep Learning Container that the release pins, or the packages to
                build a base image from.
        """
        super().__init__(scope, construct_id)
        asset = assets.DockerImageAsset(
            self,
            "Asset",
            directory=str(context),
            file=DOCKERFILE,
            build_args={"BASE_IMAGE": base} if isinstance(base, str) else _build_args(base),
            # Trainium hosts are x86_64, whatever the build machine.
            platform=assets.Platform.LINUX_AMD64,
            # So that the CLI's hash of the context covers exactly the allow-list.
            ignore_mode=cdk.IgnoreMode.DOCKER,
            display_name="training image",
        )
        self.image_uri = asset.image_uri
        self.repository = asset.repository
        self.asset_hash = asset.asset_hash


def _build_args(packages: TorchNeuronPackages) -> dict[str, str]:
    """Return the build arguments of the Dockerfile's own base stage."""
    return {
        **{name.upper(): version for name, version in asdict(packages).items()},
        "EFA": EFA_VERSION,
        "EFA_KEY_FINGERPRINT": EFA_KEY_FINGERPRINT,
    }


class OwnRepositorySynthesizer(cdk.DefaultStackSynthesizer):
    """Pushes a stack's images to our own repository instead of the bootstrap's."""

    def __init__(
        self, *, images: cdk.Stack, repository_name: str, publishing_role_name: str
    ) -> None:
        """Push with ``publishing_role_name`` to ``repository_name``, both created by ``images``."""
        super().__init__(
            image_assets_repository_name=repository_name,
            image_asset_publishing_role_arn=(
                f"arn:${{AWS::Partition}}:iam::${{AWS::AccountId}}:role/{publishing_role_name}"
            ),
        )
        self._images = images

    def reusable_bind(self, stack: cdk.Stack) -> cdk.IBoundStackSynthesizer:
        """Bind this instance to one stack; the CDK's copy would lack the overrides."""
        self.bind(stack)
        self._artifact_id = stack.artifact_id
        return self

    def synthesize(self, session: cdk.ISynthesisSession) -> None:
        """Synthesize the stack, and make its assets depend on the repository.

        ``cdk deploy`` builds all assets before it deploys the first stack, and a build looks for
        the repository, which does not exist on a first deployment ("No ECR repository named
        ..."). The CLI builds a manifest's assets after deploying the stacks that it depends on
        (app-staging-synthesizer-alpha relies on this too), but only the manifest builder can add
        a dependency, and the default synthesizer keeps its builder private. So this
        method replaces the manifest's entry with one that has the dependency.
        """
        super().synthesize(session)
        session.assembly.add_artifact(
            f"{self._artifact_id}.assets",
            type=schema.ArtifactType.ASSET_MANIFEST,
            properties=schema.AssetManifestProperties(
                file=f"{self._artifact_id}.assets.json",
                requires_bootstrap_stack_version=6,
                bootstrap_stack_version_ssm_parameter=(
                    f"/cdk-bootstrap/{self.bootstrap_qualifier}/version"
                ),
            ),
            dependencies=[self._images.artifact_id],
        )


# 123456789012.dkr.ecr.us-west-2.amazonaws.com/name:tag
_PRIVATE_ECR = re.compile(
    r"(?P<account>\d{12})\.dkr\.ecr\.(?P<region>[a-z0-9-]+)\.(?P<suffix>amazonaws\.com(?:\.cn)?)"
    r"/(?P<name>[^:@]+)"
)


def private_repository(
    scope: Construct, construct_id: str, image_uri: str
) -> ecr.IRepository | None:
    """Import the private ECR repository of a prebuilt image; None for any other registry."""
    if not (parts := _PRIVATE_ECR.match(image_uri)):
        return None
    arn = cdk.Stack.of(scope).format_arn(
        service="ecr",
        region=parts["region"],
        account=parts["account"],
        resource="repository",
        resource_name=parts["name"],
    )
    return ecr.Repository.from_repository_attributes(
        scope, construct_id, repository_arn=arn, repository_name=parts["name"]
    )
