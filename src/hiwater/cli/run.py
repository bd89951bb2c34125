"""`hiwater run`: runs a program exactly as python would, and records it."""

from __future__ import annotations

import atexit
import os
import sys

import hiwater
from hiwater._os import destination, native, process_identity, settings
from hiwater._os.native import unrecorded
from hiwater.cli import run_arguments
from hiwater.cli.messages import say
from hiwater.recording import launcher, run_before, target
from hiwater.recording.recorder import Recorder, trouble

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import ModuleType

    from hiwater.recording.figures import Summary


def main(words: Sequence[str]) -> int:
    """Run and record the program that `words` name. Returns the exit code, or raises the exception with which the
    program ended."""
    try:
        arguments = run_arguments.parse(words, settings.here())
    except hiwater.errors.HiwaterError as error:
        say(str(error))
        return error.exit_code
    text = arguments.help_of(run_arguments.HELP)
    if text is not None:
        from hiwater.cli import standard_output

        return standard_output.write(text)
    return run_recorded(arguments, len(words) + 1)


def run_recorded(
    arguments: run_arguments.RunArguments, hiwater_arguments: int, kind: type[ProgramRecording] | None = None
) -> int:
    """Run and record a program. The first `hiwater_arguments` of `sys.orig_argv` are not the program's. Returns and
    raises as `main()`."""
    try:
        program = target.find(arguments.kind, arguments.program, arguments.arguments)
        if arguments.standby:
            return _run_in_standby(program, hiwater_arguments, children=arguments.children)
        recording = (kind or ProgramRecording)(arguments, program)
    except hiwater.errors.HiwaterError as error:
        say(str(error))
        return error.exit_code
    except SyntaxError as error:
        wrong = error
        wrong.__traceback__ = None
    else:
        return _run(program, recording, hiwater_arguments)
    # An error of the program, shown as by the interpreter. Nothing has run, so there is nothing to record.
    return launcher.conclude(wrong)


def _run_in_standby(program: target.Target, hiwater_arguments: int, *, children: bool) -> int:
    main = launcher.prepare(program, hiwater_arguments)
    try:
        from hiwater.recording import standby

        standby.begin()
    except ImportError:
        children = False
        say(f"warning: the program is not in standby: {native.NO_ENGINE}")
    except OSError as error:
        say(f"warning: the program is not in standby, because its control file cannot be created ({error.strerror})")
    if children:
        os.environ["HIWATER"] = "standby"
    return launcher.conclude(launcher.launch(program, main))


def _run(program: target.Target, recording: ProgramRecording, hiwater_arguments: int) -> int:
    main = launcher.prepare(program, hiwater_arguments)
    # Registered before the program's exit callbacks, so that it runs after them.
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


def _no_engine() -> tuple[type[hiwater.HiwaterError], ...]:
    """The errors with which a program runs unrecorded. They are loaded only where there is one."""
    return hiwater.errors.EngineUnavailable, hiwater.errors.EngineFailed


def _kept_in_memory(path: str) -> str:
    """The warning that the file system of `path` cannot map the capture."""
    return (
        f"warning: the file system of {path!r} cannot map files, so hiwater keeps the capture in memory and copies it"
        " there about every second and at the end; if the program is killed, the last second is lost: choose another"
        " file with -o to avoid this"
    )


def _outermost_file() -> str:
    """The script of the command itself. It is outside of the package, and its last steps run after the program.

    "" for `python -c`, because the program's own `-c` has frames with the same name.
    """
    frame = sys._getframe()
    while frame.f_back is not None:
        frame = frame.f_back
    name = frame.f_code.co_filename
    return "" if name in ("<string>", "<stdin>") else name


