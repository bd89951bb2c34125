"""Whether tests in a real Chromium can run here. HIWATER_TEST_BROWSER=1 says that they must, 0 that they are not
wanted."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from places import ROOT

WEB = ROOT / "web"
_CHROMIUM = ("/usr/bin/chromium", "/usr/bin/chromium-browser", "/usr/bin/google-chrome")
_ASKED = os.environ.get("HIWATER_TEST_BROWSER", "")


def _missing() -> str:
    if not any(Path(path).exists() for path in (os.environ.get("HIWATER_CHROMIUM", ""), *_CHROMIUM) if path):
        return "no Chromium (set HIWATER_CHROMIUM to one)"
    if shutil.which("node") is None:
        return "no node"
    if not (WEB / "node_modules" / "playwright-core").is_dir():
        return "no web/node_modules (cd web && npm ci)"
    return ""


MUST_RUN = _ASKED == "1"
MISSING = "" if MUST_RUN else "HIWATER_TEST_BROWSER=0" if _ASKED == "0" else _missing()
needs_browser = pytest.mark.skipif(bool(MISSING), reason=MISSING)
