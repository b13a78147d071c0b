"""What the commands of the cluster share: the deployment, which has to have one."""

from jobs.aws import Aws
from jobs.commands.options import Globals
from jobs.deployment import Deployment, EksTarget, read_deployment
from jobs.eks.service import EksService
from jobs.errors import Refusal
from trainium_catalogue.contract import Orchestrator


def eks_deployment(given: Globals, what: str) -> tuple[Aws, Deployment, EksTarget]:
    """Read the deployment; refuse one without a cluster."""
    aws = Aws(given.region)
    target = read_deployment(aws.ssm(), given.deployment, region=aws.region)
    if Orchestrator.EKS in target.unusable:
        raise target.unusable[Orchestrator.EKS]
    if target.eks is None:
        both = target.redeploy_command(orchestrators="batch,eks")
        raise Refusal(
            "no-eks",
            f"{what} needs a cluster, and deployment {target.name!r} has none; deploy one with "
            f"`{both}` and the other -c settings it was deployed with",
        )
    return aws, target, target.eks


def eks_service(given: Globals, what: str) -> EksService:
    """The deployment's cluster."""
    aws, target, _ = eks_deployment(given, what)
    return EksService(aws, target)
