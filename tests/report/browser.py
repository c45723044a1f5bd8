"""A headless Chromium that renders a page at a given width."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest


def chromium() -> str:
    """Path of the browser. CI installs one and fails without it; elsewhere a missing one leaves these tests out."""
    found = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if found is None:
        if not os.environ.get("CI"):
            pytest.skip("no Chromium here (apt-get install chromium); CI installs one and runs this")
        raise AssertionError("No Chromium: apt-get install chromium. The report's page is tested in a real browser.")
    return found


def _run(tmp_path: Path, *arguments: str) -> str:
    """One headless call; what it prints."""
    command = [
        chromium(),
        "--headless=new",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--hide-scrollbars",
        "--no-first-run",
        "--host-resolver-rules=MAP * ~NOTFOUND",  # no name resolves: the page gets no network
        f"--user-data-dir={tmp_path / 'profile'}",
        *arguments,
    ]
    environment = {**os.environ, "HOME": str(tmp_path)}
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def screenshot(page: Path, image: Path, width: int, height: int) -> None:
    """Render `page` into a PNG. Chromium has a smallest window of about 500 px, so a narrow page sits in a frame."""
    frame = image.with_suffix(".frame.html")
    frame.write_text(
        f'<body style="margin:0"><iframe src="{page.as_uri()}" style="border:0" width="{width}" height="{height}">'
    )
    _run(image.parent, f"--screenshot={image}", f"--window-size={max(width, 520)},{height}", frame.as_uri())


def measure(page: Path, tmp_path: Path, width: int) -> dict[str, int]:
    """Lay `page` out at `width` px and measure it: its widths, its height, its letters in px."""
    probe = tmp_path / f"probe-{width}.html"
    script = """
      <script>
        addEventListener("load", () => {
          const root = document.documentElement;
          const right = Math.max(...[...document.body.querySelectorAll("*")]
            .map((element) => element.getBoundingClientRect().right));
          const letters = Math.min(...[...document.querySelectorAll("p, td, span, text")]
            .map((element) => parseFloat(getComputedStyle(element).fontSize)));
          parent.postMessage([root.clientWidth, root.scrollWidth, Math.ceil(right), root.scrollHeight, letters]
            .map(Math.round).join(" "), "*");
        });
      </script>"""
    inner = page.read_text(encoding="utf-8").replace("</body>", script + "</body>")
    (tmp_path / f"inner-{width}.html").write_text(inner, encoding="utf-8")
    probe.write_text(
        f"""<body><output></output>
        <script>addEventListener("message", (event) => {{
          document.querySelector("output").textContent = "measured " + event.data; }});</script>
        <iframe src="inner-{width}.html" width="{width}" height="2000" style="border:0"></iframe></body>"""
    )
    text = _run(tmp_path, "--dump-dom", "--virtual-time-budget=5000", probe.as_uri())
    found = re.search(r"measured ([\d ]+)<", text)
    assert found, f"the page was not laid out:\n{text[:2000]}"
    names = ("client_width", "scroll_width", "right", "height", "smallest_letters")
    return dict(zip(names, map(int, found.group(1).split())))
