"""The CDK app: reads the context once, builds the stacks, checks them, synthesises."""

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
    """Add the stacks of one deployment; each passes its objects on to the next."""
    name = config.stack_name
    # No account: a template does not depend on who synthesises it, and there are no look-ups.
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
    nodes: list[cdk.Stack] = []
    if config.runs_on_batch:
        nodes.append(
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

        nodes.append(
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
        lustre.goes_after(nodes)
    for warning in config.warnings:
        cdk.Annotations.of(network).add_warning_v2(warning.id, warning.message)
    cdk.Tags.of(app).add(TAG_DEPLOYMENT, config.deployment)


def warn_of_dates(app: cdk.App, config: AppConfig, today: date) -> None:
    """Warn about versions whose time is running out; templates do not depend on the date."""
    network = app.node.find_child(config.stack_name("network"))
    for warning in config.dated_warnings(today):
        cdk.Annotations.of(network).add_warning_v2(warning.id, warning.message)


def warn_who_builds(app: cdk.App, config: AppConfig, host: BuildHost) -> None:
    """Tell the machine that will build the image what to expect, while it can still stop."""
    if config.builds_image:
        image = app.node.find_child(config.stack_name("image"))
        for warning_id, text in build_warnings(host):
            cdk.Annotations.of(image).add_warning_v2(warning_id, text)


def add_judges(app: cdk.App, *, cdk_preflight: bool) -> None:
    """Make synthesis fail on findings of cdk-nag, and of cdk-preflight if wanted.

    cdk-nag judges security; cdk-preflight has what AWS was seen to refuse during deployments.
    """
    cdk.Validations.of(app).add_plugins(cdk_nag.AwsSolutionsChecks(app, verbose=True))
    if cdk_preflight:
        # Imported here: loading its rules takes a second that a synthesis without them saves.
        from cdk_preflight import Preflight

        Preflight.apply(app)


def main() -> int:
    """Synthesise; refuse a configuration that cannot work, in one line."""
    app = cdk.App()
    try:
        config = AppConfig.from_context(app.node)
    except ConfigError as refusal:
        print(f"refused: {refusal}", file=sys.stderr)
        return REFUSED
    build(app, config)
    warn_of_dates(app, config, date.today())
    warn_who_builds(app, config, BuildHost.here())
    add_judges(app, cdk_preflight=config.cdk_preflight)
    app.synth()
    return 0


if __name__ == "__main__":
    sys.exit(main())
