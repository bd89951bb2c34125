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

    def __init__(self, problem: str, remedy: str) -> None:
        super().__init__(f"{problem}; {remedy}")
        self.problem = problem
        self.remedy = remedy


class EngineUnavailable(HiwaterError):
    """This installation has no native engine, or it cannot be loaded here."""

    slug = "engine-unavailable"


class EngineFailed(HiwaterError):
    """The native engine is there but could not start."""

    slug = "engine-failed"


class AlreadyRecording(HiwaterError):
    """A recorder that is recording was started again."""

    slug = "already-recording"


class NotRecording(HiwaterError):
    """The recorder was asked for something only a recording has."""

    slug = "not-recording"


class CaptureUnwritable(HiwaterError):
    """The capture cannot be made where it was asked for."""

    slug = "capture-unwritable"


class MeterUnavailable(HiwaterError):
    """A quantity that cannot be measured here, or was not asked for."""

    slug = "meter-unavailable"


class NotFound(HiwaterError):
    """The program to run does not exist."""

    slug = "not-found"
    exit_code = 127


class NotRunnable(HiwaterError):
    """The program to run exists, but is not something Python can run."""

    slug = "not-runnable"
    exit_code = 126


class BadSize(HiwaterError):
    """A size is not written as a number and a unit."""

    slug = "bad-size"
    exit_code = 2


class UsageError(HiwaterError):
    """A command line, an environment variable or a setting asks for something hiwater does not know."""

    slug = "usage"
    exit_code = 2


class CaptureError(HiwaterError):
    """A capture that cannot be read."""

    slug = "capture"
    exit_code = 2


class MissingCapture(CaptureError):
    """There is no such file, or it may not be read."""

    slug = "missing-capture"


class ForeignFile(CaptureError):
    """The file is something else, not a capture of hiwater's."""

    slug = "foreign-file"


class NewerCapture(CaptureError):
    """The capture was written by a newer hiwater than this one."""

    slug = "newer-capture"


class TruncatedCapture(CaptureError):
    """The file ends before the records its header tells of."""

    slug = "truncated-capture"


class CorruptCapture(CaptureError):
    """The capture contradicts itself."""

    slug = "corrupt-capture"


class MomentOutOfRange(HiwaterError):
    """A moment or a window that the recording does not hold."""

    slug = "moment-out-of-range"
    exit_code = 2


class BadRequest(HiwaterError):
    """Options that cannot be used together."""

    slug = "bad-request"
    exit_code = 2


class BadInterval(BadRequest, ValueError):
    """An interval between samples that is no number of seconds above 0."""

    slug = "bad-interval"


class UnknownStatistic(HiwaterError, ValueError):
    """A column or a function of a line profile that is not there."""

    slug = "unknown-statistic"
    exit_code = 2


class ReportTooLarge(HiwaterError):
    """A report in this format would be larger than anyone wants: stacks too deep to be written one by one."""

    slug = "report-too-large"
    exit_code = 2


class OutputFailed(HiwaterError):
    """What was asked for could not be written."""

    slug = "output-failed"


class NoSuchProcess(HiwaterError):
    """There is no process of this number, or it has ended already."""

    slug = "no-such-process"
    exit_code = 127


class ProcessNotReadable(HiwaterError):
    """The process is there, and what it uses cannot be read."""

    slug = "process-not-readable"
    exit_code = 126


class HelperFailed(HiwaterError):
    """The process that samples did not start or did not answer."""

    slug = "sampling-helper-failed"


class ExtraMissing(HiwaterError):
    """A format needs a package that is not installed."""

    slug = "extra-missing"

    @classmethod
    def of(cls, package: str, extra: str, error: ImportError) -> Self:
        """The error for a package that cannot be imported, and the extra of hiwater's that installs it."""
        return cls(f"{package} cannot be used ({error})", f"pip install 'hiwater[{extra}]'")


class PlotLibraryMissing(HiwaterError):
    """matplotlib, which draws, cannot be used."""

    slug = "plot-library-missing"


class StepNeedsValues(HiwaterError):
    """A step that is to be estimated looks at the values of tensors, which are not worked out."""

    slug = "step-needs-values"
    exit_code = 126


class StepFailed(HiwaterError):
    """What is to be estimated raised an error of its own."""

    slug = "step-failed"
    exit_code = 126


class EstimateFailed(HiwaterError):
    """The process made for an estimate could not be started, or died."""

    slug = "estimate-failed"


class CourtesyUnavailable(HiwaterError):
    """Memory cannot be lent in the manner that was asked for: nothing was moved."""

    slug = "courtesy-unavailable"
    exit_code = 126


class CourtesyFailed(HiwaterError):
    """Memory could not be moved away, or not back; what could not be moved back is kept and can be asked for again."""

    slug = "courtesy-failed"


class MemoryYielded(HiwaterError):
    """A tensor was used while its memory is lent to somebody else."""

    slug = "memory-yielded"
