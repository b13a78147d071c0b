"""Refusals of AWS Batch: compute environments and job queues."""

from __future__ import annotations

import re
from collections.abc import Iterable

from trainium_catalogue.instances import INSTANCE_TYPES
from trainium_emulators.aws.refusals.refusal import (
    CFN_LINT,
    ENVIRONMENT,
    LAUNCH_TEMPLATE,
    MOTO,
    QUEUE,
    AwsOutcome,
    AwsRefusal,
    Fill,
    when,
)
from trainium_emulators.aws.refusals.request import (
    AwsRequest,
    Properties,
    ResourceReference,
    duplicates,
    each,
    get,
    text,
    texts,
)

API = "https://docs.aws.amazon.com/batch/latest/APIReference/"
GUIDE = "https://docs.aws.amazon.com/batch/latest/userguide/"

NAME = re.compile(r"[a-zA-Z0-9_-]{1,128}")
_SPOT_ONLY = {"SPOT_CAPACITY_OPTIMIZED", "SPOT_PRICE_CAPACITY_OPTIMIZED"}
_ON_EC2 = ("EC2", "SPOT")
_ECS_IMAGES = {"ECS_AL2", "ECS_AL2_NVIDIA", "ECS_AL2023", "ECS_AL2023_NVIDIA"}
_EKS_IMAGES = {"EKS_AL2", "EKS_AL2_NVIDIA", "EKS_AL2023", "EKS_AL2023_NVIDIA"}
_ARM = re.compile(r"a1|[a-z]+\d+g[a-z]*")
"""Graviton families, such as m6g, c7gn, r8gd, t4g."""
_IN_PLACE = {"MaxvCpus", "MinvCpus", "DesiredvCpus", "ScalingPolicy"}
"""Properties updated without new instances (user guide, Updating compute environments)."""


def launch_template(request: AwsRequest) -> Properties:
    """Return the data of the environment's launch template, as far as known."""
    given = request.get("ComputeResources.LaunchTemplate", {})
    for key in ("LaunchTemplateId", "LaunchTemplateName"):
        found = request.account.find(LAUNCH_TEMPLATE, get(given, key))
        if found is not None:
            data = get(found, "LaunchTemplateData", {})
            return data if isinstance(data, dict) else {}
    return {}


def _groups_and_interfaces(request: AwsRequest) -> Iterable[Fill]:
    groups = request.has("ComputeResources.SecurityGroupIds")
    interfaces = each(get(launch_template(request), "NetworkInterfaces"))
    return when(groups and bool(interfaces))


def _groups_missing(request: AwsRequest) -> Iterable[Fill]:
    return when(
        request.text("ComputeResources.Type") in _ON_EC2
        and not request.has("ComputeResources.SecurityGroupIds")
        and not request.has("ComputeResources.LaunchTemplate")
    )


def _strategy(request: AwsRequest) -> Iterable[Fill]:
    strategy = request.text("ComputeResources.AllocationStrategy")
    kind = request.text("ComputeResources.Type")
    return when(strategy in _SPOT_ONLY and kind == "EC2", strategy, kind)


def _vcpus_order(request: AwsRequest) -> Iterable[Fill]:
    resources = "ComputeResources."
    least, most = request.number(resources + "MinvCpus", 0), request.number(resources + "MaxvCpus")
    return when(most < least)


def _desired(request: AwsRequest) -> Iterable[Fill]:
    resources = "ComputeResources."
    least, most = request.number(resources + "MinvCpus", 0), request.number(resources + "MaxvCpus")
    wanted = request.number(resources + "DesiredvCpus")
    return when(wanted < least or wanted > most)


def _image_types(request: AwsRequest) -> list[str]:
    return [
        text(get(entry, "ImageType"))
        for entry in request.each("ComputeResources.Ec2Configuration")
        if text(get(entry, "ImageType"))
    ]


def _image_type(request: AwsRequest) -> Iterable[Fill]:
    allowed = _EKS_IMAGES if request.has("EksConfiguration") else _ECS_IMAGES
    return when(any(kind not in allowed for kind in _image_types(request)))


