"""A rank of a user's program: torchrun starts this file, which becomes the program.

This must be transparent to the program. So the file is run by path, imports only modules that
Python has already imported, and leaves no traces: ``__main__``, ``sys.path`` and ``sys.argv`` are
the same as for ``python -u script.py``, which torchrun would run. Like other workers, it reports to
the launcher through files: the rank's start, its end, or the exception that ended it.
"""

import builtins
import io
import os
import sys
import time

_GO_FILE = "go"
_SPEC_FILE = "program"
_POLL_INTERVAL_S = 0.01
_SCRATCH = "TRAINIUM_SCRATCH"  # as in training.core.progress, which is not imported here
_MAX_ERROR_CHARACTERS = 300


class _Rank:
    """The launcher's view of this rank."""

    def __init__(self) -> None:
        self._scratch = os.environ[_SCRATCH]
        self._local_rank, self._rank = os.environ["LOCAL_RANK"], os.environ["RANK"]
        self.pid = os.getpid()

    def report(self, step: str, *, ready: bool, done: bool = False) -> None:
        """Write a worker's state in the format of ``training.core.progress.WorkerState``."""
        self._write(
            f"progress-{self._local_rank}.json",
            f'{{"pid": {self.pid}, "rank": {self._rank}, "step": "{step}", '
            f'"ready": {str(ready).lower()}, "done": {str(done).lower()}}}',
        )

    def wait_for_go(self) -> None:
        """Wait until every node is ready for the program."""
        path = f"{self._scratch}/{_GO_FILE}"
        while not os.path.exists(path):
            time.sleep(_POLL_INTERVAL_S)

    def spec(self) -> list[str]:
        """Read the program's folders and command: NUL-separated words, unpacked in ``main``."""
        with open(f"{self._scratch}/{_SPEC_FILE}", "rb") as file:
            return [os.fsdecode(word) for word in file.read().split(b"\0")]

    def fail(self, code: int, error: str, *, weak: bool = False, unfit_host: bool = False) -> None:
        """Write a failure in the format of ``training.core.progress.Failure``."""
        import json

        document = {"rank": int(self._rank), "code": code, "error": error, "weak": weak}
        document["unfit_host"] = unfit_host
        self._write(f"failure-{self._rank}.json", json.dumps(document))

    def _write(self, name: str, text: str) -> None:
        part = f"{self._scratch}/.part-{name}-{self.pid}"
        with open(part, "w", encoding="utf-8") as file:
            file.write(text)
        os.replace(part, f"{self._scratch}/{name}")


def _classify(error: BaseException, own: list[str]) -> tuple[int, str, bool]:
    """Classify an exception with the launcher's own code, bypassing modules of the same names.

    Returns the code, the description, and whether the host is unfit.
    """
    names = [name for name in sys.modules if name.partition(".")[0] in _OUR_PACKAGES]
    hidden = {name: sys.modules.pop(name) for name in names}
    sys.path[:0] = own
    try:
        from training.core.failures import classify, describe, shows_unfit_host

        return int(classify(error)), describe(error), shows_unfit_host(error)
    except Exception:
        return 1, f"{type(error).__name__}: {error}"[:_MAX_ERROR_CHARACTERS], False
    finally:
        for name in [n for n in sys.modules if n.partition(".")[0] in _OUR_PACKAGES]:
            del sys.modules[name]
        sys.modules.update(hidden)
        del sys.path[: len(own)]


_OUR_PACKAGES = ("training", "trainium_catalogue")


def _become_main() -> dict[str, object]:
    """Replace this module with a fresh ``__main__``; return its namespace."""
    main = type(sys)("__main__")
    sys.modules["__main__"] = main
    names: dict[str, object] = main.__dict__
    names.update(__builtins__=builtins, __annotations__={})
    return names


def _run_script(path: str) -> None:
    """Run a file like ``python path``."""
    names = _become_main()
    # Python's own loader, without the further imports of importlib.machinery.
    loader = sys.modules["_frozen_importlib_external"].SourceFileLoader("__main__", path)
    names.update(__file__=path, __cached__=None, __loader__=loader)
    with io.open_code(path) as file:
        source = file.read()
    exec(compile(source, path, "exec", dont_inherit=True), names)


