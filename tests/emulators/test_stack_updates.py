"""Updates of stacks against the real server."""

import json
from typing import Any

import botocore.exceptions
import pytest

from tests.emulators.conftest import Client

Json = dict[str, Any]
PARAMETERS = {"Version": {"Type": "String", "Default": "1"}}


def template(resources: Json, exports: Json) -> str:
    outputs = {
        f"Export{name}": {"Value": value, "Export": {"Name": name}}
        for name, value in exports.items()
    }
    return json.dumps({"Parameters": PARAMETERS, "Resources": resources, "Outputs": outputs})


def create(client: Client, name: str, resources: Json, **exports: Any) -> None:
    body = template(resources, exports)
    client("cloudformation").create_stack(StackName=name, TemplateBody=body)


def update(client: Client, name: str, resources: Json, **exports: Any) -> None:
    """Update as the CDK CLI does: with previous values of unset parameters."""
    client("cloudformation").update_stack(
        StackName=name,
        TemplateBody=template(resources, exports),
        Parameters=[{"ParameterKey": "Version", "UsePreviousValue": True}],
    )


def value(name: str, text: Any) -> Json:
    properties = {"Name": name, "Type": "String", "Value": text}
    return {"Type": "AWS::SSM::Parameter", "Properties": properties}


def read(client: Client, name: str) -> str:
    return str(client("ssm").get_parameter(Name=name)["Parameter"]["Value"])


def definition(command: str) -> Json:
    container = {
        "Image": "x",
        "Command": [command],
        "ResourceRequirements": [
            {"Type": "VCPU", "Value": "1"},
            {"Type": "MEMORY", "Value": "512"},
        ],
    }
    properties = {"Type": "container", "ContainerProperties": container}
    return {"Type": "AWS::Batch::JobDefinition", "Properties": properties}


def test_update_changes_adds_and_removes(client: Client) -> None:
    create(client, "values", {"Kept": value("/u/kept", "1"), "Gone": value("/u/gone", "1")})

    update(client, "values", {"Kept": value("/u/kept", "2"), "Added": value("/u/added", "1")})

    assert (read(client, "/u/kept"), read(client, "/u/added")) == ("2", "1")
    with pytest.raises(botocore.exceptions.ClientError, match="ParameterNotFound"):
        read(client, "/u/gone")


def test_references_to_replaced_resource_are_updated(client: Client) -> None:
    publishes = value("/u/definition", {"Ref": "Definition"})
    create(client, "revisions", {"Definition": definition("a"), "Publishes": publishes})
    first = read(client, "/u/definition")

    update(client, "revisions", {"Definition": definition("b"), "Publishes": publishes})

    second = read(client, "/u/definition")
    described = client("batch").describe_job_definitions(jobDefinitions=[first, second])
    found = {
        entry["jobDefinitionArn"]: (entry["status"], entry["containerProperties"]["command"])
        for entry in described["jobDefinitions"]
    }
    assert found == {first: ("INACTIVE", ["a"]), second: ("ACTIVE", ["b"])}


def test_rules_of_a_security_group_follow_the_template(client: Client) -> None:
    def resources(port: int) -> Json:
        rule = {"CidrIp": "0.0.0.0/0", "FromPort": port, "ToPort": port, "IpProtocol": "tcp"}
        group = {
            "GroupDescription": "x",
            "VpcId": {"Ref": "Vpc"},
            "SecurityGroupEgress": [rule],
        }
        return {
            "Vpc": {"Type": "AWS::EC2::VPC", "Properties": {"CidrBlock": "10.7.0.0/16"}},
            "Group": {"Type": "AWS::EC2::SecurityGroup", "Properties": group},
        }

    def ports() -> list[int | None]:
        described = client("ec2").describe_security_groups()["SecurityGroups"]
        (group,) = [entry for entry in described if entry["Description"] == "x"]
        return [rule.get("ToPort") for rule in group["IpPermissionsEgress"]]

    create(client, "group", resources(443))
    assert ports() == [443]
    update(client, "group", resources(8443))
    assert ports() == [8443]


