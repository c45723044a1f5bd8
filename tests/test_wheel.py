"""The built wheel, installed somewhere else, is the package: it imports, and holds nothing of the checkout."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path


ROOT = Path(__file__).resolve().parent.parent


def test_wheel_installs_and_imports(tmp_path):
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(tmp_path), str(ROOT)]
    subprocess.run(build, check=True, capture_output=True, timeout=300)
    (wheel,) = tmp_path.glob("hf_packing-*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    assert "hf_packing/py.typed" in names
    assert any(name.endswith(".css") for name in names), "the report's page needs its style sheet"
    assert {name.split("/")[0].split("-")[0] for name in names} == {"hf_packing"}, "a wheel has no tests, no recipes"

    site = tmp_path / "site"
    install = [sys.executable, "-m", "pip", "install", "--no-deps", "--no-index", "--target", str(site), str(wheel)]
    subprocess.run(install, check=True, capture_output=True, timeout=300)
    script = (
        "import hf_packing, sys; from hf_packing import plan_packs; from transformers import AttentionInterface;"
        "assert 'packed_varlen' in AttentionInterface();"
        "print(hf_packing.__file__, hf_packing.__version__, plan_packs([8, 2, 7, 3], 10).num_packs)"
    )
    environment = {**os.environ, "PYTHONPATH": str(site)}
    run = subprocess.run(
        [sys.executable, "-c", script], check=True, capture_output=True, text=True, cwd=tmp_path, env=environment
    )
    where, version, packs = run.stdout.split()[-3:]
    assert Path(where).is_relative_to(site) and packs == "2"
    assert f"-{version}-" in wheel.name
    script = site / "bin" / "hf-packing"
    shown = subprocess.run([sys.executable, str(script), "--help"], capture_output=True, text=True, env=environment)
    assert shown.returncode == 0 and "report" in shown.stdout
