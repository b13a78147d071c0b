"""Entry point of `python -m jobs`."""

import gc
from typing import Annotated

import typer

from jobs.commands.catalogue import catalogue
from jobs.commands.list_runs import list_runs
from jobs.commands.logs import logs
from jobs.commands.status import status
from jobs.commands.stop import stop
from jobs.commands.submit import submit
from jobs.options import Globals
from trainium_catalogue.contract import DEFAULT_DEPLOYMENT

app = typer.Typer(
    name="python -m jobs",
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
) -> None:
    """Run multi-node Trainium jobs on a deployment of this project.

    Nothing but the deployment's name is needed: `cdk deploy` has published the rest. Credentials
    and region come from the usual AWS settings.

    \b
    Examples:
      python -m jobs catalogue
      python -m jobs submit all-reduce --nodes 4 --follow
      python -m jobs status
      python -m jobs --deployment team-b --region us-east-2 list
    """
    context.obj = Globals(deployment=deployment, region=region)


app.command("submit")(submit)
app.command("list")(list_runs)
app.command("status")(status)
app.command("logs")(logs)
app.command("stop")(stop)
app.command("catalogue")(catalogue)

if __name__ == "__main__":
    # The collector runs dozens of times while boto3 reads its service models, for nothing: a
    # quarter of the processor time of a submission. Following, which lasts, turns it on again.
    gc.disable()
    app(prog_name="python -m jobs")
