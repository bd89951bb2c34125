"""Where the folders of the source tree are."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TESTS = ROOT / "tests"
HELPERS = TESTS / "helpers"
PROGRAMS = TESTS / "programs"
EXTENSIONS = TESTS / "extensions"
