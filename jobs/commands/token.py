"""`jobs token`: credentials for kubectl, which calls this by itself."""

from datetime import UTC, datetime
from typing import Annotated

import typer

from jobs.aws import Aws
from jobs.commands.options import RegionOption, chosen, command
from jobs.errors import EXIT_OK
from jobs.output.console import print_document


@command
def token(
    context: typer.Context,
    cluster: Annotated[str, typer.Argument(help="Name of the EKS cluster.")],
    region: RegionOption = None,
) -> int:
    """Print an ExecCredential for one cluster; kubectl calls this."""
    from jobs.eks.cluster import exec_credential, make_token

    aws = Aws(chosen(context, None, region).region)
    print_document(exec_credential(make_token(aws, cluster), now=datetime.now(UTC)))
    return EXIT_OK
