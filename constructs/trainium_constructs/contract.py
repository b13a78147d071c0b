"""The SSM parameters that a deployment publishes and the CLI reads."""

from __future__ import annotations

from collections.abc import Mapping

from aws_cdk import aws_ssm as ssm
from constructs import Construct

from trainium_catalogue.contract import ssm_parameter


class PublishedContract(Construct):
    """An SSM parameter for every name that the CLI needs, so that nobody types an ARN."""

    def __init__(
        self, scope: Construct, construct_id: str, *, deployment: str, values: Mapping[str, str]
    ) -> None:
        """Publish ``values``, by name below the deployment's root."""
        super().__init__(scope, construct_id)
        for name, value in values.items():
            ssm.StringParameter(
                self,
                name.replace("/", "-"),
                # The name has to be fixed: it is how other programs find the rest.
                parameter_name=ssm_parameter(deployment, name),
                string_value=value,
            )