def _run_module(name: str) -> None:
    """Run a module like ``python -m name``, with the function that Python itself uses."""
    _become_main()
    import runpy

    runpy._run_module_as_main(name)  # type: ignore[attr-defined]


def _add_packages_folder(site: str) -> None:
    """Add a folder of packages after PYTHONPATH, for this process and its children.

    Not via torchrun's PYTHONPATH, because torchrun starts while the folder is still being filled.
    """
    entries = [e for e in os.environ.get("PYTHONPATH", "").split(os.pathsep) if e]
    sys.path.insert(len(entries) + (not sys.flags.safe_path), site)
    os.environ["PYTHONPATH"] = os.pathsep.join([*entries, site])
    commands = os.environ.get("PATH", os.defpath)
    os.environ["PATH"] = os.pathsep.join([os.path.join(site, "bin"), commands])
    if any(name.endswith(".pth") for name in os.listdir(site)):
        import site as packages

        packages.addsitedir(site)


def main() -> None:
    """Become the program; return when its main module has finished."""
    # Unlike torchrun's stderr, a program's belongs in the log.
    os.dup2(1, 2)
    rank = _Rank()
    rank.report("waiting for the other nodes", ready=False)
    rank.wait_for_go()
    code, site, own, kind, name, *argv = rank.spec()
    os.chdir(code)
    path = os.path.join(code, name)
    sys.argv[:] = [name if kind == "script" else "-m", *argv]
    if not sys.flags.safe_path:
        sys.path[0] = code if kind == "module" else os.path.dirname(os.path.realpath(path))
    if site:
        _add_packages_folder(site)
    rank.report("running", ready=True)
    try:
        if kind == "script":
            _run_script(path)
        else:
            _run_module(name)
    except SystemExit as ending:
        # A forked child of the program may also get here.
        if os.getpid() == rank.pid:
            status = ending.code
            if status is None or (isinstance(status, int) and status & 0xFF == 0):
                rank.report("ended", ready=True, done=True)
            else:
                refused = _parser_error_message(ending)
                rank.fail(1, _describe_exit(ending, refused), weak=refused is None)
        raise
    except BaseException as error:
        trace = error.__traceback__
        # Strip this file's frames, so the traceback starts with the program's first line.
        while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
            trace = trace.tb_next
        try:
            sys.excepthook(type(error), error.with_traceback(trace), trace)
        finally:
            # Report before this rank's connections break, which its peers will report.
            if os.getpid() == rank.pid:
                exit_code, text, unfit_host = _classify(error, own.split(os.pathsep))
                rank.fail(exit_code, text, unfit_host=unfit_host)
        sys.exit(1)
    if os.getpid() == rank.pid:
        rank.report("ended", ready=True, done=True)


def _describe_exit(ending: SystemExit, refused: str | None) -> str:
    """Describe a program's exit, with the reason if known."""
    status, handled = ending.code, ending.__context__
    if not isinstance(status, int):
        return f"sys.exit: {' '.join(str(status).split())}"[:_MAX_ERROR_CHARACTERS]
    text = f"sys.exit({status})"
    if refused is not None:
        text += f", error: {' '.join(refused.split())}"
    elif isinstance(handled, Exception):
        message = " ".join(str(handled).split())
        text += f" while handling {type(handled).__name__}{message and ': '}{message}"
    return text[:_MAX_ERROR_CHARACTERS]


def _parser_error_message(ending: SystemExit) -> str | None:
    """Return an argument parser's `error:` message; None unless a parser caused the exit.

    Looks for ``ArgumentParser.error(message)`` (docs.python.org, argparse), which prints the usage
    and exits with 2, or a method of that name in a different parser.
    """
    trace = ending.__traceback__
    while trace is not None:
        frame = trace.tb_frame
        message = frame.f_locals.get("message") if frame.f_code.co_name == "error" else None
        if isinstance(message, str):
            return message
        trace = trace.tb_next
    return None


if __name__ == "__main__":
    main()
