"""Everything hiwater raises for its users: one tree, each class with a slug that leads to its entry in docs/errors.md.

A message says what is wrong and, after it, what to do about it.
"""


class HiwaterError(Exception):
    """The root of all errors hiwater raises on purpose."""

    slug = "error"


class EngineUnavailable(HiwaterError):
    """This installation has no native engine, or it cannot be loaded here."""

    slug = "engine-unavailable"


class EngineFailed(HiwaterError):
    """The native engine is there but could not start, or stopped by itself."""

    slug = "engine-failed"


class AlreadyRecording(HiwaterError):
    """A process has one recording at a time, and this one has it already."""

    slug = "already-recording"


class NotRecording(HiwaterError):
    """The recorder was asked for something only a recording has."""

    slug = "not-recording"


class CaptureUnwritable(HiwaterError):
    """The capture cannot be made where it was asked for."""

    slug = "capture-unwritable"


class NotFound(HiwaterError):
    """The program to run does not exist."""

    slug = "not-found"


class NotRunnable(HiwaterError):
    """The program to run exists, but is not something Python can run."""

    slug = "not-runnable"


class BadSize(HiwaterError):
    """A size is not written as a number and a unit."""

    slug = "bad-size"


class UsageError(HiwaterError):
    """A command line, an environment variable or a setting asks for something hiwater does not know."""

    slug = "usage"
