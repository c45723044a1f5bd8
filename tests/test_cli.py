"""The command line as a user meets it: files in, tables and pages out, one-line errors, exit codes."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from datasets import Dataset, load_from_disk
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM, OPTConfig, PreTrainedTokenizerFast

from hf_packing.cli import main
from hf_packing.errors import ContaminationError, PackingError
from hf_packing.plan import PackPlan


TEMPLATE = (
    "{% for message in messages %}[{{ message['role'] }}] {{ message['content'] }} </s> {% endfor %}"
    "{% if add_generation_prompt %}[assistant] {% endif %}"
)
NUMBERS = ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"]
WORDS = ["</s>", "<unk>", "[user]", "[assistant]", *NUMBERS]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    """A word tokenizer with a chat template, in a folder."""
    made = Tokenizer(models.WordLevel({word: number for number, word in enumerate(WORDS)}, unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    fast = PreTrainedTokenizerFast(tokenizer_object=made, eos_token="</s>", unk_token="<unk>", chat_template=TEMPLATE)
    folder = tmp_path_factory.mktemp("tokenizer")
    fast.save_pretrained(folder)
    return str(folder)


@pytest.fixture(scope="module")
def models_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    LlamaForCausalLM(
        LlamaConfig(
            vocab_size=64, hidden_size=32, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2,
            max_position_embeddings=128,
        )
    ).save_pretrained(folder / "llama")  # fmt: skip
    OPTConfig(
        vocab_size=64, hidden_size=32, ffn_dim=32, num_hidden_layers=2, num_attention_heads=2,
        word_embed_proj_dim=32, max_position_embeddings=128,
    ).save_pretrained(folder / "opt")  # fmt: skip
    return folder


def lines(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def sequences(count=40):
    return [[5 + (row + at) % 8 for at in range(1 + 7 * row % 13)] + [0] for row in range(count)]


@pytest.fixture
def chats(tmp_path):
    words = WORDS[4:]
    rows = [
        {
            "messages": [
                {"role": "user", "content": " ".join(words[: 1 + row % 9])},
                {"role": "assistant", "content": " ".join(words[row % 5 :])},
            ]
        }
        for row in range(30)
    ]
    return lines(tmp_path / "chats.jsonl", rows)


def run(capsys, *arguments):
    code = main([str(argument) for argument in arguments])
    out, err = capsys.readouterr()
    return code, out, err


def figures_of(capsys, *arguments):
    code, out, _ = run(capsys, "report", *arguments, "--json")
    assert code == 0
    return json.loads(out[out.index("{") :])


def test_report_of_chats(capsys, chats, tokenizer, tmp_path):
    page, figures = tmp_path / "bill.html", tmp_path / "bill.json"
    code, out, _ = run(
        capsys, "report", chats, "--tokenizer", tokenizer, "--max-length", 64, "--html", page, "--json", figures
    )
    assert code == 0
    written = json.loads(figures.read_text())
    assert " ".join(written["verdict"].split()) in " ".join(out.split())
    assert "packed, optimal" in out and "0 of 30 rows do not end in EOS (id 0)" in out
    # A chat is [user] 1..9 words </s> [assistant] 6..10 words </s>: counted here without the tokenizer.
    assert written["tokens"] == sum((1 + row % 9) + (10 - row % 5) + 4 for row in range(30))
    assert written["findings"]["without_eos"] == 0
    assert "<svg" in page.read_text()


@pytest.mark.parametrize("kind", ["jsonl", "json", "parquet", "csv", "arrow", "folder", "txt"])
def test_report_reads_every_kind_of_file(capsys, tmp_path, tokenizer, kind):
    texts = ["one two three", "four </s>", "five six seven eight nine ten one"] * 5
    rows = Dataset.from_dict({"text": texts})
    path = tmp_path / f"rows.{kind}"
    if kind in ("jsonl", "json"):
        rows.to_json(path)
    elif kind == "parquet":
        rows.to_parquet(path)
    elif kind == "csv":
        rows.to_csv(path)
    elif kind == "txt":
        path.write_text("\n".join(texts))
    else:
        rows.save_to_disk(tmp_path / "folder")
        path = tmp_path / "folder" if kind == "folder" else next((tmp_path / "folder").glob("*.arrow"))
    figures = figures_of(capsys, path, "--tokenizer", tokenizer, "--max-length", 16)
    # EOS is added where the text does not end in it: 4 + 2 + 8 tokens.
    assert (figures["sequences"], figures["tokens"]) == (15, 14 * 5)


def test_report_of_tokens_needs_no_tokenizer(capsys, tmp_path):
    path = tmp_path / "tokens.parquet"
    Dataset.from_dict({"input_ids": sequences(), "name": ["x"] * 40}).to_parquet(path)
    figures = figures_of(capsys, path, "--max-length", 32, "--batch-size", 4, "--limit", 20)
    assert figures["tokens"] == sum(map(len, sequences(20)))
    findings = figures_of(capsys, path, "--eos-token-id", 9, 0, "--bos-token-id", 5)["findings"]
    assert (findings["without_eos"], findings["without_bos"]) == (0, sum(row[0] != 5 for row in sequences()))
    assert figures["layouts"]["packed_bfd"]["slots"] == figures["layouts"]["packed_bfd"]["rows"] * 32


def test_report_of_prompts_and_sharegpt(capsys, tmp_path, tokenizer):
    prompts = lines(tmp_path / "prompts.jsonl", [{"prompt": "one two ", "completion": "three four"}] * 4)
    assert figures_of(capsys, prompts, "--tokenizer", tokenizer)["tokens"] == 4 * 5
    turns = [{"from": "user", "value": "one"}, {"from": "assistant", "value": "two"}]
    shared = lines(tmp_path / "shared.jsonl", [{"conversations": turns}] * 3)
    assert figures_of(capsys, shared, "--tokenizer", tokenizer)["tokens"] == 3 * 6


def test_report_counts_like_the_library(capsys, tmp_path):
    from hf_packing.report import padding_report

    path = tmp_path / "tokens.jsonl"
    Dataset.from_dict({"input_ids": sequences()}).to_json(path)
    figures = figures_of(capsys, path, "--max-length", 32, "--batch-size", 4, "--strategies", "bfd", "--seed", 3)
    bill = padding_report(list(map(len, sequences())), 32, 4, seed=3, strategies=("bfd",))
    assert figures["layouts"] == bill.to_dict()["layouts"]


def test_pack_writes_data_and_plan(capsys, tmp_path):
    source, packed = tmp_path / "tokens.parquet", tmp_path / "packed"
    Dataset.from_dict({"input_ids": sequences()}).to_parquet(source)
    code, out, _ = run(capsys, "pack", source, packed, "--max-length", 32, "--strategy", "bfd")
    assert code == 0 and "40 rows ->" in out
    rows, plan = load_from_disk(str(packed)), PackPlan.load(packed / "plan.npz")
    assert len(rows) == plan.num_packs < 40
    assert sum(map(len, rows["input_ids"])) == sum(map(len, sequences())) == plan.ledger.tokens_in
    taken = {}
    for row in rows:
        start = 0
        for sequence, length in zip(row["sequence_ids"], row["seq_lengths"]):
            taken[sequence] = row["input_ids"][start : start + length]
            start += length
    assert [taken[number] for number in range(40)] == sequences()


def test_pack_aligns_sequences(capsys, tmp_path):
    source = tmp_path / "tokens.parquet"
    Dataset.from_dict({"input_ids": [[5, 6, 0]] * 4}).to_parquet(source)
    assert run(capsys, "pack", source, tmp_path / "packed", "--max-length", 8, "--multiple-of", 4)[0] == 0
    assert PackPlan.load(tmp_path / "packed" / "plan.npz").num_packs == 2


def test_pack_trains_completions_only_and_adds_eos(capsys, tmp_path, tokenizer):
    prompts = lines(tmp_path / "prompts.jsonl", [{"prompt": "one two ", "completion": "three four"}] * 4)
    code, _, _ = run(capsys, "pack", prompts, tmp_path / "packed", "--tokenizer", tokenizer, "--max-length", 20)
    assert code == 0
    row = load_from_disk(str(tmp_path / "packed"))[0]
    three, four = WORDS.index("three"), WORDS.index("four")
    assert row["labels"][:5] == [-100, -100, three, four, 0]
    assert row["seq_lengths"] == [5, 5, 5, 5]


def test_pack_drops_duplicates_and_never_overwrites(capsys, tmp_path):
    source, packed = tmp_path / "tokens.parquet", tmp_path / "packed"
    Dataset.from_dict({"input_ids": [[5, 6, 0]] * 3 + [[7, 0]]}).to_parquet(source)
    assert run(capsys, "pack", source, packed, "--max-length", 8, "--drop-duplicates")[0] == 0
    assert sum(map(len, load_from_disk(str(packed))["input_ids"])) == 5
    code, _, err = run(capsys, "pack", source, packed, "--max-length", 8)
    assert code == 2 and "not an empty folder" in err


def test_check_of_an_isolating_model(capsys, models_folder):
    code, out, _ = run(capsys, "check", models_folder / "llama")
    assert code == 0
    table = {line.split()[0]: line.split()[1:3] for line in out.splitlines()[2:5]}
    assert table == {name: ["isolated", "0.0e+00"] for name in ("eager", "sdpa", "packed_varlen")}


def test_check_exits_1_on_a_leak(capsys, models_folder):
    code, out, _ = run(capsys, "check", models_folder / "opt", "--random-weights", "--attention", "eager")
    assert code == 1
    assert "NOT ISOLATED" in out and "leak into each other" in out


def test_check_rows_layout_and_unknown_implementation(capsys, models_folder):
    llama = models_folder / "llama"
    assert run(capsys, "check", llama, "--layout", "rows", "--attention", "sdpa")[0] == 0
    code, out, err = run(capsys, "check", llama, "--attention", "no_such_attention")
    assert code == 2 and "cannot run" in out and "None of no_such_attention could run" in err


BAD = [
    (["report", "missing.jsonl"], "no file or folder missing.jsonl"),
    (["report", "{tmp}/rows.xyz"], "ends in '.xyz'; known are .json"),
    (["report", "{tmp}/broken.jsonl"], "could not be read"),
    (["report", "{tmp}/text.jsonl"], "name a tokenizer with --tokenizer"),
    (["report", "{tmp}/text.jsonl", "--tokenizer", "{tmp}"], "No tokenizer could be loaded"),
    (["report", "{tmp}/other.jsonl", "--tokenizer", "{tokenizer}"], r"None of the columns ['a'] can be tokenised"),
    (["report", "{tmp}/tokens.jsonl", "--max-length", "0"], "max_length"),
    (["report", "{tmp}/tokens.jsonl", "--batch-size", "0"], "batch_size is 0"),
    (["report", "{tmp}/tokens.jsonl", "--overflow", "squash"], "squash"),
    (["report", "{tmp}/tokens.jsonl", "--strategies", "magic"], "magic"),
    (["report", "{tmp}/tokens.jsonl", "--html", "{tmp}/no/such/folder.html"], "No such file or directory"),
    (["report", "no-such-owner/no-such-dataset"], "no-such-owner/no-such-dataset"),
    (["pack", "{tmp}/tokens.jsonl", "{tmp}/out", "--max-length", "2"], "overflow"),
    (["check", "{tmp}"], "No model could be loaded"),
]


@pytest.mark.parametrize(("arguments", "message"), BAD, ids=[" ".join(arguments[:4]) for arguments, _ in BAD])
def test_errors_are_one_line(capsys, tmp_path, tokenizer, models_folder, arguments, message):
    (tmp_path / "rows.xyz").write_text("x")
    (tmp_path / "broken.jsonl").write_text('{"input_ids": [1, 2}\n')
    lines(tmp_path / "text.jsonl", [{"text": "one"}])
    lines(tmp_path / "other.jsonl", [{"a": 1}])
    lines(tmp_path / "tokens.jsonl", [{"input_ids": [1, 2, 3]}])
    filled = [part.format(tmp=tmp_path, tokenizer=tokenizer, models=models_folder) for part in arguments]
    code, _, err = run(capsys, *filled)
    assert code == 2
    said = [line for line in err.splitlines() if line.startswith("hf-packing: ")]
    assert len(said) == 1 and message in said[0], err
    assert "Traceback" not in err


@pytest.mark.parametrize("command", [[], ["report"], ["pack"], ["check"]])
def test_help_has_examples(capsys, command):
    with pytest.raises(SystemExit) as done:
        main([*command, "--help"])
    assert done.value.code == 0
    out = capsys.readouterr().out
    assert "examples:" in out and f"hf-packing {' '.join(command)}".strip() in out


def test_wrong_usage_exits_2(capsys):
    for arguments in ([], ["reprot"], ["pack", "x"], ["check", "x", "--dtype", "float17"]):
        with pytest.raises(SystemExit) as done:
            main(arguments)
        assert done.value.code == 2


def test_traceback_on_demand():
    with pytest.raises(PackingError):
        main(["--traceback", "report", "missing.jsonl"])


def test_as_a_program_without_traceback(tmp_path):
    command = [sys.executable, "-m", "hf_packing.cli", "report", str(tmp_path / "none.jsonl")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr and "There is no file or folder" in done.stderr


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (ValueError("no bf16\nhere"), 2, "no bf16 here (hf-packing --traceback ... shows where)"),
        (FileNotFoundError(2, "No such file or directory", "recipe.yaml"), 2, "recipe.yaml"),
        (PackingError("too long"), 2, "too long"),
        (ContaminationError("a leak"), 1, "a leak"),
        (KeyboardInterrupt(), 130, "interrupted"),
    ],
)
def test_errors_of_a_training_are_one_line(monkeypatch, capsys, error, code, said):
    from hf_packing.cli import train

    def fail(argv):
        raise error

    monkeypatch.setattr(train, "_recipe", lambda: fail)
    assert main(["train", "--config", "recipe.yaml"]) == code
    err = capsys.readouterr().err
    assert err.startswith("hf-packing: ") and err.count("\n") == 1 and said in err
    if isinstance(error, Exception):
        with pytest.raises(type(error)):
            main(["--traceback", "train"])


def test_help_of_train_has_examples(monkeypatch, capsys):
    from hf_packing.cli import train

    monkeypatch.setattr(train, "_recipe", lambda: lambda argv: None)
    main(["train", "--help"])
    assert "hf-packing train --config" in capsys.readouterr().out


def test_train_hands_its_arguments_on(monkeypatch):
    from hf_packing.cli import train

    given = []
    monkeypatch.setattr(train, "_recipe", lambda: given.append)
    assert main(["train", "--config", "recipe.yaml", "--max_steps", "1"]) == 0
    assert given == [["--config", "recipe.yaml", "--max_steps", "1"]]


@pytest.mark.slow
def test_a_new_user_reports_trains_and_checks(capsys, chats, tokenizer, models_folder, tmp_path):
    """One JSONL of chats from its bill to a trained model whose isolation is proven."""
    assert run(capsys, "report", chats, "--tokenizer", tokenizer, "--max-length", 64)[0] == 0
    options = {
        "dataset_name": chats, "model_name_or_path": models_folder / "llama", "output_dir": tmp_path / "out",
        "packing": True, "max_length": 64, "max_steps": 2, "bf16": False, "use_cpu": True, "report_to": "none",
        "save_strategy": "no", "logging_steps": 1,
    }  # fmt: skip
    AutoTokenizer.from_pretrained(tokenizer).save_pretrained(models_folder / "llama")
    code, out, err = run(capsys, "train", *(part for name, value in options.items() for part in (f"--{name}", value)))
    assert code == 0, err
    assert "30 sequences ->" in out and "isolation proven" in out
    code, out, _ = run(capsys, "check", tmp_path / "out")
    assert code == 0 and "NOT ISOLATED" not in out
