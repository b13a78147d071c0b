"""Credentials in files and arguments: a bundle is kept, and can be read with the bucket."""

from __future__ import annotations

import platform
import re
import shlex
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from jobs.errors import Refusal
from jobs.job import counted
from jobs.program.globs import match_any

NAMES = (
    *(".env", ".env.*", "*.env", "*.pem", "*.p12", "*.pfx", "*.key", "*.ppk"),
    *("id_rsa", "id_dsa", "id_ecdsa", "id_ed25519"),
    *(".netrc", "_netrc", ".pypirc", ".git-credentials", ".npmrc", ".pgpass"),
    *(".aws/credentials", "*/.aws/credentials", ".docker/config.json", "*/.docker/config.json"),
    *("kaggle.json", "secrets.yaml", "secrets.yml", "secrets.toml", "secrets.json"),
    *(".kube/config", "*/.kube/config", ".huggingface/token", "*/.huggingface/token"),
)
"""Files that are keys by their name."""
EXAMPLES = ("*.example", "*.sample", "*.template", "*.dist")
"""Files that show what such a file looks like."""

MAX_SCANNED_BYTES = 1_000_000
"""Larger files are data; the detector reads about a megabyte a second."""
_ENVIRONMENT = (
    r"""environ(?:\.setdefault\(|\[)\s*\\?["']\w*(?:KEY|TOKEN|SECRET|PASSWORD)\\?["']"""
    r"""(?:\]\s*=|\s*,)\s*\\?["']([^"'\s\\]{16,})"""
)
"""`os.environ["WANDB_API_KEY"] = "..."`, which the detector's own rules miss."""
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
    """Return what a file seems to be, by its name; None if nothing."""
    if match_any(path, EXAMPLES):
        return None
    found = match_any(path, NAMES)
    return None if found is None else f"a file named like {found}, which holds keys"


def find_secrets(files: Mapping[str, bytes]) -> dict[str, str]:
    """Return the files that hold a credential, each with its line and kind."""
    if not files:
        return {}
    try:
        from pybetterleaks import BetterleaksConfig, Rule, scan_dir  # loads a library of 25 MB
    except ImportError:
        named = [f"--include {shlex.quote(path)}" for path in sorted(files)]
        more = f" and so on for {len(named) - 5} more" if len(named) > 5 else ""
        raise Refusal(
            "secret-scan",
            f"{counted(len(files), 'file')} of the program cannot be searched for credentials: "
            f"pybetterleaks has no build for {platform.system()} on {platform.machine()}; look "
            f"through them, and name each: {' '.join(named[:5])}{more}",
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
        # It takes class names of the Mistral models for keys: "mistral3", "Mistral3For...".
        disabled_rules=["mistral-api-key"],
    )
    found: dict[str, str] = {}
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
                f"the program could not be searched for credentials: {result.errors[0].message}; "
                "reinstall pybetterleaks with: make setup",
            )
        for finding in result.findings:
            path = Path(finding.file or name).relative_to(folder).as_posix()
            where = "" if finding.line is None else f"line {finding.line} "
            found.setdefault(path, f"{where}holds a credential (Betterleaks: {finding.rule_id})")
    return found


def secret_word(text: str) -> str | None:
    """Return the start of a word that has the form of a key by itself; None if there is none."""
    found = _WORD.search(text)
    return None if found is None else f"{found[0][:6]}..."


def secret_words(argv: Sequence[str]) -> Iterable[str]:
    """Yield the arguments that look like a key, or are named like one, without their values."""
    for index, word in enumerate(argv):
        flag = _FLAG.fullmatch(word)
        if flag is not None:
            follows = flag["value"] or (argv[index + 1] if index + 1 < len(argv) else "")
            # `--eos_token </s>`, or `--secret` alone: nothing that is as long as a key.
            least = 8 if flag["token"] else 1
            if len(follows) >= least and not follows.startswith("--"):
                yield word.partition("=")[0]
        elif _WORD.search(word) and not (index and _FLAG.fullmatch(argv[index - 1])):
            yield f"{word[:6]}..."


def check_arguments(argv: Sequence[str]) -> None:
    """Raise ``ValueError`` for an argument that has the form of a key."""
    for index, word in enumerate(argv):
        if _WORD.search(word):
            before = argv[index - 1] if index and argv[index - 1].startswith("-") else ""
            shown = before or (word.partition("=")[0] if "=" in word else f"{word[:6]}...")
            raise ValueError(
                f"argument {shown}: it has the form of a key, and can be read in the job's "
                "description, in program.json and in logs; let the program read it from "
                "elsewhere, such as AWS Secrets Manager with --aws-credentials"
            )


def check_variables(variables: Mapping[str, str]) -> None:
    """Raise ``ValueError`` for an environment variable that looks like a key."""
    for name, value in variables.items():
        if any(secret_words([f"--{name}={value}", value])):
            raise ValueError(
                f"--env {name}: it looks like a key, and can be read in the job's description, in "
                "program.json and in logs; let the program read it from elsewhere, such as AWS "
                "Secrets Manager with --aws-credentials"
            )
