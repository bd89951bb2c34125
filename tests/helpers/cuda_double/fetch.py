"""Get the Python files of `torch/cuda` out of an old torch's wheel: `python tests/helpers/cuda_double/fetch.py
[VERSION]`."""

import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
from cuda_double.layer import FETCHED, OLDEST, folder_of


def fetch(version):
    """Download the wheel with pip, and keep the folder that is needed."""
    if folder_of(version) is not None:
        return
    with tempfile.TemporaryDirectory() as place:
        # Any interpreter's wheel has the same files: the newest that this version was built for.
        command = [
            sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:",
            "--python-version", "3.11", "--dest", place, f"torch=={version}",
        ]  # fmt: skip
        subprocess.run(command, check=True)
        (wheel,) = Path(place).glob("torch-*.whl")
        with zipfile.ZipFile(wheel) as archive:
            names = [name for name in archive.namelist() if name.startswith("torch/cuda/") and name.endswith(".py")]
            archive.extractall(FETCHED / version, names)


if __name__ == "__main__":
    fetch(sys.argv[1] if len(sys.argv) > 1 else OLDEST)
