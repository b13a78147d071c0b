"""Data of a user's own program: looked up, and refused, before anything is spent."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterator, Mapping

from jobs.bucket.objects import Bucket
from jobs.deployment import Deployment
from jobs.errors import Refusal, error_code
from jobs.submit.inputs import hint
from trainium_catalogue import contract
from trainium_catalogue.workloads import Value

_URI = re.compile(r"s3://[^\s,\"'\]]+")


def check_data(
    bucket: Bucket, target: Deployment, values: Mapping[str, Value], note: Callable[[str], None]
) -> Iterator[str]:
    """Check what the nodes would refuse; yield a line of the plan for each place of data."""
    _check_pattern(str(values.get("progress-pattern") or ""))
    _check_words(str(values.get("resume-arguments") or ""))
    if dataset := str(values.get("dataset") or ""):
        _check_dataset(bucket, dataset)
        yield f"dataset: {dataset}, in {contract.ENV_DATASET_DIR} on every node"
    if uri := str(values.get("input") or ""):
        _check_input(bucket, target, uri, note)
        yield f"input: {uri}, in {contract.ENV_INPUT_DIR} on every node"


def _check_pattern(pattern: str) -> None:
    """Refuse a pattern that a node would refuse."""
    try:
        groups = re.compile(pattern).groupindex
    except re.error as error:
        raise Refusal(
            "progress-pattern",
            f"--progress-pattern {pattern}: not a regular expression: {error}; test it with "
            "Python's re.search on a line of the program's output",
        ) from None
    if pattern and "step" not in groups:
        raise Refusal(
            "progress-pattern",
            f"--progress-pattern {pattern}: has no group for the step; mark it with (?P<step>...), "
            "and the loss, if you like, with (?P<loss>...)",
        )


def _check_words(text: str) -> None:
    """Refuse arguments to resume with that a node could not split."""
    try:
        shlex.split(text)
    except ValueError as error:
        raise Refusal(
            "resume-arguments",
            f"--resume-arguments {text}: {str(error).lower()}; close every quote in it",
        ) from None


def _check_dataset(bucket: Bucket, name: str) -> None:
    prefix = f"{contract.DATASETS_PREFIX}{name}/"
    is_name = re.fullmatch(contract.DATASET_NAME_PATTERN, name) is not None
    if is_name and bucket.head(prefix + contract.DATASET_MANIFEST) is not None:
        return
    if is_name and bucket.has(prefix):
        raise Refusal(
            "dataset-incomplete",
            f"dataset {name!r} is not complete: its {contract.DATASET_MANIFEST} is missing; wait "
            "for the job that makes it, or submit that again; for objects of your own give "
            f"--input s3://{bucket.name}/{prefix} instead",
        )
    there = bucket.names(contract.DATASETS_PREFIX)
    raise Refusal(
        "no-dataset",
        f"there is no dataset {name!r}: {hint('datasets', name, there)}; make one with `python -m "
        "jobs submit prepare` or `tokenize`, or name objects of your own with --input",
    )


def _check_input(bucket: Bucket, target: Deployment, uri: str, note: Callable[[str], None]) -> None:
    name, _, prefix = uri.removeprefix("s3://").partition("/")
    if name == bucket.name:
        if not prefix.startswith(contract.INPUT_PREFIXES):
            raise Refusal(
                "input",
                f"--input {uri}: in the deployment's bucket a program may read below "
                f"{', '.join(contract.INPUT_PREFIXES)} only; put the data there, for example with "
                "`python -m jobs upload`",
            )
        if not bucket.has(prefix):
            raise _nothing_there(uri)
        return
    _check_allowed(target, uri)
    try:
        is_there = Bucket(client=bucket.client, name=name).has(prefix)
    except Exception as error:
        # Whoever submits need not have the rights that the nodes have.
        note(f"--input {uri} was not looked at ({error_code(error) or type(error).__name__})")
        return
    if not is_there:
        raise _nothing_there(uri)


def _check_allowed(target: Deployment, uri: str) -> None:
    """Refuse storage outside the deployment that its nodes may not read, if that is known."""
    if target.settings is None:
        return
    # As it was given to `cdk deploy`: words with commas, or a JSON list.
    allowed = _URI.findall(target.settings.get("data_uris", ""))
    if any(uri.startswith(known) for known in allowed):
        return
    again = target.redeploy(data_uris=",".join([*allowed, uri]))
    there = f"it may read {', '.join(allowed)}" if allowed else "it has no data_uris"
    raise Refusal(
        "input",
        f"--input {uri}: deployment {target.name!r} may not read there, {there}; name one of "
        f"those, or deploy again with {again}",
    )


def _nothing_there(uri: str) -> Refusal:
    return Refusal(
        "no-input",
        f"--input {uri}: nothing is there; name the prefix of objects that exist, with its final "
        "slash",
    )
