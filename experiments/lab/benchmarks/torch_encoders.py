"""Training steps of BERT in PyTorch: of PyTorch's own encoder layers, and of Hugging Face's model.

Both models have post-norm, SDPA, exact GELU, tied embeddings, logits only at masked positions, and
fused AdamW. With mixed_bfloat16, autocast computes in bfloat16 and weights are in float32. The
inputs have no padding and no attention mask. PyTorch uses a GPU if there is one.
"""

import functools
from collections.abc import Callable

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from experiments.lab.benchmarks.encoder_step import (
    ADAMW,
    EPSILON,
    INITIALIZER_RANGE,
    StepSetting,
    random_batch,
)
from experiments.lab.benchmarks.workers import Contender

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


class SdpaEncoder(nn.Module):
    """BERT encoder with a masked language model head, on PyTorch's `TransformerEncoder`."""

    def __init__(self, setting: StepSetting):
        super().__init__()
        width, dropout = setting.hidden_dim, setting.dropout
        self.tokens = nn.Embedding(setting.vocab_size, width)
        self.positions = nn.Embedding(setting.length, width)
        self.segments = nn.Embedding(2, width)
        self.norm, self.dropout = nn.LayerNorm(width, EPSILON), nn.Dropout(dropout)
        sizes = (width, setting.num_heads, setting.feed_forward_dim, dropout, "gelu", EPSILON)
        layer = nn.TransformerEncoderLayer(*sizes, batch_first=True)
        layer.dropout = nn.Identity()  # BERT has no dropout between the two matrices
        self.encoder = nn.TransformerEncoder(layer, setting.num_layers)
        self.dense = nn.Linear(width, width)
        self.head_norm = nn.LayerNorm(width, EPSILON)
        self.bias = nn.Parameter(torch.zeros(setting.vocab_size))
        for weight in self.parameters():
            if weight.dim() > 1:
                nn.init.trunc_normal_(weight, std=INITIALIZER_RANGE)

    def forward(self, ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Computes logits `(N, V)` at N positions in the flattened batch `(B L,)`."""
        x = self.tokens(ids) + (self.positions.weight + self.segments.weight[0])  # (B, L, D)
        x = self.encoder(self.dropout(self.norm(x)))
        x = x.flatten(0, 1)[positions]  # (B, L, D) -> (B L, D) -> (N, D)
        x = self.head_norm(F.gelu(self.dense(x)))
        return F.linear(x, self.tokens.weight, self.bias)


def hugging_face(setting: StepSetting) -> nn.Module:
    """Builds a `BertForMaskedLM` that uses SDPA."""
    import transformers

    return transformers.BertForMaskedLM(
        transformers.BertConfig(
            vocab_size=setting.vocab_size,
            hidden_size=setting.hidden_dim,
            intermediate_size=setting.feed_forward_dim,
            num_hidden_layers=setting.num_layers,
            num_attention_heads=setting.num_heads,
            max_position_embeddings=setting.length,
            hidden_dropout_prob=setting.dropout,
            attention_probs_dropout_prob=setting.dropout,
            attn_implementation="sdpa",
        )
    )


def hugging_face_logits(
    model: nn.Module, ids: torch.Tensor, positions: torch.Tensor
) -> torch.Tensor:
    """Computes logits `(N, V)` at masked positions, as `SdpaEncoder.forward` does.

    `BertForMaskedLM.forward` computes logits at all B L positions, which takes longer.
    """
    hidden = model.bert(ids).last_hidden_state  # (B, L, D)
    return model.cls(hidden.flatten(0, 1)[positions])  # (N, D) -> (N, V)


def training_step(
    setting: StepSetting, model: nn.Module, logits: Callable[..., torch.Tensor]
) -> Contender:
    """Makes a `Contender` that repeats AdamW updates on one batch.

    `logits` maps ids `(B, L)` and positions `(N,)` to logits `(N, V)`.
    """
    batch, bfloat16 = random_batch(setting), setting.dtype_policy == "mixed_bfloat16"
    places = batch["masked_positions"] + setting.length * np.arange(setting.batch)[:, None]
    arrays = (batch["token_ids"], places.reshape(-1), batch["masked_labels"].reshape(-1))
    ids, positions, labels = (torch.from_numpy(array).long().to(DEVICE) for array in arrays)
    model.to(DEVICE).train()
    optimizer = torch.optim.AdamW(
        model.parameters(),
        lr=ADAMW["learning_rate"],
        betas=(ADAMW["beta_1"], ADAMW["beta_2"]),
        eps=ADAMW["epsilon"],
        weight_decay=ADAMW["weight_decay"],
        fused=True,
    )

    def run_steps(steps: int) -> float:
        for _ in range(steps):
            with torch.autocast(DEVICE, torch.bfloat16, enabled=bfloat16):
                loss = F.cross_entropy(logits(ids, positions).float(), labels)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        return loss.item()

    return Contender(run_steps, sum(weight.numel() for weight in model.parameters()))


def contenders(**options) -> dict[str, Contender]:
    """Makes `Contender` objects that run a BERT training step in PyTorch."""
    setting = StepSetting(**options)
    torch.manual_seed(setting.seed)
    eager, compiled, other = SdpaEncoder(setting), SdpaEncoder(setting), hugging_face(setting)
    logits = {
        "PyTorch SDPA": (eager, eager),
        "PyTorch SDPA, torch.compile": (compiled, torch.compile(compiled)),
        "Hugging Face": (other, functools.partial(hugging_face_logits, other)),
    }
    return {name: training_step(setting, *pair) for name, pair in logits.items()}
