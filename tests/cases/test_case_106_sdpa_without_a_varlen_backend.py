"""packing=True needs no varlen backend: the check says that sdpa isolates, and what it costs."""

from __future__ import annotations

from transformers import LlamaConfig

from hf_packing.cli import main


def test_case_106_check_says_that_sdpa_is_right_and_dense(tmp_path, capsys):
    LlamaConfig(
        vocab_size=64, hidden_size=32, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2
    ).save_pretrained(tmp_path)
    assert main(["check", str(tmp_path), "--random-weights", "--attention", "sdpa", "packed_varlen"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "sdpa isolated" in out and "packed_varlen isolated" in out
    assert 'sdpa builds a mask of all tokens by all tokens; use attn_implementation="packed_varlen" for speed' in out