def test_ssm_parameter_value_is_read_again_on_update(client: Client) -> None:
    def body(text: str) -> str:
        parameter = {"Type": "AWS::SSM::Parameter::Value<String>", "Default": "/u/source"}
        return json.dumps(
            {
                "Parameters": {"Source": parameter},
                "Resources": {
                    "Copy": value("/u/copy", {"Ref": "Source"}),
                    "Other": value("/u/other", text),
                },
            }
        )

    client("ssm").put_parameter(Name="/u/source", Type="String", Value="first")
    client("cloudformation").create_stack(StackName="copies", TemplateBody=body("1"))
    client("ssm").put_parameter(Name="/u/source", Value="second", Overwrite=True)

    client("cloudformation").update_stack(
        StackName="copies",
        TemplateBody=body("2"),
        Parameters=[{"ParameterKey": "Source", "UsePreviousValue": True}],
    )

    assert read(client, "/u/copy") == "second"


def test_unsupported_in_place_change_is_refused_and_named(client: Client) -> None:
    vpc = {"Type": "AWS::EC2::VPC", "Properties": {"CidrBlock": "10.8.0.0/16"}}
    create(client, "vpc", {"Vpc": vpc})
    other = {"Type": "AWS::EC2::VPC", "Properties": {"CidrBlock": "10.9.0.0/16"}}

    with pytest.raises(botocore.exceptions.ClientError, match=r"Vpc: .* cannot update"):
        update(client, "vpc", {"Vpc": other})


def test_updated_stack_is_deleted_with_current_resources(client: Client) -> None:
    create(client, "end", {"One": value("/u/one", "1")})
    update(client, "end", {"One": value("/u/one", "2"), "Two": value("/u/two", "1")})

    client("cloudformation").delete_stack(StackName="end")

    names = [p["Name"] for p in client("ssm").describe_parameters()["Parameters"]]
    assert not {"/u/one", "/u/two"} & set(names)


# --- exports -------------------------------------------------------------------------------------


def refused(message: str) -> Any:
    return pytest.raises(botocore.exceptions.ClientError, match=message)


def create_pair(client: Client, number: int) -> None:
    """Create a stack with an export, and one that imports it."""
    offer, name = f"Offer{number}", f"/u/offers{number}"
    create(client, f"offers{number}", {"One": value(name, "1")}, **{offer: "1"})
    imports = {"One": value(f"/u/takes{number}", {"Fn::ImportValue": offer})}
    create(client, f"takes{number}", imports)


def test_update_does_not_delete_export_in_use(client: Client) -> None:
    create_pair(client, 1)

    with refused("Export Offer1 cannot be deleted as it is in use by takes1"):
        update(client, "offers1", {"One": value("/u/offers1", "2")})

    assert read(client, "/u/offers1") == "1"


def test_export_in_use_is_not_changed(client: Client) -> None:
    create_pair(client, 2)

    with refused("Export Offer2 cannot be updated as it is in use by takes2"):
        update(client, "offers2", {"One": value("/u/offers2", "1")}, Offer2="2")


def test_stack_with_export_in_use_is_not_deleted(client: Client) -> None:
    create_pair(client, 3)

    with refused("Cannot delete export Offer3 as it is in use by takes3"):
        client("cloudformation").delete_stack(StackName="offers3")

    assert read(client, "/u/offers3") == "1"


def test_export_is_deleted_without_importers(client: Client) -> None:
    create_pair(client, 4)

    update(client, "takes4", {"One": value("/u/takes4", "own")})
    update(client, "offers4", {"One": value("/u/offers4", "1")})

    with refused("No export named Offer4"):
        create(client, "late4", {"One": value("/u/late4", {"Fn::ImportValue": "Offer4"})})


