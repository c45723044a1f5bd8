"""A tokenizer of words with a chat template that marks what the assistant says, and one small set in every format."""

from __future__ import annotations

from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast


WORDS = ["a", "b", "c", "d", "e", "f", "g", "h", "i", "j", "what", "is", "why", "how", "yes", "no", "maybe", "never"]
TEMPLATE = (
    "{% for message in messages %}"
    "{% if message['role'] == 'assistant' %}<assistant> "
    "{% generation %}{{ message['content'] }} <eos> {% endgeneration %}"
    "{% else %}<user> {{ message['content'] }} <end> {% endif %}"
    "{% endfor %}"
    "{% if add_generation_prompt %}<assistant> {% endif %}"
)
SPECIAL = ["<pad>", "<eos>", "<unk>", "<user>", "<assistant>", "<end>"]


def tokenizer() -> PreTrainedTokenizerFast:
    made = Tokenizer(models.WordLevel({w: n for n, w in enumerate(SPECIAL + WORDS)}, unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(
        tokenizer_object=made,
        pad_token="<pad>",
        eos_token="<eos>",
        unk_token="<unk>",
        chat_template=TEMPLATE,
        additional_special_tokens=["<user>", "<assistant>", "<end>"],
    )


def model() -> LlamaForCausalLM:
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=len(SPECIAL + WORDS), hidden_size=16, intermediate_size=16, num_hidden_layers=1,
            num_attention_heads=2, max_position_embeddings=64, pad_token_id=0, eos_token_id=1,
        )
    )  # fmt: skip


QUESTIONS = ["what is a", "why b c d", "how", "is e f g h", "what", "why i j a b c"]
ANSWERS = ["yes", "no maybe", "never never no", "yes a", "maybe b c d e f", "no"]


def _turn(role: str, content: str) -> dict[str, str]:
    return {"role": role, "content": content}


_PAIRS = list(zip(QUESTIONS, ANSWERS))
FORMATS = {
    "text": [{"text": f"{question} {answer}"} for question, answer in _PAIRS],
    "prompt, completion": [{"prompt": question + " ", "completion": answer} for question, answer in _PAIRS],
    "messages": [{"messages": [_turn("user", q), _turn("assistant", a)]} for q, a in _PAIRS],
    "several turns": [
        {"messages": [_turn("user", q), _turn("assistant", a), _turn("user", a), _turn("assistant", q)]}
        for q, a in _PAIRS
    ],
    "conversational prompt, completion": [
        {"prompt": [_turn("user", q)], "completion": [_turn("assistant", a)]} for q, a in _PAIRS
    ],
    "conversations": [
        {"conversations": [{"from": "human", "value": q}, {"from": "gpt", "value": a}]} for q, a in _PAIRS
    ],
    "another text field": [{"story": f"{question} {answer}"} for question, answer in _PAIRS],
    "to be formatted": [{"q": question, "a": answer} for question, answer in _PAIRS],
}
