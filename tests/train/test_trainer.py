"""The trainers as a whole: set-up, refusals, counters over a resume, streams, precisions, adapters."""

from __future__ import annotations

import pytest
import torch
from datasets import Dataset, IterableDataset
from peft import LoraConfig
from transformers import MambaConfig, MambaForCausalLM, Trainer, TrainingArguments

from hf_packing import PackedDataset, PackingTrainer, PackingTrainerMixin, pack_dataset
from hf_packing.errors import ContaminationError, PackingError
from tests.equivalence import trajectory
from tests.train import tiny


TOKENS = sum(trajectory.LENGTHS)


# --- refusals ------------------------------------------------------------------------------------------------------


def test_data_parallel_is_refused_with_the_remedy(tmp_path, monkeypatch):
    monkeypatch.setattr(TrainingArguments, "n_gpu", property(lambda self: 2))
    with pytest.raises(PackingError, match=r"2 GPUs are visible.*nn\.DataParallel.*accelerate launch.*torchrun"):
        tiny.make("plain", tmp_path)


@pytest.mark.parametrize("kind", tiny.KINDS)
@pytest.mark.parametrize(
    "flags", [{}, {"packing": False, "padding_free": True}, {"packing": False, "eval_packing": True}]
)
def test_a_collator_beside_packing_is_refused(tmp_path, kind, flags):
    def my_collator(rows):
        raise AssertionError("never called")

    with pytest.raises(PackingError, match=r"data_collator=function.*switch packing off.*packing=False"):
        tiny.make(kind, tmp_path, data_collator=my_collator, **flags)


def test_packs_without_packing_are_refused(tmp_path):
    packs = pack_dataset(Dataset.from_list(trajectory.sequences()), max_length=48)
    with pytest.raises(PackingError, match=r"train dataset is packed already, but packing=False"):
        tiny.make("plain", tmp_path, packs, packing=False)


def test_a_model_that_leaks_is_refused_or_trained_row_by_row(tmp_path):
    def mamba():
        torch.manual_seed(1)
        return MambaForCausalLM(MambaConfig(vocab_size=61, hidden_size=16, state_size=4, num_hidden_layers=1))

    with pytest.raises(ContaminationError, match="isolation_check='group'"):
        tiny.make("plain", tmp_path, model=mamba(), attention="keep").train()
    grouped = {"attention": "keep", "isolation_check": "group", "gradient_accumulation_steps": 50}
    made = tiny.make("plain", tmp_path, model=mamba(), **grouped)
    made.train()
    total, targets = tiny.nll(mamba(), trajectory.sequences())
    assert tiny.logs(made, "loss")[0] == pytest.approx(total / targets, rel=1e-5)


def test_a_state_restarts_at_every_boundary(tmp_path, capsys):
    """A state-space model without fused kernels trains packed, with the loss of each sequence run alone."""

    def mamba():
        torch.manual_seed(1)
        return MambaForCausalLM(MambaConfig(vocab_size=61, hidden_size=16, state_size=4, num_hidden_layers=1))

    made = tiny.make("plain", tmp_path, model=mamba(), gradient_accumulation_steps=50)
    made.train()
    said = capsys.readouterr().out
    assert "run sequence by sequence" in said and "isolation proven" in said
    assert made.batch_form.is_packed
    total, targets = tiny.nll(mamba(), trajectory.sequences())
    assert tiny.logs(made, "loss")[0] == pytest.approx(total / targets, rel=1e-5)


def test_a_wrapper_that_swallows_the_boundaries_is_found(tmp_path):
    class Swallowing(type(trajectory.build())):
        def forward(self, input_ids=None, labels=None, **kwargs):
            return super().forward(input_ids=input_ids, labels=labels, use_cache=False)

    model = trajectory.build()
    model.__class__ = Swallowing
    made = tiny.make("plain", tmp_path, model=model)
    with pytest.raises(ContaminationError, match="isolation NOT proven"):
        made.train()


@pytest.mark.parametrize(
    "rows, message",
    [
        ([], "train dataset is empty"),
        ([{"labels": [1]}], "no 'input_ids'"),
        ([{"input_ids": [1, 2], "labels": [-100, -100]}], "No sequence of the train dataset has a target"),
    ],
)
def test_datasets_that_cannot_be_trained_on(tmp_path, rows, message):
    with pytest.raises(PackingError, match=message):
        PackingTrainer(
            trajectory.build(),
            tiny.PackingTrainingArguments(**trajectory.settings(str(tmp_path))),
            train_dataset=rows,
        )


