"""A JupyterLab of its own: nothing of the user's settings, a free port, no requests to anywhere else.

`python tests/helpers/jupyterlab_server.py examples/notebook.ipynb docs/images` makes the pictures of docs/notebooks.md.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from places import ROOT

READER = ROOT / "web" / "browser" / "jupyterlab.mjs"
STARTS_WITHIN = 300.0  # seconds
# What would ask other machines, or lie over the notebook.
SETTINGS = {
    "@jupyterlab/apputils-extension": {
        "notification": {"fetchNews": "false", "checkForUpdates": False, "doNotDisturbMode": True},
        "themes": {"adaptive-theme": True},  # the browser's
    },
    "@jupyterlab/notebook-extension": {"tracker": {"windowingMode": "none", "autoStartDefaultKernel": True}},
}
OPTIONS = (
    "--no-browser",
    "--allow-root",
    "--LabApp.check_for_updates_class=jupyterlab.NeverCheckForUpdate",
    "--LabApp.extension_manager=readonly",
    "--LabApp.news_url=",
    "--LanguageServerManager.autodetect=False",
    "--ServerApp.terminals_enabled=False",
)


def see(scenario: str, notebook: Path, work: Path, pictures: Path | None = None, theme: str = "light") -> Any:
    """What the reader saw of a copy of the notebook in the empty folder `work`, and where its `pictures` are. Fails
    where a step fails or something complains."""
    copy = work / "notebooks" / notebook.name
    copy.parent.mkdir()
    shutil.copy(notebook, copy)
    with _running(work) as address:
        words = ["node", str(READER), scenario, address, notebook.name, theme, *([str(pictures)] if pictures else [])]
        done = subprocess.run(words, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, f"{done.stderr}\n{(work / 'server.log').read_text('utf-8')[-4000:]}"
    return json.loads(done.stdout)


@contextmanager
def _running(work: Path) -> Iterator[str]:
    """The address of a server, with its token; the kernels that it starts are this interpreter."""
    token = secrets.token_hex(16)
    environment = {**os.environ, **_folders(work), "NO_PROXY": "*", "no_proxy": "*", "JUPYTER_TOKEN": token}
    words = [sys.executable, "-m", "jupyterlab", *OPTIONS, "--port=0", f"--ServerApp.root_dir={work / 'notebooks'}"]
    with (work / "server.log").open("w", encoding="utf-8") as log:
        server = subprocess.Popen(words, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=work)
        try:
            yield f"{_answering(server, work)}lab?token={token}"
        finally:
            server.terminate()
            try:
                server.wait(20)
            except subprocess.TimeoutExpired:
                server.kill()
                server.wait()


def _folders(work: Path) -> dict[str, str]:
    """Every folder that Jupyter and IPython read or write, empty but for the settings."""
    settings = work / "settings"
    for extension, files in SETTINGS.items():
        (settings / extension).mkdir(parents=True)
        for name, content in files.items():
            (settings / extension / f"{name}.jupyterlab-settings").write_text(json.dumps(content), "utf-8")
    names = {
        "JUPYTER_CONFIG_DIR": "config",
        "JUPYTER_DATA_DIR": "data",
        "JUPYTER_RUNTIME_DIR": "runtime",
        "JUPYTERLAB_WORKSPACES_DIR": "workspaces",
        "IPYTHONDIR": "ipython",
        "HOME": "home",
    }
    for name in names.values():
        (work / name).mkdir()
    return {key: str(work / name) for key, name in names.items()} | {
        "JUPYTERLAB_SETTINGS_DIR": str(settings),
        "JUPYTER_NO_CONFIG": "1",
    }


def _answering(server: subprocess.Popen[bytes], work: Path) -> str:
    """The server's address once it answers: it writes the port that it found into its runtime folder."""
    until = time.monotonic() + STARTS_WITHIN
    while time.monotonic() < until and server.poll() is None:
        for file in (work / "runtime").glob("jpserver-*.json"):
            try:
                found = json.loads(file.read_text("utf-8"))
                with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(f"{found['url']}api", timeout=5):
                    return str(found["url"])
            except (OSError, ValueError):
                break  # half written, or not listening yet
        time.sleep(0.1)
    raise AssertionError((work / "server.log").read_text("utf-8")[-4000:])


def _with_fewer_colours(picture: str) -> None:
    """A third of the size, and the same to the eye."""
    from PIL import Image

    with Image.open(picture) as image:
        fewer = image.convert("RGB").quantize(256, method=Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)
    fewer.save(picture, optimize=True)


if __name__ == "__main__":
    for theme in ("light", "dark"):
        with tempfile.TemporaryDirectory(prefix="hiwater-lab-") as folder:
            for written in see("pictures", Path(sys.argv[1]), Path(folder), Path(sys.argv[2]), theme):
                _with_fewer_colours(written)
                print(written)
