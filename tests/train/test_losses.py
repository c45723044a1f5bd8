"""Which head computes the loss: the fused one, the full logits, a function of the user."""

from __future__ import annotations

import pytest
import torch
from trl.trainer.utils import add_fused_lm_head

from hf_packing.errors import PackingError
from hf_packing.train.losses import fused_losses, logit_losses, user_loss
from tests.equivalence import trajectory


@pytest.fixture(scope="module")
def model():
    made = trajectory.build().eval()
    add_fused_lm_head(made, outputs=("log_probs", "entropy", "is_top1"))
    return made


@pytest.fixture
def inputs():
    row = trajectory.sequences()[1] | {"use_cache": False}
    return {name: torch.tensor([value]) if isinstance(value, list) else value for name, value in row.items()}


@pytest.mark.parametrize("loss_type", ["nll", "dft"])
def test_both_heads_agree(model, inputs, loss_type):
    with torch.no_grad():
        fused = fused_losses(model, inputs, loss_type)
        full = logit_losses(model, inputs, shifts=True, loss_type=loss_type, with_metrics=True)
    assert torch.allclose(fused.per_token, full.per_token, atol=1e-6)
    assert fused.correct == full.correct
    assert fused.entropy.item() == pytest.approx(full.entropy.item(), rel=1e-5)
    assert full.outputs["logits"].shape[-1] == trajectory.VOCABULARY


def test_a_model_without_logits_is_named(inputs):
    class Headless(torch.nn.Module):
        def forward(self, **inputs):
            return {"last_hidden_state": torch.zeros(1, 3, 2)}

    with pytest.raises(PackingError, match=r"Headless returned no 'logits'.*language-modelling head"):
        logit_losses(Headless(), inputs, shifts=True)


def test_a_term_of_the_users_own_counts_once_a_step():
    """Two batches of 1 and 3 targets: mean losses 4 and 2, and a constant 10 that must not be added twice."""
    labels = torch.zeros(1, 1)

    def with_term(outputs, labels, num_items_in_batch):
        return outputs.sum() / num_items_in_batch + 10

    shares = [
        user_loss(with_term, torch.tensor([4.0]), labels, 1, 4),
        user_loss(with_term, torch.tensor([1.0, 2.0, 3.0]), labels, 3, 4),
    ]
    assert sum(shares).item() == pytest.approx((4 + 6) / 4 + 10)