def test_losing_most_tokens_is_refused_unless_it_was_asked_for(tmp_path):
    long = tiny.words(100, 100)
    with pytest.raises(PackingError, match=r"90% of the tokens of the train dataset would be lost.*overflow='split'"):
        tiny.make("plain", tmp_path, long, max_length=10)
    made = tiny.make("plain", tmp_path, long, max_length=10, overflow="truncate")
    assert made.train_dataset.plan.ledger.tokens_lost == 180


def test_no_dataset_at_all(tmp_path):
    made = PackingTrainer(trajectory.build(), tiny.PackingTrainingArguments(**trajectory.settings(str(tmp_path))))
    with pytest.raises(PackingError, match="train\\(\\) needs a train_dataset"):
        made.train()
    with pytest.raises(PackingError, match="evaluate\\(\\) needs an eval_dataset"):
        made.evaluate()


def test_a_resume_without_a_checkpoint_is_named(tmp_path):
    with pytest.raises(PackingError, match="holds no checkpoint"):
        tiny.make("plain", tmp_path).train(resume_from_checkpoint=True)


# --- forms of configuration and data -------------------------------------------------------------------------------


def test_plain_training_arguments_train_without_packing(tmp_path):
    args = TrainingArguments(**trajectory.settings(str(tmp_path), gradient_accumulation_steps=50, num_train_epochs=1))
    made = PackingTrainer(trajectory.build(), args, train_dataset=Dataset.from_list(trajectory.sequences()))
    made.train()
    expected = trajectory.reference(trajectory.build(), trajectory.sequences(), 1)
    assert tiny.logs(made, "loss")[0] == pytest.approx(expected.losses[0], rel=1e-6)
    assert tiny.logs(made, "packs_per_step")[0] == len(trajectory.LENGTHS)


def test_a_list_and_a_torch_dataset(tmp_path):
    class Rows(torch.utils.data.Dataset):
        def __len__(self):
            return len(trajectory.LENGTHS)

        def __getitem__(self, number):
            row = trajectory.sequences()[number]
            return {name: torch.tensor(value) for name, value in row.items()} | {"note": "x"}

    for rows in (Rows(), trajectory.sequences()):
        settings = trajectory.settings(str(tmp_path), max_length=48, num_train_epochs=1)
        made = PackingTrainer(trajectory.build(), tiny.PackingTrainingArguments(**settings), train_dataset=rows)
        made.train()
        assert tiny.logs(made, "num_tokens")[-1] == TOKENS


def test_the_mixin_over_a_trainer_of_the_users_own(tmp_path):
    class Own(Trainer):
        def training_step(self, *args, **kwargs):
            self.seen = True
            return super().training_step(*args, **kwargs)

    class Packed(PackingTrainerMixin, Own):
        pass

    made = tiny.make("plain", tmp_path, cls=Packed, gradient_accumulation_steps=50)
    made.train()
    expected = trajectory.reference(trajectory.build(), trajectory.sequences(), 1)
    assert made.seen
    assert tiny.logs(made, "loss")[0] == pytest.approx(expected.losses[0], rel=1e-6)


def test_another_dataset_put_in_later(tmp_path):
    made = tiny.make("plain", tmp_path)
    made.train_dataset = Dataset.from_list(tiny.words(6, 7))
    made.train()
    assert isinstance(made.train_dataset, PackedDataset)
    assert tiny.logs(made, "num_tokens")[-1] == 13


# --- counters ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", tiny.KINDS)
@pytest.mark.parametrize("settings", [{}, {"packing": False}, {"pad_to_multiple_of": 16}], ids=str)
def test_counters_count_real_tokens_and_sequences(tmp_path, kind, settings):
    made = tiny.make(
        kind,
        tmp_path,
        per_device_train_batch_size=2,
        num_train_epochs=2,
        include_num_input_tokens_seen="all",
        **settings,
    )
    made.train()
    assert tiny.logs(made, "num_tokens")[-1] == 2 * TOKENS
    assert tiny.logs(made, "num_sequences")[-1] == 2 * len(trajectory.LENGTHS)
    assert made.state.num_input_tokens_seen == 2 * TOKENS


