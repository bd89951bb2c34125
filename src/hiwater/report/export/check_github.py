"""A check as annotations of GitHub Actions: one line for each program that fails, at the line of code that is behind
it."""

from __future__ import annotations

from typing import TextIO

from hiwater.analysis.check import Checked
from hiwater.report.check_report import CheckReport, cause_text, causes_lead, failure_text, here, name_of
from hiwater.report.formatting import printable

_ERRORS_SHOWN = 10
"""GitHub shows so many errors of a step, and drops the others."""


def write(report: CheckReport, stream: TextIO) -> None:
    """At most ten errors, and the sentence that says how it went, as a notice or as the last of them."""
    failed = [one for one in report.ordered if one.failures]
    shown = failed if len(failed) <= _ERRORS_SHOWN else failed[: _ERRORS_SHOWN - 1]
    stream.writelines(_error(one) + "\n" for one in shown)
    if not failed:
        stream.write(f"::notice title=hiwater check::{_value(report.lead)}\n")
    elif len(failed) > len(shown):
        stream.write(f"::error title=hiwater check::{_value(report.lead)}\n")


def _error(one: Checked) -> str:
    """The workflow command of one program. Without a file the annotation is about the whole job."""
    properties = {}
    message = "; ".join(failure_text(row) for row in one.failures)
    if one.causes:
        cause = one.causes[0]
        message += f"; {causes_lead(one.causes)}: {'; '.join(map(cause_text, one.causes))}"
        if cause.frame.line:
            properties = {"file": printable(_relative(cause.frame.file, here(cause))), "line": str(cause.frame.line)}
    properties["title"] = f"{name_of(one)} uses more memory"
    listed = ",".join(f"{name}={_property(text)}" for name, text in properties.items())
    return f"::error {listed}::{_value(message)}"


def _relative(file: str, folder: str) -> str:
    """The path as the repository has it: GitHub shows annotations of relative paths beside the code."""
    return file.removeprefix(folder.rstrip("/") + "/")


def _value(text: str) -> str:
    """Text of a message: in commands, % and ends of lines are written in hexadecimal."""
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    """Text of a property, which a comma or a colon would end."""
    return _value(text).replace(":", "%3A").replace(",", "%2C")
