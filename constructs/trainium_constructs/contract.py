"""The SSM parameters that a deployment publishes and the CLI reads."""

from __future__ import annotations

from collections.abc import Mapping

from aws_cdk import aws_ssm as ssm
from constructs import Construct

from trainium_catalogue.contract import ssm_parameter


class PublishedContract(Construct):
    """An SSM parameter for every value that the CLI needs, so that users never type an ARN."""

    def __init__(
        self, scope: Construct, construct_id: str, *, deployment: str, values: Mapping[str, str]
    ) -> None:
        """Publish ``values``, by parameter name relative to the deployment's path."""
        super().__init__(scope, construct_id)
        for name, value in values.items():
            ssm.StringParameter(
                self,
                name.replace("/", "-"),
                # A fixed name: other programs find all other resources through these parameters.
                parameter_name=ssm_parameter(deployment, name),
                string_value=value,
            )
