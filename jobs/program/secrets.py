"""Detection of credentials in files and arguments, since bundles are stored in the bucket."""

from __future__ import annotations

import platform
import re
import shlex
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from jobs.errors import Refusal
from jobs.program.globs import match_any
from trainium_catalogue.wording import counted

NAMES = (
    *(".env", ".env.*", "*.env", "*.pem", "*.p12", "*.pfx", "*.key", "*.ppk"),
    *("id_rsa", "id_dsa", "id_ecdsa", "id_ed25519"),
    *(".netrc", "_netrc", ".pypirc", ".git-credentials", ".npmrc", ".pgpass"),
    *(".aws/credentials", "*/.aws/credentials", ".docker/config.json", "*/.docker/config.json"),
    *("kaggle.json", "secrets.yaml", "secrets.yml", "secrets.toml", "secrets.json"),
    *(".kube/config", "*/.kube/config", ".huggingface/token", "*/.huggingface/token"),
)
"""Names of files that usually contain credentials."""
EXAMPLES = ("*.example", "*.sample", "*.template", "*.dist")
"""Names of example files."""

MAX_SCANNED_BYTES = 1_000_000
"""Larger files are not scanned: the detector scans about a megabyte per second."""
_ENVIRONMENT = (
    r"""environ(?:\.setdefault\(|\[)\s*\\?["']\w*(?:KEY|TOKEN|SECRET|PASSWORD)\\?["']"""
    r"""(?:\]\s*=|\s*,)\s*\\?["']([^"'\s\\]{16,})"""
)
"""`os.environ["WANDB_API_KEY"] = "..."`, which the detector's built-in rules miss."""
_WORD = re.compile(
    r"(?:\b(?:AKIA|ASIA)[A-Z2-7]{16}\b|\bhf_[A-Za-z0-9]{34}\b|\bsk-[A-Za-z0-9_-]{20,}"
    r"|-----BEGIN (?:[A-Z]+ )*PRIVATE KEY-----|(?i:aws_secret_access_key)\W{1,4}[A-Za-z0-9/+]{40}\b"
    r"|\bgh[pousr]_[A-Za-z0-9]{36}\b|\bgithub_pat_\w{20,}|\bxox[abpr]-[\w-]{10,})"
)
_FLAG = re.compile(
    r"--?(?:[\w-]*[-_])?(?:api[-_]?key|secret|(?P<token>token)|password|passwd|access[-_]?key)"
    r"(?:=(?P<value>.+))?",
    re.IGNORECASE,
)


def secret_name(path: str) -> str | None:
    """Describe a file whose name suggests that it contains credentials; None for any other."""
    if match_any(path, EXAMPLES):
        return None
    pattern = match_any(path, NAMES)
    if pattern is None:
        return None
    return f"a file named like {pattern}, which usually contains credentials"


def find_secrets(files: Mapping[str, bytes]) -> dict[str, str]:
    """Return the files that contain a credential, each with its line and kind."""
    if not files:
        return {}
    try:
        from pybetterleaks import BetterleaksConfig, Rule, scan_dir  # loads a library of 25 MB
    except ImportError:
        named = [f"--include {shlex.quote(path)}" for path in sorted(files)]
        more = f" and so on for {len(named) - 5} more" if len(named) > 5 else ""
        raise Refusal(
            "secret-scan",
            f"{counted(len(files), 'file')} of the program cannot be scanned for credentials: "
            f"pybetterleaks has no build for {platform.system()} on {platform.machine()}; check "
            f"them yourself, and pass: {' '.join(named[:5])}{more}",
        ) from None

    config = BetterleaksConfig.with_defaults(
        rules=[
            Rule.regex_rule(
                id="environment-variable",
                description="Detected a credential that is put into the environment",
                regex=_ENVIRONMENT,
                keywords=["environ"],
                secret_group=1,
                entropy=3.0,
            )
        ],
        # False positives for class names of Mistral models: "mistral3", "Mistral3For...".
        disabled_rules=["mistral-api-key"],
    )
    secrets: dict[str, str] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name).resolve()
        for path, data in files.items():
            if len(data) <= MAX_SCANNED_BYTES and b"\0" not in data:
                copy = folder / path
                copy.parent.mkdir(parents=True, exist_ok=True)
                copy.write_bytes(data)
        result = scan_dir(folder, config=config)
        if result.errors:
            raise Refusal(
                "secret-scan",
                f"the program could not be scanned for credentials: {result.errors[0].message}; "
                "reinstall pybetterleaks with: make setup",
            )
        for finding in result.findings:
            path = Path(finding.file or name).relative_to(folder).as_posix()
            where = "" if finding.line is None else f"line {finding.line} "
            secrets.setdefault(
                path, f"{where}contains a credential (Betterleaks: {finding.rule_id})"
            )
    return secrets


def secret_word(text: str) -> str | None:
    """Return the start of a word that looks like a credential; None if there is none."""
    match = _WORD.search(text)
    return None if match is None else f"{match[0][:6]}..."


def secret_words(argv: Sequence[str]) -> Iterable[str]:
    """Yield arguments whose value or name suggests a credential, without their values."""
    for index, word in enumerate(argv):
        flag = _FLAG.fullmatch(word)
        if flag is not None:
            follows = flag["value"] or (argv[index + 1] if index + 1 < len(argv) else "")
            # Ignore values too short for a credential, such as `--eos_token </s>`.
            min_length = 8 if flag["token"] else 1
            if len(follows) >= min_length and not follows.startswith("--"):
                yield word.partition("=")[0]
        elif _WORD.search(word) and not (index and _FLAG.fullmatch(argv[index - 1])):
            yield f"{word[:6]}..."


def _credential_error(what: str) -> ValueError:
    return ValueError(
        f"{what}: it looks like a credential, and would be visible in the job's description, in "
        "program.json and in logs; make the program read it from elsewhere, such as AWS Secrets "
        "Manager with --aws-credentials"
    )


def check_arguments(argv: Sequence[str]) -> None:
    """Raise ``ValueError`` for an argument that looks like a credential."""
    for index, word in enumerate(argv):
        if _WORD.search(word):
            before = argv[index - 1] if index and argv[index - 1].startswith("-") else ""
            shown = before or (word.partition("=")[0] if "=" in word else f"{word[:6]}...")
            raise _credential_error(f"argument {shown}")


def check_variables(variables: Mapping[str, str]) -> None:
    """Raise ``ValueError`` for an environment variable that looks like a credential."""
    for name, value in variables.items():
        if any(secret_words([f"--{name}={value}", value])):
            raise _credential_error(f"--env {name}")