@pytest.mark.parametrize("stream", [False, True], ids=["dataset", "stream"])
def test_counters_continue_over_a_resume(tmp_path, stream):
    rows = Dataset.from_list(tiny.words(*[10] * 8))

    def run(out, resume=None, **settings):
        data = rows.to_iterable_dataset() if stream else rows
        made = tiny.make(
            "plain", out, data, max_length=20, save_strategy="steps", save_steps=1, num_train_epochs=2,
            include_num_input_tokens_seen="non_padding", **settings,
        )  # fmt: skip
        made.train(resume_from_checkpoint=resume)
        return made

    whole = run(tmp_path / "whole", max_steps=6)
    assert tiny.logs(whole, "num_tokens") == [20, 40, 60, 80, 100, 120]
    resumed = run(tmp_path / "again", resume=str(tmp_path / "whole" / "checkpoint-3"), max_steps=6)
    for name in ("num_tokens", "num_sequences", "loss"):
        assert tiny.logs(resumed, name) == tiny.logs(whole, name), name
    assert resumed.state.num_input_tokens_seen == whole.state.num_input_tokens_seen == 120
    weights = zip(whole.model.parameters(), resumed.model.parameters())
    assert all(torch.equal(a, b) for a, b in weights)


# --- streams -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", tiny.KINDS)
@pytest.mark.parametrize("packing", [True, False])
def test_windows_of_a_stream_never_mix_passes(tmp_path, kind, packing):
    """Five packs of one row, two a step: three steps a pass, the third of one pack at full weight."""
    rows = tiny.words(16, 15, 14, 13, 12)
    stream = IterableDataset.from_generator(lambda: iter(rows))
    made = tiny.make(
        kind,
        tmp_path,
        stream,
        max_length=16,
        gradient_accumulation_steps=2,
        max_steps=6,
        packing=packing,
        learning_rate=0.0,
    )
    made.train()
    assert tiny.logs(made, "num_sequences") == [2, 4, 5, 7, 9, 10]
    losses = tiny.logs(made, "loss")
    assert losses[:3] == pytest.approx(losses[3:], rel=1e-6)
    each = [tiny.nll(trajectory.build(), [row])[0] / trajectory.targets(row) for row in rows]
    assert min(abs(loss - losses[2]) for loss in each) < 2e-6
    total, targets = tiny.nll(trajectory.build(), rows)
    assert made.state.log_history[-1]["train_loss"] == pytest.approx(total / targets, rel=1e-6)


# --- precision and adapters ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", tiny.KINDS)
def test_bf16_autocast(tmp_path, kind):
    """The same sequences packed and one a row differ by rounding alone, and by less than to full precision."""

    def run(**settings):
        record = trajectory.Record()
        made = tiny.make(kind, tmp_path, callbacks=[record], gradient_accumulation_steps=50, **settings)
        made.train()
        assert all(p.dtype == torch.float32 for p in made.model.parameters())
        return record.trajectory

    packed, alone = run(bf16=True), run(bf16=True, packing=False)
    exact = trajectory.reference(trajectory.build(), trajectory.sequences(), 1)
    assert packed.losses[0] == pytest.approx(exact.losses[0], rel=5e-3)
    assert packed.losses[0] != pytest.approx(exact.losses[0], rel=1e-7)  # it did run in bfloat16
    assert packed.losses[0] == pytest.approx(alone.losses[0], rel=5e-3)
    assert trajectory.distance(packed, exact)["gradient"] < 0.03


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="GradScaler needs a GPU; no CPU runs fp16 autocast")
def test_fp16_autocast_on_a_gpu(tmp_path):
    """float32 weights under fp16 autocast with a scaler, as on a T4."""
    made = tiny.make("sft", tmp_path, fp16=True, use_cpu=False, gradient_accumulation_steps=50, learning_rate=0.0)
    made.train()
    exact = trajectory.reference(trajectory.build(), trajectory.sequences(), 1)
    assert all(p.dtype == torch.float32 for p in made.model.parameters())
    assert tiny.logs(made, "loss")[0] == pytest.approx(exact.losses[0], rel=2e-3)


def test_lora_from_a_config(tmp_path):
    made = tiny.make("sft", tmp_path, peft_config=LoraConfig(r=2, target_modules=["q_proj"]))
    made.train()
    trained = [name for name, p in made.model.named_parameters() if p.requires_grad]
    assert trained and all("lora" in name for name in trained)
    made.save_model(str(tmp_path / "adapter"))
    assert (tmp_path / "adapter" / "adapter_config.json").exists()


def test_set_up_leaves_the_random_numbers_of_a_run_alone(tmp_path):
    """Making loaders must not draw from the generator that dropout uses."""
    made = tiny.make("plain", tmp_path)
    torch.manual_seed(0)
    expected = torch.rand(3)
    torch.manual_seed(0)
    next(iter(made.get_train_dataloader()))
    assert torch.equal(torch.rand(3), expected)
