"""Models Batch: compute environments without a service role, job definitions, updates, deletes."""

from typing import Any

from moto.batch.models import JobDefinition, batch_backends
from moto.batch.utils import lowercase_first_key
from moto.cloudformation.exceptions import ValidationError
from moto.ec2.models import ec2_backends
from moto.iam.models import iam_backends

from trainium_emulators.aws.cloudformation.contributions import (
    AccountRegion,
    Contribution,
    Properties,
    PropertyChange,
)

SERVICE = "batch.amazonaws.com"


def _backend(place: AccountRegion) -> Any:
    return batch_backends[place.account_id][place.region]


def _set_service_linked_role(properties: Properties, place: AccountRegion) -> None:
    """Set the service-linked role, creating it if needed, as AWS does; moto requires its ARN."""
    if "ServiceRole" in properties:
        return
    iam = iam_backends[place.account_id]["aws"]
    path = f"/aws-service-role/{SERVICE}/"
    existing = [role for role in iam.roles.values() if role.path == path]
    role = existing[0] if existing else iam.create_service_linked_role(SERVICE, "", "")
    properties["ServiceRole"] = role.arn


def _complete_environment(properties: Properties, place: AccountRegion) -> None:
    _set_service_linked_role(properties, place)
    resources = properties["ComputeResources"]
    if "SecurityGroupIds" not in resources:
        # moto requires groups and starts instances with them; on AWS the launch template's are
        # enough. ``_remove_template_groups`` removes them from descriptions.
        resources["SecurityGroupIds"] = _template_groups(resources["LaunchTemplate"], place)
        properties["GroupsOfTemplate"] = True


def _template_groups(reference: Properties, place: AccountRegion) -> list[str]:
    """Return a launch template's own security groups, or else its interfaces'."""
    template = ec2_backends[place.account_id][place.region].get_launch_template(
        reference["LaunchTemplateId"]
    )
    data = template.latest_version().data
    interface_groups = {
        group: None for nic in data.get("NetworkInterfaces", ()) for group in nic.get("Groups", ())
    }
    return list(data.get("SecurityGroupIds", interface_groups))


def _remove_template_groups(environment: Any, properties: Properties, _: AccountRegion) -> None:
    """Remove the template's groups, because Batch describes only groups of the request."""
    if "GroupsOfTemplate" in properties:
        del environment.compute_resources["securityGroupIds"]


def _register_definition(name: str, properties: Properties, place: AccountRegion) -> Any:
    """AWS::Batch::JobDefinition: moto's registration, plus the type and timeout that it drops."""
    lowered = lowercase_first_key(
        {
            key: properties.get(key, {})
            for key in ("RetryStrategy", "Timeout", "NodeProperties", "ContainerProperties")
        }
    )
    return _backend(place).register_job_definition(
        def_name=properties.get("JobDefinitionName", name),
        parameters=properties.get("Parameters", {}),
        _type=properties["Type"],
        tags=properties.get("Tags", {}),
        retry_strategy=lowered["retryStrategy"],
        container_properties=lowered["containerProperties"] or None,
        node_properties=lowered["nodeProperties"] or None,
        eks_properties=None,
        timeout=lowered["timeout"],
        platform_capabilities=properties.get("PlatformCapabilities", []),
        propagate_tags=properties.get("PropagateTags", False),
    )


def get_arn(self: Any, attribute_name: str) -> str:
    """Resolve Fn::GetAtt of a compute environment or job queue, whose only attribute is the ARN."""
    if attribute_name not in ("ComputeEnvironmentArn", "JobQueueArn"):
        raise ValidationError(message=f"attribute {attribute_name} is not supported")
    return str(self.arn)


def describe_with_nodes(definition: JobDefinition) -> dict[str, Any]:
    """Describe a definition as moto does, with the node properties that it omits."""
    described: dict[str, Any] = _moto_describe(definition)
    if definition.node_properties is not None:
        described["nodeProperties"] = definition.node_properties
    return described


_moto_describe = JobDefinition.describe


def _keep_queue_extras(queue: Any, properties: Properties, place: AccountRegion) -> None:
    """Keep the queue's time limits for the scheduler."""
    queue.job_state_time_limit_actions = [
        lowercase_first_key(action) for action in properties.get("JobStateTimeLimitActions", [])
    ]


def _update_environment(environment: Any, change: PropertyChange, _: AccountRegion) -> Any:
    """Update in place, although AWS may replace an environment and thereby change its ARN."""
    change.refuse_others(
        "AWS::Batch::ComputeEnvironment", frozenset({"ComputeResources", "State", "Tags"})
    )
    environment.compute_resources = lowercase_first_key(change.properties["ComputeResources"])
    environment.state = change.properties.get("State", "ENABLED")
    return environment


def _update_queue(queue: Any, change: PropertyChange, place: AccountRegion) -> Any:
    properties = change.properties
    order = [lowercase_first_key(entry) for entry in properties["ComputeEnvironmentOrder"]]
    _backend(place).update_job_queue(
        queue.name, properties["Priority"], properties.get("State"), order, None
    )
    return queue


def _update_definition(definition: Any, change: PropertyChange, place: AccountRegion) -> Any:
    """Register a new revision and deregister the old one, as CloudFormation does."""
    new_definition = _register_definition(definition.name, change.properties, place)
    _backend(place).deregister_job_definition(definition.arn)
    return new_definition


CONTRIBUTION = Contribution(
    create={"AWS::Batch::JobDefinition": _register_definition},
    before={"AWS::Batch::ComputeEnvironment": _complete_environment},
    after={
        "AWS::Batch::ComputeEnvironment": _remove_template_groups,
        "AWS::Batch::JobQueue": _keep_queue_extras,
    },
    update={
        "AWS::Batch::ComputeEnvironment": _update_environment,
        "AWS::Batch::JobQueue": _update_queue,
        "AWS::Batch::JobDefinition": _update_definition,
    },
    delete={
        "AWS::Batch::ComputeEnvironment": lambda env, _, place: _backend(
            place
        ).delete_compute_environment(env.arn),
        "AWS::Batch::JobQueue": lambda queue, _, place: _backend(place).delete_job_queue(queue.arn),
        "AWS::Batch::JobDefinition": lambda definition, _, place: _backend(
            place
        ).deregister_job_definition(definition.arn),
    },
)
