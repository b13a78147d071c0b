"""A program's requirements: parsed as by pip, inlined into one text, and checked for the nodes.

The text is stored with the run, and the job that collects the wheels passes it to pip. So it
includes the lines of referenced files, but neither local paths nor passwords.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from jobs.errors import Refusal
from jobs.program.entry import SOURCES
from jobs.program.secrets import secret_word
from trainium_catalogue.contract import CONSTRAINT_MARK
from trainium_catalogue.suggest import did_you_mean

KEY_LENGTH = 32
_KEY_FORMAT = "1"
"""Version, increased when wheels of the same requirements must be collected again."""

# pip's own regular expressions (pip/_internal/req/req_file.py).
_COMMENT = re.compile(r"(^|\s+)#.*$")
_VARIABLE = re.compile(r"\$\{[A-Z0-9_]+\}")

_URL_OPTIONS = ("--index-url", "--extra-index-url", "--find-links")
_OPTIONS = (
    *_URL_OPTIONS,
    *("--no-index", "--pre", "--prefer-binary", "--only-binary", "--no-binary"),
    *("--require-hashes", "--trusted-host"),
)
"""Options allowed on a separate line."""
_SHORT = {
    "-i": "--index-url",
    "-f": "--find-links",
    "-r": "--requirement",
    "-c": "--constraint",
    "-e": "--editable",
}
_OPTION = re.compile(r"(?P<name>-[a-z]|--[a-z-]+)(?:\s*=\s*|\s*)(?P<value>.*)")
_NAME = r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?"
_EXTRAS = r"(?:\s*\[[^\]]*\])?"
_CLAUSE = r"(?:===|==|~=|!=|<=|>=|<|>)\s*[A-Za-z0-9.*+!_-]+"
_PACKAGE = re.compile(
    rf"{_NAME}{_EXTRAS}\s*\(?\s*(?:{_CLAUSE}(?:\s*,\s*{_CLAUSE})*\s*,?)?\s*\)?"
    r"\s*(?:;.*?)?(?:\s+--.*)?"
)
_URL = re.compile(rf"(?:{_NAME}{_EXTRAS}\s*@\s*)?(?P<url>[A-Za-z][A-Za-z0-9+.-]*:\S+)(?:\s.*)?")
_REPOSITORY_URL = re.compile(r"(?P<kind>git|hg|svn|bzr)\+")
_COMMIT = re.compile(r"[^@]+@[0-9a-f]{40}(?:#.*)?")
_PATH = re.compile(r"[./~\\]|[A-Za-z]:\\|.*\.(whl|zip|tar\.gz|tar\.bz2)(\s|$)|.*@\s*[./~]")
_SINGLE_EQUALS = re.compile(rf"({_NAME}{_EXTRAS})\s*=\s*([^=\s]+)$")
_MAX_BYTES = 512 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Requirements:
    """A program's requirements as one text."""

    text: str
    """One requirement or option per line, without comments; empty without requirements."""
    places: Mapping[str, str] = field(default_factory=dict)
    """File and line number of each line, if read from files."""

    def named(self) -> Iterator[str]:
        """Yield the lines that require or constrain a package."""
        yield from (line for line in self.text.splitlines() if not line.startswith("-"))

    def place(self, line: str) -> str:
        """Describe where a line comes from."""
        return self.places.get(line, "the run's requirements")

    @property
    def count(self) -> int:
        """Number of required packages."""
        return sum(not line.startswith(("-", CONSTRAINT_MARK)) for line in self.text.splitlines())

    def key(self, image: str) -> str:
        """Return the key of the wheels for these requirements and an image."""
        whole = "\n".join((_KEY_FORMAT, image, self.text))
        return hashlib.sha256(whole.encode()).hexdigest()[:KEY_LENGTH]


def read_requirements(path: Path) -> Requirements:
    """Read a requirements file with its referenced files; refuse lines that cannot work."""
    lines = list(_file_lines(path, chain=()))
    text = "".join(f"{line}\n" for line, _ in lines)
    if len(text.encode()) > _MAX_BYTES:
        raise Refusal(
            "requirements-size",
            f"--requirements {path} is {len(text.encode()):,} bytes, but the limit is "
            f"{_MAX_BYTES:,}; list only what the program imports",
        )
    return Requirements(text=text, places=dict(lines))


def _file_lines(
    path: Path, *, chain: tuple[Path, ...], constrains: bool = False
) -> Iterator[tuple[str, str]]:
    """Yield the lines of a file and of its referenced files, with their places."""
    here = (*chain, path.resolve())
    if path.resolve() in chain:
        raise Refusal(
            "requirements-file",
            f"{path} includes itself, directly or through another "
            "file; remove the -r or -c line that does",
        )
    for number, line in _logical_lines(_read_text(path, chain)):
        yield from _check_line(line, f"{path}, line {number}", path, here, constrains)


def _read_text(path: Path, chain: tuple[Path, ...]) -> str:
    where = f"{chain[-1]} includes {path}" if chain else f"--requirements {path}"
    try:
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError:
        raise Refusal(
            "requirements-file", f"{where}: it is not UTF-8 text; save it as UTF-8"
        ) from None
    except OSError as error:
        near = [item.name for item in path.parent.glob("*.txt")] if path.parent.is_dir() else []
        hint = did_you_mean(path.name, near) if near else "specify a requirements file"
        reason = (error.strerror or str(error)).lower()
        raise Refusal("requirements-file", f"{where}: {reason}; {hint}") from None


