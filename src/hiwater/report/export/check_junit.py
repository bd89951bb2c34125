"""A check as JUnit's XML: a test for each program, its figures as properties, and a failure for what is above what
is allowed."""

from __future__ import annotations

from typing import TextIO
from xml.etree import ElementTree as ET  # only written here, never read

from hiwater.analysis.check import Checked
from hiwater.report.check_report import CheckReport, cause_text, causes_lead, failure_text, name_of


def write(report: CheckReport, stream: TextIO) -> None:
    """The whole document. Names are escaped as on a terminal: XML 1.0 has no place for control characters."""
    failed = sum(bool(one.failures) for one in report.checked)
    counts = {"tests": str(len(report.checked)), "failures": str(failed), "errors": "0", "skipped": "0"}
    root = ET.Element("testsuites", counts)
    suite = ET.SubElement(root, "testsuite", {"name": "hiwater check", **counts})
    for one in report.checked:
        _add(suite, one)
    ET.indent(root)
    stream.write('<?xml version="1.0" encoding="utf-8"?>\n')
    stream.write(ET.tostring(root, encoding="unicode") + "\n")


def _add(suite: ET.Element, one: Checked) -> None:
    case = ET.SubElement(suite, "testcase", {"classname": "hiwater.check", "name": name_of(one)})
    properties = ET.SubElement(case, "properties")
    for figure, count in one.now.entry.figures.items():
        ET.SubElement(properties, "property", {"name": f"hiwater.{figure}", "value": str(count)})
    for row in one.failures:
        failure = ET.SubElement(case, "failure", {"message": failure_text(row), "type": "hiwater.memory"})
        if one.causes:
            failure.text = f"{causes_lead(one.causes)}:\n" + "\n".join(map(cause_text, one.causes))
