"""`hiwater lines`: runs a program and measures it line by line."""

from __future__ import annotations

import atexit
import builtins
import os
import sys

from hiwater._os import native, settings
from hiwater.cli import lines_arguments, standard_output
from hiwater.cli.messages import say
from hiwater.errors import BadRequest, HiwaterError, OutputFailed
from hiwater.recording import launcher, target

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import ModuleType

    from hiwater.lines.decorator import DecoratedFunctions


def main(words: Sequence[str]) -> int:
    """Run the command line `words`. Returns the exit code, or raises the exception with which the program ended."""
    try:
        arguments = lines_arguments.parse(words, settings.here())
        if (text := arguments.help_of(lines_arguments.HELP)) is not None:
            return standard_output.write(text)
        if not arguments.resident:
            native.load()  # without the engine there would be nothing to measure
        program = target.find(arguments.kind, arguments.program, arguments.arguments)
    except HiwaterError as error:
        say(str(error))
        return error.exit_code
    except SyntaxError as error:
        wrong = error
        wrong.__traceback__ = None
    else:
        return _run(arguments, program, len(words) + 1)
    return launcher.conclude(wrong)  # an error of the program, shown as by the interpreter


def _run(arguments: lines_arguments.LinesArguments, program: target.Target, hiwater_arguments: int) -> int:
    # Imported while the search path is still ours: a program may have a module of the same name.
    from hiwater.lines import children, decorator

    session = decorator.session()
    session.resident = arguments.resident
    session.take_over()
    if folder := session.folder():
        children.tell(folder, resident=arguments.resident)
    builtins.profile = decorator.profile  # type: ignore[attr-defined]  # as kernprof and memory_profiler do
    main_module = launcher.prepare(program, hiwater_arguments)
    ending = _Ending(arguments, session)
    atexit.register(ending.report)  # before the program's exit callbacks, so that it runs after them
    try:
        _add_named(arguments, session)
        if arguments.all:
            _add_everything(arguments, program, main_module, session)
    except HiwaterError as error:
        atexit.unregister(ending.report)
        say(str(error))
        return error.exit_code
    failure = launcher.launch(program, main_module)
    return launcher.conclude(failure)


def _add_named(arguments: lines_arguments.LinesArguments, session: DecoratedFunctions) -> None:
    """Measure the functions that -f names, wherever they are called."""
    import importlib

    profiler = session.profiler(arguments.resident)
    for name in arguments.functions:
        module, _, path = name.partition(":")
        try:
            thing: object = importlib.import_module(module)
            for part in filter(None, path.split(".")):
                thing = getattr(thing, part)
        except (ImportError, AttributeError) as error:
            raise BadRequest(f"{name!r} cannot be found ({error})", "write it as package.module:function") from error
        profiler.add_function(thing)
    if arguments.functions:
        profiler.enable()


def _add_everything(
    arguments: lines_arguments.LinesArguments, program: target.Target, main: ModuleType, session: DecoratedFunctions
) -> None:
    """Measure every line of the script itself."""
    entry, given = program.entry(main)
    if entry is not exec:
        raise BadRequest("--all needs a script or -c", "mark functions with @profile, or name them with -f")
    profiler = session.profiler(arguments.resident)
    profiler.add_function(given[0])
    profiler.enable()


class _Ending:
    """The work after the end of the program."""

    def __init__(self, arguments: lines_arguments.LinesArguments, session: DecoratedFunctions) -> None:
        self._arguments = arguments
        self._session = session
        self._owner = os.getpid()
        self._output = os.path.abspath(arguments.output) if arguments.output is not None else None

    def report(self) -> None:
        """Write the report. The program has ended: no error of ours may change its exit code."""
        if os.getpid() != self._owner:
            return  # a forked child that ran to the interpreter's end
        try:
            self._write()
        except HiwaterError as error:
            say(str(error))
        except Exception as error:  # noqa: BLE001 - the exit code must stay the program's, whatever went wrong here
            say(f"warning: the program has ended, but its lines cannot be shown: {type(error).__name__}: {error}")

    def _write(self) -> None:
        functions = self._session.results()
        if not functions:
            remedy = "put @profile above one, name it with -f, or measure the whole script with --all"
            say(f"no function was marked: {remedy}")
            return
        text = self._text()
        if self._output is None and self._arguments.format == "json":
            sys.stdout = sys.__stdout__  # the program may have put another in its place
            standard_output.write(text)
        elif self._output is None:
            if sys.__stderr__ is not None:
                sys.__stderr__.write(text)
        else:
            try:
                with open(self._output, "w", encoding="utf-8") as file:
                    file.write(text)
            except OSError as error:
                raise OutputFailed(
                    f"the report cannot be written to {self._output!r} ({error.strerror})",
                    "choose another file with -o",
                ) from error
            say(f"lines {self._output}")
        if self._session.displaced:
            say(
                f"another tracer replaced that of hiwater in {self._session.displaced} threads: later lines are missing"
            )

    def _text(self) -> str:
        from hiwater.lines import report

        functions = self._session.results()
        if self._arguments.kind == "command":
            import linecache

            from hiwater._os.ownership import THE_COMMAND

            source = self._arguments.program
            linecache.cache[THE_COMMAND] = (len(source), None, source.splitlines(keepends=True), THE_COMMAND)
            for function in functions:
                if function.file == "<string>":
                    function.file = THE_COMMAND
        if self._arguments.format == "json":
            import json

            return json.dumps(report.as_data(functions, self._session.why_without_heap), indent=1) + "\n"
        return report.as_text(
            functions, precision=self._arguments.precision, resident=self._arguments.resident,
            why_without_heap=self._session.why_without_heap,
        )  # fmt: skip
