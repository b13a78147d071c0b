"""Examples of S3, ECR, KMS, SSM, logs, IAM, Lambda and of templates as a whole."""

from __future__ import annotations

import json
from typing import Any

from tests.emulators.refusal_examples.example import (
    NETWORK,
    REMOVED,
    Example,
    Json,
    allow,
    att,
    ref,
    resource,
    trust,
)

ROOT = {
    "Effect": "Allow",
    "Principal": {"AWS": "arn:aws:iam::111111111111:root"},
    "Action": "kms:*",
    "Resource": "*",
}
VPC_POLICY = "arn:aws:iam::aws:policy/service-role/AWSLambdaVPCAccessExecutionRole"
_RULE = {
    "rulePriority": 1,
    "selection": {
        "tagStatus": "untagged",
        "countType": "imageCountMoreThan",
        "countNumber": 3,
    },
    "action": {"type": "expire"},
}


def _lifecycle(*rules: Json) -> str:
    return json.dumps({"rules": rules})


def _rule(priority: int, **selection: Any) -> Json:
    merged = {**_RULE["selection"], **selection}  # type: ignore[dict-item]
    return {**_RULE, "rulePriority": priority, "selection": merged}


def _of_bucket(action: str, resource_: Any, **changes: Any) -> Json:
    statement = {
        "Effect": "Allow",
        "Principal": {"AWS": "arn:aws:iam::111111111111:root"},
        "Action": action,
        "Resource": resource_,
    }
    return {"Version": "2012-10-17", "Statement": [{**statement, **changes}]}


BASE: Json = {
    **NETWORK,
    "Bucket": resource(
        "AWS::S3::Bucket",
        BucketName="trainium-mine",
        LifecycleConfiguration={
            "Rules": [{"Id": "one", "Status": "Enabled", "ExpirationInDays": 90, "Prefix": "a/"}]
        },
        PublicAccessBlockConfiguration={"BlockPublicPolicy": True},
    ),
    "BucketPolicy": resource(
        "AWS::S3::BucketPolicy",
        Bucket=ref("Bucket"),
        PolicyDocument=_of_bucket("s3:GetObject", "arn:aws:s3:::trainium-mine/*"),
    ),
    "Literal": resource(
        "AWS::S3::BucketPolicy",
        Bucket="trainium-mine",
        PolicyDocument=_of_bucket("s3:GetObject", "arn:aws:s3:::trainium-mine/*"),
    ),
    "Repository": resource(
        "AWS::ECR::Repository",
        RepositoryName="mine",
        LifecyclePolicy={"LifecyclePolicyText": _lifecycle(_RULE)},
    ),
    "Key": resource(
        "AWS::KMS::Key",
        EnableKeyRotation=True,
        KeyPolicy={"Version": "2012-10-17", "Statement": [ROOT]},
    ),
    "Parameter": resource("AWS::SSM::Parameter", Name="/trainium/x", Type="String", Value="x"),
    "Logs": resource("AWS::Logs::LogGroup", LogGroupName="/trainium/x"),
    "Role": resource(
        "AWS::IAM::Role",
        AssumeRolePolicyDocument=trust("lambda.amazonaws.com"),
        ManagedPolicyArns=[VPC_POLICY],
    ),
    "Policy": resource(
        "AWS::IAM::Policy",
        PolicyName="policy",
        PolicyDocument=allow("s3:GetObject"),
        Roles=[ref("Role")],
    ),
    "Profile": resource("AWS::IAM::InstanceProfile", Roles=[ref("Role")]),
    "Function": resource(
        "AWS::Lambda::Function",
        Code={"ZipFile": "def handler(event, context): pass"},
        Handler="index.handler",
        Runtime="python3.13",
        Role=att("Role", "Arn"),
        VpcConfig={"SubnetIds": [ref("One")], "SecurityGroupIds": [att("Group", "GroupId")]},
    ),
}


def _of(bad: Json, good: Json | None = None) -> Example:
    return Example(base=BASE, bad=bad, good=good or {})


def _role_policy(document: Json) -> list[Json]:
    return [{"PolicyName": "own", "PolicyDocument": document}]


def _many(number: int) -> Json:
    return allow("s3:GetObject", resources=[f"arn:aws:s3:::bucket/{n:080}" for n in range(number)])


_RULES = "Bucket.LifecycleConfiguration.Rules"
_LIFECYCLE = "Repository.LifecyclePolicy.LifecyclePolicyText"
_TRUST = "Role.AssumeRolePolicyDocument.Statement.0"
_DOCUMENT = "BucketPolicy.PolicyDocument"
_VARIABLES = "Function.Environment.Variables"
_IN = {"Id": "two", "Status": "Enabled"}

