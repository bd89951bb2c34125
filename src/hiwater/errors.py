"""Everything hiwater raises on purpose: one tree, each error with a slug that leads to its entry in docs/errors.md."""

from __future__ import annotations

TYPE_CHECKING = False  # this module is imported in programs being recorded: nothing but the language itself here
if TYPE_CHECKING:
    from typing import ClassVar, Self


class HiwaterError(Exception):
    """Root of hiwater's errors.

    `slug` names the entry in the manual; `exit_code` is what a command that fails with this error exits with:
    2 for input that was asked for wrongly or cannot be used, 125 for a failure of hiwater's own.
    The message is one line: what is wrong, then what to do about it.
    """

    slug: ClassVar[str] = "error"
    exit_code: ClassVar[int] = 125

    def __init_subclass__(cls, *, slug: str = "", exit_code: int | None = None) -> None:
        """Make the slug from the class's name unless one is given. The exit code is that of the base class unless
        one is given."""
        words = [f"-{one.lower()}" if one.isupper() else one for one in cls.__name__.removesuffix("Error")]
        cls.slug = slug or "".join(words)[1:]
        cls.exit_code = cls.exit_code if exit_code is None else exit_code

    def __init__(self, problem: str, remedy: str) -> None:
        super().__init__(f"{problem}; {remedy}")
        self.problem = problem
        self.remedy = remedy


class EngineUnavailable(HiwaterError):
    """This installation has no native engine, or it cannot be loaded here."""


class EngineFailed(HiwaterError):
    """The native engine is there but could not start."""


class AlreadyRecording(HiwaterError):
    """A recorder that is recording was started again."""


class NotRecording(HiwaterError):
    """The recorder was asked for something only a recording has."""


class AttachRefused(HiwaterError, exit_code=126):
    """A running process cannot be recorded from outside, or did not answer."""


class CaptureUnwritable(HiwaterError):
    """The capture cannot be made where it was asked for."""


class MeterUnavailable(HiwaterError):
    """A quantity that cannot be measured here, or was not asked for."""


class NotFound(HiwaterError, exit_code=127):
    """The program to run does not exist."""


class NotRunnable(HiwaterError, exit_code=126):
    """The program to run exists, but is not something Python can run."""


MORE_PROCESSES = "allow more processes (ulimit -u)"
"""The remedy where the system refuses another process."""


class ProgramFailed(HiwaterError, exit_code=126):
    """A program that `hiwater check` ran did not end well."""


class BadSize(HiwaterError, exit_code=2):
    """A size is not written as a number and a unit."""


class UsageError(HiwaterError, exit_code=2):
    """A command line, an environment variable or a setting asks for something hiwater does not know."""


class CaptureError(HiwaterError, exit_code=2):
    """A capture that cannot be read."""


class MissingCapture(CaptureError):
    """There is no such file, or it may not be read."""


class ForeignFile(CaptureError):
    """The file is something else, not a capture of hiwater's."""


class IncompatibleCapture(CaptureError):
    """The capture was written in another version of the format than this hiwater reads."""


class TruncatedCapture(CaptureError):
    """The file ends before the records its header tells of."""


class CorruptCapture(CaptureError):
    """The capture contradicts itself."""


class BadBaseline(HiwaterError, exit_code=2):
    """A baseline that cannot be read, or is none."""


class MomentOutOfRange(HiwaterError, exit_code=2):
    """A moment or a window that the recording does not hold."""


class BadRequest(HiwaterError, exit_code=2):
    """Options that cannot be used together."""


class BadInterval(BadRequest, ValueError):
    """An interval between samples that is no number of seconds above 0."""


class UnknownStatistic(HiwaterError, ValueError, exit_code=2):
    """A column or a function of a line profile that is not there."""


class ReportTooLarge(HiwaterError, exit_code=2):
    """A report in this format would be larger than anyone wants: stacks too deep to be written one by one."""


class OutputFailed(HiwaterError):
    """What was asked for could not be written."""


class NoSuchProcess(HiwaterError, exit_code=127):
    """There is no process of this number, or it has ended already."""


class ProcessNotReadable(HiwaterError, exit_code=126):
    """The process is there, and what it uses cannot be read."""


class HelperFailed(HiwaterError, slug="sampling-helper-failed"):
    """The process that samples did not start or did not answer."""


class ExtraMissing(HiwaterError):
    """A format needs a package that is not installed."""

    @classmethod
    def of(cls, package: str, extra: str, error: ImportError) -> Self:
        """The error for a package that cannot be imported, and the extra of hiwater's that installs it."""
        return cls(f"{package} cannot be used ({error})", f"pip install 'hiwater[{extra}]'")


class PlotLibraryMissing(HiwaterError):
    """matplotlib, which draws, cannot be used."""


class StepNeedsValues(HiwaterError, exit_code=126):
    """A step that is to be estimated looks at the values of tensors, which are not worked out."""


class StepFailed(HiwaterError, exit_code=126):
    """What is to be estimated raised an error of its own."""


class EstimateFailed(HiwaterError):
    """The process made for an estimate could not be started, or died."""


class CourtesyFailed(HiwaterError):
    """Memory could not be moved away, or not back; what could not be moved back is kept and can be asked for again."""


class MemoryYielded(HiwaterError):
    """A tensor was used while its memory is lent to somebody else."""