def _mixed_architectures(request: AwsRequest) -> Iterable[Fill]:
    types = texts(request.get("ComputeResources.InstanceTypes"))
    arm = [kind for kind in types if _ARM.fullmatch(kind.partition(".")[0])]
    return when(0 < len(arm) < len(types))


def _not_offered(request: AwsRequest) -> Iterable[Fill]:
    for kind in texts(request.get("ComputeResources.InstanceTypes")):
        known = INSTANCE_TYPES.get(kind)
        if known is not None and request.account.region not in known.zone_ids:
            yield (f"..., not {kind} in {request.account.region}",)


def _template_named_twice(request: AwsRequest) -> Iterable[Fill]:
    given = request.get("ComputeResources.LaunchTemplate")
    if not isinstance(given, dict) or "Overrides" in given:
        return []
    names = [key for key in ("LaunchTemplateId", "LaunchTemplateName") if key in given]
    return when(len(names) != 1)


def _template_version(request: AwsRequest) -> Iterable[Fill]:
    version = request.text("ComputeResources.LaunchTemplate.Version")
    return when(bool(version) and not re.fullmatch(r"\d+|\$Default|\$Latest", version))


def _override_targets(request: AwsRequest) -> Iterable[Fill]:
    types = texts(request.get("ComputeResources.InstanceTypes"))
    families = {kind.partition(".")[0] for kind in types}
    for override in request.each("ComputeResources.LaunchTemplate.Overrides"):
        for target in texts(get(override, "TargetInstanceTypes")):
            if target not in types and target.partition(".")[0] not in families:
                yield ()


def _without_linked_role(request: AwsRequest) -> Iterable[Fill]:
    """Check updates that need the service-linked role; ServiceRole sets a custom role instead."""
    role = request.get("ServiceRole")
    own = isinstance(role, ResourceReference) or (
        bool(text(role)) and "/aws-service-role/" not in role
    )
    if request.previous is None or not own:
        return []
    changed = _changed_for_new_instances(request)
    return when(bool(changed), ", ".join(changed))


def _best_fit(request: AwsRequest) -> Iterable[Fill]:
    if request.previous is None:
        return []
    strategy = get(request.previous, "ComputeResources.AllocationStrategy", "BEST_FIT")
    return when(strategy == "BEST_FIT" and bool(_changed_for_new_instances(request)))


def _changed_for_new_instances(request: AwsRequest) -> list[str]:
    before = get(request.previous, "ComputeResources", {})
    after = request.get("ComputeResources", {})
    names = sorted({*before, *after} - _IN_PLACE)
    return [name for name in names if before.get(name) != after.get(name)]


def _ignored_of_template(request: AwsRequest) -> Iterable[Fill]:
    """Check for instance market options in a launch template: Batch ignores them (user guide)."""
    data = launch_template(request)
    return when(get(data, "InstanceMarketOptions.MarketType") == "spot")


def _limit_seconds(request: AwsRequest) -> Iterable[Fill]:
    for action in request.each("JobStateTimeLimitActions"):
        seconds = AwsRequest(properties=action, account=request.account).number("MaxTimeSeconds")
        if seconds < 600 or seconds > 86_400:
            yield (int(seconds),)


def _limit_repeated(request: AwsRequest) -> Iterable[Fill]:
    pairs = [
        (text(get(action, "State")), text(get(action, "Reason")))
        for action in request.each("JobStateTimeLimitActions")
    ]
    return when(bool(duplicates(pairs)))


def _order(request: AwsRequest, key: str) -> list[object]:
    return [get(entry, key) for entry in request.each("ComputeEnvironmentOrder")]


def _name(request: AwsRequest, path: str) -> bool:
    name = request.text(path)
    return bool(name) and not NAME.fullmatch(name)


