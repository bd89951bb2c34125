"""RAM and the device on one timeline, in one page."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

from gpu_checks.registry import IN_PLACE, MIB, Result, check, hiwater, program

_TRAINING = """import time, torch
from torch import nn

def train(steps):
    net = nn.Sequential(*(layer for _ in range(6) for layer in (nn.Linear(2048, 2048), nn.GELU()))).cuda()
    optimizer = torch.optim.AdamW(net.parameters())
    batches = [torch.randn(4096, 2048) for _ in range(8)]
    for step in range(steps):
        optimizer.zero_grad()
        loss = net(batches[step % 8].cuda()).square().mean()
        loss.backward()
        optimizer.step()
        time.sleep(0.05)
    return [bytearray(b"x") * (32 << 20), loss]

kept = train(40)
"""
_ON_THE_DOUBLE = """import time, torch
def train(steps):
    kept = []
    for step in range(steps):
        kept.append(torch.cuda.caching_allocator_alloc(4 << 20, stream=0))
        time.sleep(0.05)
    return [bytearray(b"x") * (32 << 20), kept]
kept = train(40)
"""
BROWSERS = ("chromium", "chromium-browser", "google-chrome")


@check("RAM and the device on one timeline: a page, and a picture of it where a browser is", seconds=60)
def page(folder: Path) -> Result:
    """Leaves page.html and page.png."""
    path = program(folder, "train", _ON_THE_DOUBLE if IN_PLACE else _TRAINING)
    hiwater("run", "-q", "-o", "train.hiw", path, folder=folder)
    hiwater("report", "train.hiw", "--format", "html", "-o", "page.html", folder=folder)
    said = json.loads(hiwater("report", "train.hiw", "--format", "json", folder=folder).stdout)
    ram, (device,) = said["peak"]["allocated_bytes"], said["devices"]
    figures = {"RAM peak": ram, "device": device["name"], "device peak": device["peak_allocated_bytes"]}
    held = (
        ram >= 32 * MIB
        and device["peak_allocated_bytes"] >= 32 * MIB
        and "cuda:0" in (folder / "page.html").read_text()
    )
    browser = next((path for name in BROWSERS if (path := shutil.which(name))), None)
    if browser:
        words = ["--headless", "--no-sandbox", "--disable-gpu", "--window-size=1280,1600", "--virtual-time-budget=5000"]
        picture = [browser, *words, f"--screenshot={folder / 'page.png'}", (folder / "page.html").as_uri()]
        subprocess.run(picture, capture_output=True, timeout=40, check=False)
        held = held and (folder / "page.png").exists()
    return Result(held, figures | {"browser": browser or "none"})