def test_export_of_update_can_be_imported(client: Client) -> None:
    create(client, "offers5", {"One": value("/u/offers5", "1")})
    update(client, "offers5", {"One": value("/u/offers5", "1")}, Offer5="5")

    create(client, "takes5", {"One": value("/u/takes5", {"Fn::ImportValue": "Offer5"})})

    assert read(client, "/u/takes5") == "5"


def nodes(*, with_efa: bool, vcpus: int = 256) -> Json:
    """A queue and its environment, as the Batch stack has them for a type with or without EFA."""
    group = {"Fn::GetAtt": ["Vpc", "DefaultSecurityGroup"]}
    nic = {"DeviceIndex": 0, "InterfaceType": "efa", "Groups": [group]}
    data = {"NetworkInterfaces": [nic]} if with_efa else {"SecurityGroupIds": [group]}
    compute = {
        "Type": "EC2",
        "AllocationStrategy": "BEST_FIT_PROGRESSIVE",
        "InstanceRole": {"Fn::GetAtt": ["Profile", "Arn"]},
        "InstanceTypes": ["trn1.32xlarge" if with_efa else "trn1.2xlarge"],
        "MinvCpus": 0,
        "MaxvCpus": vcpus,
        "Subnets": [{"Ref": "Subnet"}],
        "LaunchTemplate": {
            "LaunchTemplateId": {"Ref": "Node"},
            "Version": {"Fn::GetAtt": ["Node", "LatestVersionNumber"]},
        },
        **({} if with_efa else {"SecurityGroupIds": [group]}),
    }
    environment = "Environment" if with_efa else "EnvironmentWithGroups"
    order = {"Order": 1, "ComputeEnvironment": {"Ref": environment}}
    subnet = {"VpcId": {"Ref": "Vpc"}, "CidrBlock": "10.11.0.0/24"}
    role = {"AssumeRolePolicyDocument": {"Version": "2012-10-17", "Statement": []}}
    described = {
        "Vpc": ("EC2::VPC", {"CidrBlock": "10.11.0.0/16"}),
        "Subnet": ("EC2::Subnet", subnet),
        "Role": ("IAM::Role", role),
        "Profile": ("IAM::InstanceProfile", {"Roles": [{"Ref": "Role"}]}),
        "Node": ("EC2::LaunchTemplate", {"LaunchTemplateData": data}),
        environment: (
            "Batch::ComputeEnvironment",
            {"Type": "MANAGED", "ComputeResources": compute},
        ),
        "Queue": ("Batch::JobQueue", {"Priority": 1, "ComputeEnvironmentOrder": [order]}),
    }
    return {
        name: {"Type": f"AWS::{kind}", "Properties": properties}
        for name, (kind, properties) in described.items()
    }


def test_change_to_type_with_efa_moves_queue_to_new_environment(
    client: Client,
) -> None:
    # In reverse, the emulator creates the environment before changing the launch template.
    batch = client("batch")
    create(client, "nodes", nodes(with_efa=False))
    (before,) = batch.describe_compute_environments()["computeEnvironments"]

    update(client, "nodes", nodes(with_efa=True))

    (after,) = batch.describe_compute_environments()["computeEnvironments"]
    (queue,) = batch.describe_job_queues()["jobQueues"]
    arn = after["computeEnvironmentArn"]
    assert arn != before["computeEnvironmentArn"]
    assert [each["computeEnvironment"] for each in queue["computeEnvironmentOrder"]] == [arn]
    assert "securityGroupIds" in before["computeResources"]
    # Batch uses the groups of the launch template's interfaces, and describes none.
    assert "securityGroupIds" not in after["computeResources"]

    update(client, "nodes", nodes(with_efa=True, vcpus=512))
    (larger,) = batch.describe_compute_environments()["computeEnvironments"]
    assert larger["computeEnvironmentArn"] == arn
    assert larger["computeResources"]["maxvCpus"] == 512
    assert "securityGroupIds" not in larger["computeResources"]

    client("cloudformation").delete_stack(StackName="nodes")
    assert batch.describe_compute_environments()["computeEnvironments"] == []