class ProgramRecording:
    """The recording of a program from the command line. It begins right before the program, and ends after its last
    exit callback."""

    def __init__(self, arguments: run_arguments.RunArguments, program: target.Target) -> None:
        self.exit_code: int | None = None
        self._arguments = arguments
        # Under `-m NAME`, sys.argv has no name yet: runpy sets the file. The text of -c is not kept.
        self._argv = program.original if arguments.kind == "module" else program.argv
        self._path_head = program.path_head
        self._pattern = arguments.output or destination.default_pattern(program.name)
        self._recorder = Recorder(
            self._pattern,
            sample=arguments.sample,
            sample_seed=int(arguments.sample_seed or 0),
            device_history=arguments.device_history,
            mode=run_arguments.permissions(arguments.mode),
            last_words=arguments.last_words,
            children=arguments.children,
            snapshot_every=arguments.snapshot_seconds,
            own=arguments.own,
            native=arguments.native,
            notify=lambda text: say(f"warning: {text}"),
        )
        self._recorder.exclude_script(_outermost_file())
        self._recorder.begin_process()
        if not arguments.argv:
            self._recorder.omit_arguments()
        self._last_lines: ModuleType | None = None  # loaded before the program, which may break imports
        if not arguments.quiet:
            from hiwater.recording import last_lines

            self._last_lines = last_lines
            self._recorder.show_last_lines(process_identity.this_process())
        self._limit = 0
        if arguments.limit is not None:
            from hiwater._os.sizes import parse_size

            self._limit = parse_size(arguments.limit)
        if self._limit:
            self._recorder.note("limit_bytes", str(self._limit))
        try:
            self._recorder.check()
        except _no_engine():  # contextlib.suppress would be a module that python had not loaded
            pass  # start() says so, and the program runs
        self._begun = self._has_holders = False

    def start(self) -> None:
        """Record from now on. If the engine cannot work, the program still runs, and a line on stderr says so.

        Raises CaptureUnwritable, so that the user knows before a long run that nothing can be written.
        """
        if self._arguments.verbose:
            say(f"recording into {self._recorder.path}")
        self._tell_of_the_run_before()
        try:
            self._recorder.start(self._argv)
        except _no_engine() as error:
            self.abandon()
            how = "unrecorded" if not self._limit else "unrecorded and without its limit"
            say(f"warning: the program runs {how}: {error}")
        else:
            self._begun = True
            if self._last_lines is not None:
                self._last_lines.begin(self._recorder.path)
            if self._recorder.kept_in_memory:
                say(_kept_in_memory(self._recorder.path))
            native.load().on_exit(self._finish_abruptly)
            self._set_limit()

    def _tell_of_the_run_before(self) -> None:
        """Say how the last run of the program ended, if it was killed. What cannot be read is no reason not to run."""
        try:
            told = run_before.tell(self._pattern, self._recorder.path)
        except (OSError, hiwater.errors.HiwaterError):
            return
        if told is not None and not self._arguments.quiet:
            say(told)

    def _set_limit(self) -> None:
        """Set the program's limit. This comes last, so that the memory of hiwater's start does not count."""
        if not self._limit:
            return
        try:
            native.load().limit_address_space(self._limit)
        except OSError as error:
            say(
                f"warning: the limit of {self._limit} bytes could not be set ({error.strerror}): the program runs"
                " without it"
            )

    def abandon(self) -> None:
        """Forget the recording, so that nothing is finished at the end."""
        atexit.unregister(self.finish)

    def note_ending(self, error: BaseException | None) -> None:
        """Note the exception that ended the program, while it still keeps its objects alive."""
        if self._begun:
            self._recorder.note_ending(error)

    def discard(self) -> None:
        """Stop, and remove the capture, because the program never ran."""
        self.abandon()
        if self._begun:
            self._recorder.stop()
            os.unlink(self._recorder.path)

    def finish(self) -> None:
        """Stop, and print the figures. The program has ended: no error of ours may change its exit code."""
        if not self._recorder.owned_here:
            # A forked child that ran to the interpreter's end. Its recording, if it has one, is not this one.
            native.load().stop(self.exit_code)
            return
        try:
            self._search_holders()
            self._recorder.stop(self.exit_code)
            self._tell()
        except Exception as error:  # noqa: BLE001 - the exit code must stay the program's, whatever went wrong here
            say(f"warning: the program has ended, but the recording is not complete: {type(error).__name__}: {error}")

    def _search_holders(self) -> None:
        """With --holders: what the program's objects are held by at its end."""
        if self._arguments.holders and self._recorder.recording:
            unrecorded(ProgramRecording._search, self, None)

    def _search(self, _: None) -> None:
        from hiwater.recording import holders

        native.load().end_intervals()  # what the search takes is not time in which the program could leak
        try:
            holders.search("end")
            self._has_holders = True
        except hiwater.errors.HiwaterError as error:
            say(f"warning: there is no search for holders at the end: {error}")

    def _finish_abruptly(self, exit_code: int) -> None:
        """Finish if the program ends with `os._exit()`, which runs no exit callbacks."""
        self.exit_code = exit_code
        self.finish()

    @property
    def path(self) -> str:
        return self._recorder.path

    def _tell(self) -> None:
        result = self._recorder.summary()
        if self._last_lines is not None:
            self._tell_figures(result, self._last_lines)
        incomplete = trouble(result)
        if incomplete is not None:
            say(incomplete)
        if self._arguments.format is not None and not result["is_lost"]:
            self._leave_the_program()
            self._report(self._arguments.format)

    def _tell_figures(self, result: Summary, last_lines: ModuleType) -> None:
        """Write the last lines: of a run of several processes by another process, because that needs numpy and all
        captures."""
        path, shown = self._recorder.path, last_lines.from_here(self._recorder.path)
        of_several = last_lines.are_about_several(path)
        if not of_several or not last_lines.write(path):
            for line in last_lines.summary_lines(result, shown):
                say(line)
            if of_several:
                say(last_lines.alone_line(path))
        if self._has_holders:
            say(f"holders: `hiwater holders {shown}` shows what held the objects at the end")

    def _leave_the_program(self) -> None:
        """Restore the streams and the search path. Those of the program could disturb a report."""
        sys.stdout, sys.stderr = sys.__stdout__, sys.__stderr__
        if self._path_head in sys.path:
            sys.path.remove(self._path_head)

    def _report(self, chosen: str) -> None:
        """Make the report of --format in this process."""
        from hiwater.cli import verbs
        from hiwater.recording.last_lines import from_here

        capture = from_here(self._recorder.path)
        words = ["report", capture, "--format", chosen, "--no-pager"]
        suffix = run_arguments.FILE_SUFFIXES.get(chosen)
        if suffix is None:
            verbs.main(words)
            return
        made = os.path.splitext(capture)[0] + suffix
        if verbs.main([*words, "-o", made], is_private=True) != 0:
            return  # it has said why
        say(f"report {made}")
        if self._arguments.open:
            import webbrowser

            webbrowser.open("file://" + os.path.abspath(made))
