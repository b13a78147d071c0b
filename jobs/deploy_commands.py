"""How a deployment comes to be: the commands that refusals name."""

from __future__ import annotations

from collections.abc import Mapping

from jobs.aws import SsmClient
from jobs.errors import Refusal
from trainium_catalogue import contract
from trainium_catalogue.suggest import did_you_mean


def missing_deployment(ssm: SsmClient, name: str, where: str) -> Refusal:
    """The refusal where there is no deployment of that name."""
    parameter = contract.ssm_parameter(name, contract.SSM_CONTRACT_VERSION)
    others = _other_deployments(ssm)
    hint = f"; deployed here: {did_you_mean(name, others)}" if others else ""
    return Refusal(
        "no-deployment",
        f"no deployment {name!r}{where}: there is no SSM parameter {parameter}; give the "
        "--region it is in, another --deployment or AWS_PROFILE, or deploy it with "
        f"`{deploy_command(name)}`{hint}",
    )


def _other_deployments(ssm: SsmClient) -> set[str]:
    """Names of the deployments that exist; only a hint, so whatever goes wrong is no matter."""
    root = contract.ssm_root("").rstrip("/")
    names: set[str] = set()
    token: dict[str, str] = {}
    try:
        for _ in range(20):
            page = ssm.get_parameters_by_path(Path=root, Recursive=True, **token)
            names |= {
                item["Name"].removeprefix(f"{root}/").partition("/")[0]
                for item in page["Parameters"]
            }
            if not page.get("NextToken"):
                break
            token = {"NextToken": page["NextToken"]}
    except Exception:  # a hint must not hide the refusal it belongs to
        return names
    return names


def deploy_command(name: str) -> str:
    """The command that deploys under a name."""
    return cdk_deploy({} if name == contract.DEFAULT_DEPLOYMENT else {"deployment": name})


def cdk_deploy(settings: Mapping[str, object]) -> str:
    """The command that deploys with these context keys."""
    options = "".join(f" -c trainium:{key}={value}" for key, value in settings.items())
    return f"cdk deploy --all{options}"