ROWS = (
    AwsRefusal(
        id="batch-groups-and-interfaces",
        on=ENVIRONMENT,
        condition="The environment names security groups and its launch template has interfaces.",
        words="Either compute environment Security Groups or Network Interfaces in Launch template "
        "are exclusively allowed",
        source="https://github.com/aws/aws-cdk/issues/21577",
        check=_groups_and_interfaces,
    ),
    AwsRefusal(
        id="batch-groups-missing",
        on=ENVIRONMENT,
        condition="Neither the environment nor a launch template can name security groups.",
        words="Security group ids are required.",
        source=API + "API_ComputeResource.html",
        judge="pf-batch-ce-security-groups-required",
        known_to=MOTO,
        check=_groups_missing,
    ),
    AwsRefusal(
        id="batch-strategy-of-type",
        on=ENVIRONMENT,
        condition="A Spot strategy for on-demand instances.",
        words="Invalid compute resource allocation strategy {} for type {}",
        source="https://github.com/seqeralabs/nf-tower/issues/262",
        judge="pf-batch-ce-allocation-strategy-compute-type",
        check=_strategy,
    ),
    AwsRefusal(
        id="batch-vcpus-order",
        on=ENVIRONMENT,
        condition="Fewer vCPUs at most than at least.",
        words="maxvCpus should be greater than or equal to minvCpus.",
        source=API + "API_ComputeResource.html",
        judge="pf-batch-ce-vcpus-order",
        known_to=MOTO,
        check=_vcpus_order,
    ),
    AwsRefusal(
        id="batch-min-vcpus-negative",
        on=ENVIRONMENT,
        condition="A negative number of vCPUs.",
        words="minvCpus should be greater than or equal to 0.",
        source=API + "API_ComputeResource.html",
        judge="pf-batch-ce-min-vcpus-negative",
        known_to=MOTO,
        check=lambda r: when(r.number("ComputeResources.MinvCpus", 0) < 0),
    ),
    AwsRefusal(
        id="batch-desired-vcpus",
        on=ENVIRONMENT,
        condition="The desired vCPUs are outside of the least and the most.",
        words="desiredvCpus should be between minvCpus and maxvCpus.",
        source=API + "API_ComputeResource.html",
        judge="pf-batch-ce-desired-vcpus-range",
        check=_desired,
    ),
    AwsRefusal(
        id="batch-image-type",
        on=ENVIRONMENT,
        condition="An image type that Batch does not know.",
        words="Invalid imageType in ComputeResources.ec2Configuration",
        source=API + "API_Ec2Configuration.html",
        judge="pf-batch-ce-ec2-config-image-type",
        check=_image_type,
    ),
    AwsRefusal(
        id="batch-image-type-old",
        on=ENVIRONMENT,
        condition="An image type of Amazon Linux 2.",
        words="Amazon Linux 2 is end-of-life.",
        source=GUIDE + "compute_resource_AMIs.html",
        judge="pf-batch-ce-ec2-config-image-type-eol",
        check=lambda r: when(any(re.search(r"_AL2(_|$)", kind) for kind in _image_types(r))),
    ),
    AwsRefusal(
        id="batch-mixed-architectures",
        on=ENVIRONMENT,
        condition="Instance types of Graviton beside others.",
        words="arm-based instance type cannot be used with other instance types",
        source="https://github.com/aws/aws-cdk/issues/31148",
        judge="pf-batch-ce-instance-types-architecture",
        check=_mixed_architectures,
    ),
    AwsRefusal(
        id="batch-type-not-offered",
        on=ENVIRONMENT,
        condition="A Trainium type that the region does not sell.",
        words="Instance type can only be one of [{}]",
        source="https://github.com/Netflix/metaflow/issues/70",
        check=_not_offered,
    ),
    AwsRefusal(
        id="batch-types-missing",
        on=ENVIRONMENT,
        condition="No instance types.",
        words="Resource instanceTypes are required.",
        source=API + "API_ComputeResource.html",
        judge="pf-batch-ce-instance-types-required",
        known_to=MOTO,
        check=lambda r: when(
            r.text("ComputeResources.Type") in _ON_EC2
            and r.get("ComputeResources.InstanceTypes", []) == []
        ),
    ),
    AwsRefusal(
        id="batch-instance-role-missing",
        on=ENVIRONMENT,
        condition="No instance profile for the hosts.",
        words="Instance role is required.",
        source=API + "API_ComputeResource.html",
        judge="pf-batch-ce-instance-role-required",
        known_to=MOTO,
        check=lambda r: when(
            r.text("ComputeResources.Type") in _ON_EC2
            and not r.has("ComputeResources.InstanceRole")
        ),
    ),
    AwsRefusal(
        id="batch-template-id-or-name",
        on=ENVIRONMENT,
        condition="A launch template by id and name, or by neither.",
        words="One of LaunchTemplateId and LaunchTemplateName or LaunchTemplate.overrides should "
        "be provided",
        source=API + "API_LaunchTemplateSpecification.html",
        judge="pf-batch-ce-launch-template-id-or-name",
        check=_template_named_twice,
    ),
    AwsRefusal(
        id="batch-template-version",
        on=ENVIRONMENT,
        condition="A template's version that is neither a number nor $Default, $Latest.",
        words="LaunchTemplateVersion must be either empty or a number or $Default or $Latest",
        source=API + "API_LaunchTemplateSpecification.html",
        judge="pf-batch-ce-launch-template-version",
        check=_template_version,
    ),
    AwsRefusal(
        id="batch-template-overrides",
        on=ENVIRONMENT,
        condition="More than ten overrides of the launch template.",
        words="LaunchTemplate.overrides size cannot be greater than 10",
        source=API + "API_LaunchTemplateSpecification.html",
        judge="pf-batch-ce-launch-template-overrides-max",
        check=lambda r: when(len(r.each("ComputeResources.LaunchTemplate.Overrides")) > 10),
    ),
    AwsRefusal(
        id="batch-override-targets",
        on=ENVIRONMENT,
        condition="An override for an instance type that the environment does not have.",
        words="LaunchTemplate.overrides have targetInstanceTypes that do not match",
        source=API + "API_LaunchTemplateSpecificationOverride.html",
        judge="pf-batch-ce-launch-template-override-target-subset",
        check=_override_targets,
    ),
    AwsRefusal(
        id="batch-bid-percentage",
        on=ENVIRONMENT,
        condition="A bid outside of 0 to 100 percent.",
        words="Bid percentage must be between 0 to 100.",
        source=API + "API_ComputeResource.html",
        judge="pf-batch-ce-bid-percentage-range",
        check=lambda r: when(not 0 <= r.number("ComputeResources.BidPercentage", 0) <= 100),
    ),
    AwsRefusal(
        id="batch-spot-fleet-role",
        on=ENVIRONMENT,
        condition="Spot instances by BEST_FIT without a role for the fleet.",
        words="compute resource spotIamFleetRole is required.",
        source=API + "API_ComputeResource.html",
        judge="pf-batch-ce-spot-fleet-role",
        check=lambda r: when(
            r.text("ComputeResources.Type") == "SPOT"
            and r.get("ComputeResources.AllocationStrategy", "BEST_FIT") == "BEST_FIT"
            and not r.has("ComputeResources.SpotIamFleetRole")
        ),
    ),
    AwsRefusal(
        id="batch-environment-state",
        on=ENVIRONMENT,
        condition="An environment that is to begin disabled.",
        words="Compute Environment must be created in ENABLED state.",
        source=API + "API_CreateComputeEnvironment.html",
        judge="pf-batch-ce-state-enabled",
        check=lambda r: when(r.previous is None and r.text("State") == "DISABLED"),
    ),
    AwsRefusal(
        id="batch-environment-unmanaged-vcpus",
        on=ENVIRONMENT,
        condition="A managed environment is told how many vCPUs somebody else manages.",
        words="unmanagedvCpus is not applicable for managed Compute Environments",
        source=API + "API_CreateComputeEnvironment.html",
        judge="pf-batch-ce-unmanaged-vcpus",
        check=lambda r: when(r.text("Type").upper() == "MANAGED" and r.has("UnmanagedvCpus")),
    ),
    AwsRefusal(
        id="batch-environment-name",
        on=ENVIRONMENT,
        condition="A name with other characters than letters, digits, hyphens and underscores.",
        words="Compute environment name should match valid pattern",
        verbatim=False,
        source=API + "API_CreateComputeEnvironment.html",
        judge="pf-batch-ce-name",
        known_to=MOTO,
        check=lambda r: when(_name(r, "ComputeEnvironmentName")),
    ),
    AwsRefusal(
        id="batch-update-without-linked-role",
        on=ENVIRONMENT,
        condition="An update that needs new instances, where a service role of one's own serves.",
        words="Following fields [{}] can be updated only for Non-fargate Compute Environment "
        "having a Batch Service Linked Role",
        source="https://github.com/ASFHyP3/hyp3/pull/1051",
        check=_without_linked_role,
    ),
    AwsRefusal(
        id="batch-update-best-fit",
        on=ENVIRONMENT,
        condition="An update that needs new instances, where they are chosen by BEST_FIT.",
        words="Infrastructure updates are not supported with the BEST_FIT allocation strategy",
        verbatim=False,
        source=GUIDE + "updating-compute-environments.html",
        check=_best_fit,
    ),
    AwsRefusal(
        id="batch-ignores-spot-options",
        on=ENVIRONMENT,
        condition="A launch template asks for Spot, which only the environment's type decides.",
        words="InstanceMarketOptions of a launch template are ignored",
        verbatim=False,
        outcome=AwsOutcome.IGNORED,
        source=GUIDE + "launch-templates.html",
        check=_ignored_of_template,
    ),
    AwsRefusal(
        id="batch-queue-environments",
        on=QUEUE,
        condition="More than three compute environments.",
        words="Only 3 environments are allowed in job queue request.",
        source=API + "API_CreateJobQueue.html",
        judge="pf-batch-jq-ce-order-max",
        known_to=MOTO,
        check=lambda r: when(len(r.each("ComputeEnvironmentOrder")) > 3),
    ),
    AwsRefusal(
        id="batch-queue-no-environment",
        on=QUEUE,
        condition="No compute environment.",
        words="computeEnvironmentOrder is required.",
        source=API + "API_CreateJobQueue.html",
        judge="pf-batch-queue-order-required",
        known_to=MOTO,
        check=lambda r: when(
            r.get("ComputeEnvironmentOrder", []) == [] and not r.has("ServiceEnvironmentOrder")
        ),
    ),
    AwsRefusal(
        id="batch-queue-environment-twice",
        on=QUEUE,
        condition="The same compute environment twice.",
        words="Duplicate ComputeEnvironments within order list.",
        source=API + "API_CreateJobQueue.html",
        judge="pf-batch-jq-ce-order-duplicate-ce",
        check=lambda r: when(bool(duplicates(_order(r, "ComputeEnvironment")))),
    ),
    AwsRefusal(
        id="batch-queue-order-twice",
        on=QUEUE,
        condition="Two compute environments at the same place in the order.",
        words="Duplicate ComputeEnvironment order values.",
        source=API + "API_CreateJobQueue.html",
        judge="pf-batch-jq-ce-order-duplicate-order",
        check=lambda r: when(bool(duplicates(_order(r, "Order")))),
    ),
    AwsRefusal(
        id="batch-queue-limit-action",
        on=QUEUE,
        condition="A time limit that does something else than cancel.",
        words="Invalid job action. Valid job actions: [CANCEL]",
        source=API + "API_JobStateTimeLimitAction.html",
        judge="pf-batch-jq-jstla-action-cancel-for-ecs",
        check=lambda r: when(
            r.get("JobQueueType", "ECS") in ("ECS", "EKS")
            and any(get(a, "Action") == "TERMINATE" for a in r.each("JobStateTimeLimitActions"))
        ),
    ),
    AwsRefusal(
        id="batch-queue-limit-twice",
        on=QUEUE,
        condition="Two time limits for the same state and reason.",
        words="Duplicate job state limit actions are not allowed.",
        source=API + "API_JobStateTimeLimitAction.html",
        judge="pf-batch-jq-jstla-duplicate",
        check=_limit_repeated,
    ),
    AwsRefusal(
        id="batch-queue-limit-seconds",
        on=QUEUE,
        condition="A time limit below 10 minutes or above 24 hours.",
        words="maxTimeSeconds {} is not between 600 and 86400",
        verbatim=False,
        source=API + "API_JobStateTimeLimitAction.html",
        known_to=CFN_LINT,
        check=_limit_seconds,
    ),
    AwsRefusal(
        id="batch-queue-name",
        on=QUEUE,
        condition="A name with other characters than letters, digits, hyphens and underscores.",
        words="Job Queue name should match a valid pattern.",
        source=API + "API_CreateJobQueue.html",
        judge="pf-batch-jq-name",
        check=lambda r: when(_name(r, "JobQueueName")),
    ),
)
