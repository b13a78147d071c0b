"""The CDK app: reads the context, builds and checks the stacks, and synthesizes them."""

from __future__ import annotations

import sys
from datetime import date

import aws_cdk as cdk
import cdk_nag

from stacks.batch_stack import BatchStack
from stacks.build_host import BuildHost, build_warnings
from stacks.config import AppConfig, ConfigError
from stacks.data_jobs_stack import DataJobsStack
from stacks.image_stack import ImageStack
from stacks.lustre_stack import LustreStack
from stacks.network_stack import NetworkStack
from stacks.storage_stack import StorageStack
from trainium_catalogue.contract import TAG_DEPLOYMENT

REFUSED = 2


def build(app: cdk.App, config: AppConfig) -> None:
    """Add the stacks of one deployment; each receives the earlier stacks that it uses."""
    name = config.stack_name
    # No account: templates must be the same for every account, and nothing is looked up.
    env = cdk.Environment(region=config.region)
    network = NetworkStack(app, name("network"), config=config, env=env)
    storage = StorageStack(app, name("storage"), config=config, env=env)
    lustre = LustreStack(
        app, name("lustre"), config=config, network=network, storage=storage, env=env
    )
    image = ImageStack(app, name("image"), config=config, env=env) if config.builds_image else None
    data = DataJobsStack(
        app, name("data"), config=config, network=network, storage=storage, image=image, env=env
    )
    node_stacks: list[cdk.Stack] = []
    if config.runs_on_batch:
        node_stacks.append(
            BatchStack(
                app,
                name("batch"),
                config=config,
                network=network,
                storage=storage,
                lustre=lustre,
                data=data,
                env=env,
            )
        )
    if config.runs_on_eks:
        # Imported here: its CDK modules load slowly, and only deployments with EKS need them.
        from stacks.eks_stack import EksStack

        node_stacks.append(
            EksStack(
                app,
                name("eks"),
                config=config,
                network=network,
                storage=storage,
                lustre=lustre,
                data=data,
                env=env,
            )
        )
    if not config.lustre_gib:
        lustre.deploy_after(node_stacks)
    for warning in config.warnings:
        cdk.Annotations.of(network).add_warning_v2(warning.id, warning.message)
    cdk.Tags.of(app).add(TAG_DEPLOYMENT, config.deployment)


def warn_about_dates(app: cdk.App, config: AppConfig, today: date) -> None:
    """Warn about old versions and images; these warnings depend on the date, templates do not."""
    network = app.node.find_child(config.stack_name("network"))
    for warning in config.dated_warnings(today):
        cdk.Annotations.of(network).add_warning_v2(warning.id, warning.message)


def warn_about_build_host(app: cdk.App, config: AppConfig, host: BuildHost) -> None:
    """Warn about the machine that is about to build the image."""
    if config.builds_image:
        image = app.node.find_child(config.stack_name("image"))
        for warning_id, text in build_warnings(host):
            cdk.Annotations.of(image).add_warning_v2(warning_id, text)


def add_validations(app: cdk.App, *, cdk_preflight: bool) -> None:
    """Fail synthesis on findings of cdk-nag and, optionally, of cdk-preflight.

    cdk-nag checks security; cdk-preflight checks for known causes of failed deployments.
    """
    cdk.Validations.of(app).add_plugins(cdk_nag.AwsSolutionsChecks(app, verbose=True))
    if cdk_preflight:
        # Imported here because loading its rules takes a second.
        from cdk_preflight import Preflight

        Preflight.apply(app)


def main() -> int:
    """Synthesize, or refuse an invalid configuration with a one-line message."""
    app = cdk.App()
    try:
        config = AppConfig.from_context(app.node)
    except ConfigError as refusal:
        print(f"refused: {refusal}", file=sys.stderr)
        return REFUSED
    build(app, config)
    warn_about_dates(app, config, date.today())
    warn_about_build_host(app, config, BuildHost.here())
    add_validations(app, cdk_preflight=config.cdk_preflight)
    app.synth()
    return 0


if __name__ == "__main__":
    sys.exit(main())
