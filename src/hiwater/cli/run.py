"""`hiwater run`: the program exactly as python would run it, recorded."""

from __future__ import annotations

import atexit
import os
import sys

import hiwater
from hiwater._os import native
from hiwater._os.sizes import parse_size
from hiwater.capture import destination
from hiwater.cli import run_arguments, settings
from hiwater.cli.messages import say
from hiwater.recording import launcher, summary, target
from hiwater.recording.recorder import Recorder

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence


def main(words: Sequence[str]) -> int:
    """Run and record what `words` ask for; return the exit code, or raise what makes the interpreter end as the program did."""
    try:
        arguments = run_arguments.parse(words, settings.here())
    except hiwater.errors.HiwaterError as error:
        say(str(error))
        return error.exit_code
    if arguments.help:
        sys.stdout.write(run_arguments.HELP)
        return 0
    return run_recorded(arguments, len(words) + 1)


def run_recorded(
    arguments: run_arguments.RunArguments, hiwater_arguments: int, kind: type[ProgramRecording] | None = None
) -> int:
    """Run and record a program; `hiwater_arguments` of `sys.orig_argv` are not the program's. Returns and raises as `main` does."""
    try:
        program = _find(arguments)
        recording = (kind or ProgramRecording)(arguments, program)
    except hiwater.errors.HiwaterError as error:
        say(str(error))
        return error.exit_code
    except SyntaxError as error:
        wrong = error
        wrong.__traceback__ = None
    else:
        return _run(program, recording, hiwater_arguments)
    # The program's own fault, shown as the interpreter shows it; nothing has run, so there is nothing to record.
    return launcher.conclude(wrong)


def _find(arguments: run_arguments.RunArguments) -> target.Target:
    find = {"script": target.script, "module": target.module, "command": target.command}[arguments.kind]
    return find(arguments.program, arguments.arguments)


def _run(program: target.Target, recording: ProgramRecording, hiwater_arguments: int) -> int:
    main = launcher.prepare(program, hiwater_arguments)
    # Registered before anything of the program's: exit callbacks run last first, so this one sees all of its end.
    atexit.register(recording.finish)
    try:
        recording.start()
    except hiwater.errors.HiwaterError as error:
        recording.abandon()
        say(str(error))
        return error.exit_code
    ending = launcher.launch(program, main)
    refusal = _refusal(program, ending)
    if refusal is not None:
        recording.discard()
        say(str(refusal))
        return refusal.exit_code
    recording.exit_code = launcher.exit_status(ending)
    recording.note_ending(ending)
    return launcher.conclude(ending)


def _refusal(program: target.Target, error: BaseException | None) -> hiwater.errors.HiwaterError | None:
    """Return our error for a module that the interpreter could not find or run; None when the program ran."""
    cause = error.__context__ if isinstance(error, SystemExit) else None
    if type(cause).__module__ != "runpy" or type(cause).__name__ != "_Error":
        return None
    reason = str(cause)
    if reason.startswith("No module named") and "is a package" not in reason:
        return hiwater.errors.NotFound(reason, "check the name and the folder, or install what holds it")
    return hiwater.errors.NotRunnable(
        f"{program.name!r} cannot be run ({reason})", "give it a __main__, or name another program"
    )


def _outermost_file() -> str:
    """Return the script that is the command itself. It lies outside of the package, and its last steps come after the program's.

    "" for `python -c`: the program's own `-c` has frames of the same name.
    """
    frame = sys._getframe()
    while frame.f_back is not None:
        frame = frame.f_back
    name = frame.f_code.co_filename
    return "" if name in ("<string>", "<stdin>") else name


