"""The command line of `python -m jobs`."""

from typing import Annotated

import typer

from jobs.commands.catalogue import catalogue
from jobs.commands.check_deploy import check_deploy
from jobs.commands.download import download
from jobs.commands.kubeconfig import kubeconfig
from jobs.commands.list_runs import list_runs
from jobs.commands.logs import logs
from jobs.commands.options import Globals
from jobs.commands.scale import scale
from jobs.commands.shell import shell
from jobs.commands.status import status
from jobs.commands.stop import stop
from jobs.commands.submit import submit
from jobs.commands.submit_help import SubmitCommand
from jobs.commands.tensorboard import tensorboard
from jobs.commands.token import token
from jobs.commands.top import top
from jobs.commands.upload import upload
from jobs.commands.usage_errors import JobsGroup
from jobs.commands.verify import verify
from trainium_catalogue.contract import DEFAULT_DEPLOYMENT, ENV_PROCESSES_PER_NODE

app = typer.Typer(
    name="python -m jobs",
    cls=JobsGroup,
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


@app.callback()
def main(
    context: typer.Context,
    deployment: Annotated[
        str,
        typer.Option(
            "--deployment", envvar="TRAINIUM_DEPLOYMENT", help="Deployment to use, by its name."
        ),
    ] = DEFAULT_DEPLOYMENT,
    region: Annotated[
        str | None,
        typer.Option(
            "--region",
            # boto3 knows AWS_DEFAULT_REGION and the profile; AWS_REGION it does not read.
            envvar="AWS_REGION",
            help="AWS region of the deployment.",
            show_default="the profile's",
        ),
    ] = None,
    processes_per_node: Annotated[
        int | None,
        # A rehearsal's nodes have fewer processes than the instance type; plans have to match.
        typer.Option("--processes-per-node", envvar=ENV_PROCESSES_PER_NODE, min=1, hidden=True),
    ] = None,
) -> None:
    """Run multi-node Trainium jobs on a deployment of this project.

    Nothing but the deployment's name is needed: `cdk deploy` has published the rest. Credentials
    and region come from the usual AWS settings.

    \b
    Examples:
      python -m jobs catalogue
      python -m jobs submit all-reduce --nodes 4 --follow
      python -m jobs submit llama2-7b --help
      python -m jobs status
      python -m jobs --deployment team-b --region us-east-2 list
    """
    context.obj = Globals(
        deployment=deployment, region=region, processes_per_node=processes_per_node
    )


app.command(
    "submit",
    cls=SubmitCommand,
    # A workload's parameters are options as well, which only the catalogue knows.
    context_settings={"ignore_unknown_options": True, "allow_extra_args": True},
)(submit)
app.command("upload")(upload)
app.command("download")(download)
app.command("list")(list_runs)
app.command("status")(status)
app.command("logs")(logs)
app.command("stop")(stop)
app.command("verify")(verify)
app.command("catalogue")(catalogue)
app.command("check-deploy")(check_deploy)
app.command("kubeconfig")(kubeconfig)
app.command("token", hidden=True)(token)
app.command("scale")(scale)
app.command("shell")(shell)
app.command("top")(top)
app.command("tensorboard")(tensorboard)