def _logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """Yield lines without comments, joined at trailing backslashes as in pip."""
    parts: list[str] = []
    start = 1
    for number, line in enumerate([*text.splitlines(), ""], start=1):
        if not parts:
            start = number
        plain = _COMMENT.sub("", line)
        if line.endswith("\\") and not _COMMENT.match(line):
            parts.append(line[:-1].strip())
            continue
        joined = " ".join(filter(None, [*parts, plain.strip()]))
        parts = []
        if joined:
            yield start, joined


def _check_line(
    line: str, where: str, path: Path, chain: tuple[Path, ...], constrains: bool
) -> Iterator[tuple[str, str]]:
    """Check one line; yield it, or the lines of the file that it includes."""

    def refuse(code: str, reason: str) -> Refusal:
        return Refusal(code, f"{where}: {reason}")

    if variable := _VARIABLE.search(line):
        raise refuse(
            "requirements-variable",
            f"{variable[0]} is an environment variable of this machine, which the nodes do not "
            "have and the run's record must not contain; write the line without it",
        )
    _refuse_secrets(line, where)
    if line.startswith("-"):
        match = _OPTION.fullmatch(line)
        name = match["name"] if match else line.partition(" ")[0]
        name, value = _SHORT.get(name, name), match["value"].strip() if match else ""
        if name in ("--requirement", "--constraint"):
            if "://" in value:
                raise refuse(
                    "requirements-file",
                    f"{value} is a URL, which is not read; copy that file next to this one",
                )
            limits = constrains or name == "--constraint"
            yield from _file_lines(path.parent / value, chain=chain, constrains=limits)
            return
        if name == "--editable":
            raise refuse("requirements-path", f"{line} is local code; {_remedy(path, value)}")
        if name not in _OPTIONS:
            known = ", ".join(_OPTIONS)
            raise refuse("requirements-option", f"{name} is not supported here; use one of {known}")
        if name in _URL_OPTIONS and urlsplit(value).scheme not in ("http", "https"):
            raise refuse(
                "requirements-path",
                f"{value or 'an empty value'} is not an http or https URL, and wheels are "
                "not collected on this machine; use an https URL",
            )
        # pip ignores options in constraints files.
        if not constrains:
            yield f"{name} {value}".strip(), where
        return
    _check_requirement(line, where, path)
    yield (f"{CONSTRAINT_MARK}{line}" if constrains else line), where


def _refuse_secrets(line: str, where: str) -> None:
    for word in re.findall(r"[A-Za-z][A-Za-z0-9+.-]*://\S+", line):
        if "@" in urlsplit(word).netloc:
            raise Refusal(
                "requirements-secret",
                f"{where}: the URL at {urlsplit(word).hostname} has a user name or password, and "
                "requirements are stored with the run; put the credentials in the pip.conf of your "
                "own image (image_uri), or copy the packages to an index that needs none",
            )
    if (what := secret_word(line)) is not None:
        raise Refusal(
            "requirements-secret",
            f"{where}: {what} looks like a credential, and requirements are stored with the run; "
            "remove it",
        )


def _remedy(path: Path, value: str) -> str:
    """Return the remedy for ``value``, a local path in the requirements file ``path``."""
    name = re.split(r"[\[;\s]", value, maxsplit=1)[0]
    package = next((p for p in (path.parent / name, Path(name)) if name and p.is_dir()), None)
    sources = None
    if package is not None:
        folder = package / SOURCES if (package / SOURCES).is_dir() else package
        sources = os.path.relpath(folder, path.parent)
    if sources == ".":
        return (
            "remove it: the program's folder is packed as it is, and is on Python's path; list its "
            "own requirements instead"
        )
    if sources is None or sources.startswith(".."):
        return (
            "only the program's folder is packed; put the package on an index, or into that folder"
        )
    return (
        "remove it, and list its own requirements instead: the program's folder is packed, and its "
        f"script finds the package if it begins with `import sys; sys.path.insert(0, {sources!r})`"
    )


def _check_requirement(line: str, where: str, path: Path) -> None:
    if (address := _URL.fullmatch(line)) is not None and ":" in line:
        _check_url(address["url"], line, where)
        return
    if _PATH.match(line):
        raise Refusal(
            "requirements-path",
            f"{where}: {line} is a local path; {_remedy(path, line.rpartition('@')[2].strip())}",
        )
    if _PACKAGE.fullmatch(line):
        return
    meant = _SINGLE_EQUALS.match(line)
    hint = f"write {meant[1]}=={meant[2]}" if meant else "write it like einops>=0.7"
    raise Refusal("requirements-line", f"{where}: {line!r} is not a requirement; {hint}")


def _check_url(url: str, line: str, where: str) -> None:
    scheme = urlsplit(url).scheme
    repository = _REPOSITORY_URL.match(url)
    if scheme == "file":
        raise Refusal(
            "requirements-path",
            f"{where}: {line} is a local file; put the package on an index",
        )
    if repository is None:
        if scheme not in ("http", "https"):
            raise Refusal(
                "requirements-line",
                f"{where}: {line}: {scheme}: is not supported; use an https URL",
            )
        return
    if scheme != "git+https":
        raise Refusal(
            "requirements-repository",
            f"{where}: {line}: the job that collects wheels supports only git+https, not {scheme}; "
            "write git+https://HOST/REPOSITORY@COMMIT",
        )
    if not _COMMIT.fullmatch(url):
        raise Refusal(
            "requirements-repository",
            f"{where}: {line} is not pinned to a commit; append @ and the full "
            "40-character commit hash (git rev-parse HEAD)",
        )