class ProgramRecording:
    """The recording of a program run from the command line: begun just before it, finished after its last exit callback."""

    def __init__(self, arguments: run_arguments.RunArguments, program: target.Target) -> None:
        self.exit_code: int | None = None
        self._arguments = arguments
        # sys.argv has no name yet for what runs as `-m NAME`: runpy puts its file there. The text of -c is not kept.
        words = program.original if arguments.kind == "module" else program.argv
        self._argv = words if arguments.argv else None
        self._path_head = program.path_head
        self._recorder = Recorder(
            arguments.output or destination.default_pattern(program.name),
            sample=arguments.sample,
            sample_seed=int(arguments.sample_seed or 0),
            device_history=arguments.device_history,
            mode=run_arguments.permissions(arguments.mode),
            notify=lambda text: say(f"warning: {text}"),
        )
        self._recorder.exclude_script(_outermost_file())
        self._limit = parse_size(arguments.limit) if arguments.limit is not None else 0
        if self._limit:
            self._recorder.note("limit_bytes", str(self._limit))
        try:  # noqa: SIM105
            self._recorder.check()
        except hiwater.errors.EngineFailed:  # contextlib.suppress would be a module that python had not loaded
            pass  # start() says so, and the program runs
        self._begun = False

    def start(self) -> None:
        """Record from now on. Where the engine cannot work the program runs all the same, and a line says so.

        Raises CaptureUnwritable: a recording that goes nowhere is better known before a long run than after it.
        """
        if self._arguments.verbose:
            say(f"recording into {self._recorder.path}")
        try:
            self._recorder.start(self._argv)
        except hiwater.errors.EngineFailed as error:
            self.abandon()
            say(f"warning: the program runs without being recorded: {error}")
        else:
            self._begun = True
            if self._recorder.kept_in_memory:
                say(summary.kept_in_memory(self._recorder.path))
            native.load().on_exit(self._finish_abruptly)
            self._set_limit()

    def _set_limit(self) -> None:
        """Set the program's ceiling, last: what hiwater itself needed to get here is not counted against it."""
        if not self._limit:
            return
        try:
            native.load().limit_address_space(self._limit)
        except OSError as error:
            say(f"warning: the ceiling of {self._limit} bytes could not be set ({error.strerror}): there is none")

    def abandon(self) -> None:
        """Forget the recording: at the end there is nothing to finish."""
        atexit.unregister(self.finish)

    def note_ending(self, error: BaseException | None) -> None:
        """Take note of the exception that ended the program, while what it holds is there."""
        if self._begun:
            self._recorder.note_ending(error)

    def discard(self) -> None:
        """Stop, and remove the capture: the program never ran."""
        self.abandon()
        if self._begun:
            self._recorder.stop()
            os.unlink(self._recorder.path)

    def finish(self) -> None:
        """Stop, and say what it came to. From here on the program has ended, and no fault of ours may change how."""
        if not self._recorder.owned_here:
            return  # a forked child that ran to the interpreter's end: this recording is its parent's
        try:
            self._recorder.stop(self.exit_code)
            self._tell()
        except Exception as error:  # noqa: BLE001 - the exit code must stay the program's, whatever went wrong here
            say(f"warning: the program is done, the recording is not complete: {type(error).__name__}: {error}")

    def _finish_abruptly(self, exit_code: int) -> None:
        """Finish where the program leaves through `os._exit()`, which no exit callback sees."""
        self.exit_code = exit_code
        self.finish()

    @property
    def path(self) -> str:
        """The capture."""
        return self._recorder.path

    def _tell(self) -> None:
        shown = summary.shown_path(self._recorder.path)
        result = self._recorder.summary()
        for line in [] if self._arguments.quiet else summary.summary_lines(result, shown):
            say(line)
        trouble = summary.trouble(result)
        if trouble is not None:
            say(trouble)
        if self._arguments.format is not None and not result["is_lost"]:
            self._leave_the_program()
            self._report(self._arguments.format, shown)

    def _leave_the_program(self) -> None:
        """Put the streams and the search path back as they were: the program's own would get into a report's way."""
        sys.stdout, sys.stderr = sys.__stdout__, sys.__stderr__
        if self._path_head in sys.path:
            sys.path.remove(self._path_head)

    def _report(self, chosen: str, capture: str) -> None:
        """Make the report asked for with --format, here and now."""
        from hiwater.cli import verbs

        words = ["report", capture, "--format", chosen]
        suffix = run_arguments.FILE_SUFFIXES.get(chosen)
        if suffix is None:
            verbs.main(words)
            return
        made = os.path.splitext(capture)[0] + suffix
        if verbs.main([*words, "-o", made]) != 0:
            return  # it has said why
        say(f"report {made}")
        if self._arguments.open:
            import webbrowser

            webbrowser.open("file://" + os.path.abspath(made))