EXAMPLES: dict[str, Example] = {
    "bucket-rule-ids": _of(
        {f"{_RULES}.1": {**_IN, "Id": "one", "ExpirationInDays": 1, "Prefix": "b/"}},
        {f"{_RULES}.1": {**_IN, "ExpirationInDays": 1, "Prefix": "b/"}},
    ),
    "bucket-rule-empty": _of({f"{_RULES}.1": _IN}),
    "bucket-marker-and-days": _of({f"{_RULES}.0.ExpiredObjectDeleteMarker": True}),
    "bucket-abort-and-tags": _of(
        {
            f"{_RULES}.1": {
                **_IN,
                "TagFilters": [{"Key": "a", "Value": "b"}],
                "AbortIncompleteMultipartUpload": {"DaysAfterInitiation": 7},
            }
        },
        {f"{_RULES}.1": {**_IN, "AbortIncompleteMultipartUpload": {"DaysAfterInitiation": 7}}},
    ),
    "bucket-expires-before-moved": _of(
        {f"{_RULES}.0.Transitions": [{"StorageClass": "GLACIER", "TransitionInDays": 120}]},
        {f"{_RULES}.0.Transitions": [{"StorageClass": "GLACIER", "TransitionInDays": 60}]},
    ),
    "bucket-name-reserved": _of({"Bucket.BucketName": "xn--mine"}),
    "bucket-policy-public": _of(
        {_DOCUMENT: _of_bucket("s3:GetObject", "arn:aws:s3:::trainium-mine/*", Principal="*")}
    ),
    "bucket-policy-objects": _of({_DOCUMENT: _of_bucket("s3:GetObject", att("Bucket", "Arn"))}),
    "bucket-policy-other-bucket": _of(
        {
            "Literal.PolicyDocument": _of_bucket("s3:GetObject", "arn:aws:s3:::another/*"),
            "Bucket.BucketName": "trainium-mine",
        },
        {"Bucket.BucketName": "trainium-mine"},
    ),
    "bucket-policy-size": _of(
        {_DOCUMENT: _of_bucket("s3:GetObject", [f"arn:aws:s3:::trainium-mine/{n:080}"
                                                for n in range(200)])}
    ),
    "repository-policy": _of({_LIFECYCLE: "{"}),
    "repository-priority-twice": _of(
        {_LIFECYCLE: _lifecycle(_RULE, _rule(1, tagStatus="any"))},
        {_LIFECYCLE: _lifecycle(_RULE, _rule(2, tagStatus="any"))},
    ),
    "repository-any-not-last": _of(
        {_LIFECYCLE: _lifecycle(_rule(1, tagStatus="any"), _rule(2))},
        {_LIFECYCLE: _lifecycle(_rule(2, tagStatus="any"), _rule(1))},
    ),
    "repository-tagged-without-list": _of(
        {_LIFECYCLE: _lifecycle(_rule(1, tagStatus="tagged"))},
        {_LIFECYCLE: _lifecycle(_rule(1, tagStatus="tagged", tagPrefixList=["v"]))},
    ),
    "repository-list-without-tag": _of(
        {_LIFECYCLE: _lifecycle(_rule(1, tagPrefixList=["v"]))}
    ),
    "repository-count-unit": _of({_LIFECYCLE: _lifecycle(_rule(1, countUnit="days"))}),
    "key-locked-out": _of({"Key.KeyPolicy.Statement.0.Action": "kms:Decrypt"}),
    "key-policy-characters": _of(
        {"Key.KeyPolicy.Statement.0.Sid": "\N{RIGHTWARDS ARROW}"},
        {"Key.KeyPolicy.Statement.0.Sid": "plain"},
    ),
    "key-rotation": _of({"Key.KeySpec": "RSA_2048", "Key.KeyUsage": "ENCRYPT_DECRYPT"}),
    "parameter-prefix": _of({"Parameter.Name": "/aws-mine/x"}),
    "parameter-slash": _of({"Parameter.Name": "/trainium/x/"}),
    "parameter-characters": _of({"Parameter.Name": "/trainium/my x"}),
    "parameter-depth": _of(
        {"Parameter.Name": "/a" * 16}, {"Parameter.Name": "/a" * 15}
    ),
    "parameter-size": _of({"Parameter.Value": "x" * 4097}, {"Parameter.Value": "x" * 4096}),
    "parameter-nested": _of({"Parameter.Value": "{{other}}"}),
    "parameter-pattern": _of(
        {"Parameter.AllowedPattern": "[0-9]+"}, {"Parameter.AllowedPattern": "[a-z]+"}
    ),
    "log-group-name": _of({"Logs.LogGroupName": "aws/mine"}),
    "role-description": _of(
        {"Role.Description": "nodes \N{EM DASH} of the cluster"}, {"Role.Description": "nodes"}
    ),
    "role-trust-actions": _of({f"{_TRUST}.Action": ["sts:AssumeRole", "s3:GetObject"]}),
    "role-trust-service": _of({f"{_TRUST}.Principal": {"Service": "lambda"}}),
    "role-trust-resource": _of({f"{_TRUST}.Resource": "*"}),
    "role-trust-size": _of(
        {f"{_TRUST}.Condition": {"StringEquals": {"aws:PrincipalTag/x": ["x" * 2048]}}},
        {f"{_TRUST}.Condition": {"StringEquals": {"aws:PrincipalTag/x": ["x" * 1024]}}},
    ),
    "role-policies": _of(
        {"Role.ManagedPolicyArns": [f"arn:aws:iam::111111111111:policy/{n}" for n in range(26)]},
        {"Role.ManagedPolicyArns": [f"arn:aws:iam::111111111111:policy/{n}" for n in range(20)]},
    ),
    "role-policy-size": _of(
        {"Role.Policies": _role_policy(_many(110))}, {"Role.Policies": _role_policy(_many(90))}
    ),
    "role-path": _of({"Role.Path": "/aws-service-role/"}, {"Role.Path": "/mine/"}),
    "policy-size": _of({"Policy.PolicyDocument": _many(110)}, {"Policy.PolicyDocument": _many(90)}),
    "role-action-vendor": _of(
        {"Role.Policies": _role_policy(allow("GetObject"))},
        {"Role.Policies": _role_policy(allow("s3:GetObject"))},
    ),
    "policy-action-vendor": _of({"Policy.PolicyDocument": allow("GetObject")}),
    "policy-action-colons": _of({"Policy.PolicyDocument": allow("s3:Get:Object")}),
    "policy-resource-region": _of(
        {"Policy.PolicyDocument": allow("s3:GetObject", resources="arn:aws:s3:us-west-2::b/*")}
    ),
    "profile-roles": _of(
        {"Profile.Roles": [ref("Role"), ref("Second")],
         "Second": resource("AWS::IAM::Role",
                            AssumeRolePolicyDocument=trust("ec2.amazonaws.com"))},
    ),
    "function-interfaces": _of(
        {"Role.ManagedPolicyArns": REMOVED, "Function.Timeout": 60}, {"Function.Timeout": 60}
    ),
    "function-network-empty": _of({"Function.VpcConfig.SecurityGroupIds": []}),
    "function-variables-size": _of(
        {_VARIABLES: {"AA": "x" * 4096}}, {_VARIABLES: {"AA": "x" * 4000}}
    ),
    "function-variable-name": _of({_VARIABLES: {"1A": "x"}}, {_VARIABLES: {"A1": "x"}}),
    "function-variable-reserved": _of(
        {_VARIABLES: {"AWS_REGION": "us-west-2"}}, {_VARIABLES: {"REGION": "us-west-2"}}
    ),
    "function-log-level": _of(
        {"Function.LoggingConfig": {"ApplicationLogLevel": "FATAL"}},
        {"Function.LoggingConfig": {"ApplicationLogLevel": "FATAL", "LogFormat": "JSON"}},
    ),
    "name-twice": _of(
        {"Again": BASE["Parameter"], "Parameter.Value": "y"}, {"Parameter.Value": "y"}
    ),
}  # fmt: skip


def _outputs(**outputs: Json) -> Json:
    return {"Resources": {"Parameter": BASE["Parameter"]}, "Outputs": outputs}


def _output(name: str, value: Any = "x") -> Json:
    return {"Value": value, "Export": {"Name": name}}


TEMPLATES: dict[str, tuple[Json, Json]] = {
    "export-name": (_outputs(A=_output("my_name")), _outputs(A=_output("my-name"))),
    "export-twice": (
        _outputs(A=_output("one"), B=_output("one")),
        _outputs(A=_output("one"), B=_output("two")),
    ),
    "export-size": (
        _outputs(A=_output("one", "x" * 1025)),
        _outputs(A=_output("one", "x" * 1024)),
    ),
    "output-list": (_outputs(A=_output("one", ["x"])), _outputs(A=_output("one"))),
}
