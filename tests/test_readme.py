"""The README as a new user types it, in a fresh clone: its Python blocks run, its commands work.

There is no hub in the tests: names of models and datasets on it are replaced by local ones, and each replacement
checks that the README still says what it replaces.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from tokenizers.pre_tokenizers import WhitespaceSplit
from transformers import LlamaConfig, LlamaForCausalLM

from tests.equivalence import trajectory as t


ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def clone(tmp_path_factory):
    """A fresh clone of what is committed, with a tiny model and a file of chats beside it."""
    folder = tmp_path_factory.mktemp("new-user")
    subprocess.run(["git", "clone", "-q", str(ROOT), str(folder / "hf_packing")], check=True, timeout=120)
    here = folder / "hf_packing"
    config = LlamaConfig(
        vocab_size=t.VOCABULARY, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2
    )
    LlamaForCausalLM(config).save_pretrained(here / "my-model")
    tokenizer = t.tokenizer()
    tokenizer.backend_tokenizer.pre_tokenizer = WhitespaceSplit()
    tokenizer.chat_template = "{% for m in messages %}{{ m['content'] }} {% endfor %}{{ eos_token }}"
    tokenizer.save_pretrained(here / "my-model")
    chats = [
        {"messages": [{"role": "user", "content": "w1 w2 " * n}, {"role": "assistant", "content": "w3 w4 " * n}]}
        for n in range(1, 40)
    ]
    (here / "chats.jsonl").write_text("\n".join(map(json.dumps, chats)), encoding="utf-8")
    return here


def _run(clone: Path, command: list[str]) -> str:
    environment = {**os.environ, "PYTHONPATH": str(clone), "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(command, cwd=clone, env=environment, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    return done.stdout


def _blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)


def _replaced(text: str, pairs: dict[str, str]) -> str:
    for old, new in pairs.items():
        assert old in text, f"the README no longer says {old!r}"
        text = text.replace(old, new)
    return text


@pytest.mark.slow
def test_python_blocks_run(clone):
    trainer, any_trainer = _blocks("python")
    local = {
        "Qwen/Qwen3-0.6B": "my-model",
        "max_length=4096": "max_length=256, bf16=False, use_cpu=True, report_to='none', save_strategy='no'",
        '"trl-lib/Capybara"': '"json", data_files="chats.jsonl"',
    }
    said = _run(clone, [sys.executable, "-c", _replaced(trainer, local)])
    assert "isolation proven" in said and "packs of 256" in said
    printed = _run(clone, [sys.executable, "-c", any_trainer])
    assert "'position_ids': [[0, 1, 2, 3, 0, 1, 2]]" in printed


@pytest.mark.slow
def test_commands_run(clone):
    """report and check as they stand; train with the recipe cut to the tiny model and the chats."""
    commands = [line.split("#")[0].strip() for block in _blocks("sh") for line in block.splitlines()]
    ours = [line for line in commands if line.startswith("hf-packing")]
    assert [line.split()[1] for line in ours] == ["report", "check", "train"]
    report, check, train = [[sys.executable, "-m", "hf_packing.cli", *line.split()[1:]] for line in ours]
    assert "padding bill: 39 sequences" in _run(clone, report).lower()
    assert (clone / "bill.html").stat().st_size > 10_000
    assert "packed_varlen" in _run(clone, check)
    smaller = (
        "--model_name_or_path my-model --dataset_name chats.jsonl --completion_only_loss false --compare_padded false "
        "--use_cpu true --max_eval_samples 4 --dataset_test_split train"
    )
    said = _run(clone, [*train, *smaller.split()])
    assert "Saved to" in said


def test_every_target_the_readme_names_is_in_the_makefile():
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^make (\w+)", README, re.MULTILINE))
    assert targets >= {"quickstart", "test"}
    assert all(re.search(rf"^{target}:", makefile, re.MULTILINE) for target in targets)


def test_links_lead_somewhere():
    links = re.findall(r"\]\(([\w./-]+)\)", README)
    assert len(links) > 10
    assert not [link for link in links if not (ROOT / link).exists()]


def test_figures_are_those_of_the_results():
    sys.path.insert(0, str(ROOT / "benchmarks"))
    try:
        from readme_figures import figures
    finally:
        sys.path.remove(str(ROOT / "benchmarks"))
    shown = re.search(r"<!-- figures.*?-->\n(.*?)\n<!-- end of figures -->", README, re.DOTALL)
    assert shown and shown[1] == figures(), "run: python benchmarks/readme_figures.py"
