"""Training steps of BERT in PyTorch: a plain PyTorch model with SDPA, and a Hugging Face model.

Both models have post-norm, exact GELU, tied embeddings, logits only at masked positions, and fused
AdamW. With mixed_bfloat16, autocast computes in bfloat16 and weights are in float32. The inputs
have no padding and no attention mask. PyTorch uses a GPU if there is one.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import nn

from experiments.lab.benchmarks.encoder_step import (
    ADAMW,
    EPSILON,
    INITIALIZER_RANGE,
    StepSetting,
    flat_positions,
    random_batch,
)
from experiments.lab.benchmarks.workers import Contender

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


class SdpaLayer(nn.Module):
    """Post-norm Transformer layer with `scaled_dot_product_attention` (SDPA).

    One linear layer projects the input to queries, keys and values.
    """

    def __init__(self, setting: StepSetting):
        super().__init__()
        width, inner_dim = setting.hidden_dim, setting.feed_forward_dim
        self.num_heads, self.dropout = setting.num_heads, setting.dropout
        self.query_key_value = nn.Linear(width, 3 * width)
        self.output = nn.Linear(width, width)
        self.attention_norm = nn.LayerNorm(width, EPSILON)
        self.inner = nn.Linear(width, inner_dim)
        self.outer = nn.Linear(inner_dim, width)
        self.feed_forward_norm = nn.LayerNorm(width, EPSILON)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Computes the layer's output, `(B, L, D) -> (B, L, D)`."""
        dropout = self.dropout if self.training else 0.0
        # (B, L, 3 D) -> (B, L, 3, H, d) -> (3, B, H, L, d)
        query, key, value = (
            self.query_key_value(x).unflatten(-1, (3, self.num_heads, -1)).permute(2, 0, 3, 1, 4)
        )
        y = F.scaled_dot_product_attention(query, key, value, dropout_p=dropout)
        y = self.output(y.transpose(1, 2).flatten(2))  # (B, H, L, d) -> (B, L, H d) -> (B, L, D)
        x = self.attention_norm(x + F.dropout(y, dropout, self.training))
        y = self.outer(F.gelu(self.inner(x)))
        return self.feed_forward_norm(x + F.dropout(y, dropout, self.training))


class SdpaEncoder(nn.Module):
    """BERT encoder with a masked language model head, in plain PyTorch."""

    def __init__(self, setting: StepSetting):
        super().__init__()
        width = setting.hidden_dim
        self.dropout = setting.dropout
        self.tokens = nn.Embedding(setting.vocab_size, width)
        self.positions = nn.Embedding(setting.length, width)
        self.segments = nn.Embedding(2, width)
        self.norm = nn.LayerNorm(width, EPSILON)
        self.layers = nn.ModuleList(SdpaLayer(setting) for _ in range(setting.num_layers))
        self.dense = nn.Linear(width, width)
        self.head_norm = nn.LayerNorm(width, EPSILON)
        self.bias = nn.Parameter(torch.zeros(setting.vocab_size))
        for weight in self.parameters():
            if weight.dim() > 1:
                nn.init.trunc_normal_(weight, std=INITIALIZER_RANGE)

    def forward(self, ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Computes logits `(N, V)` at N positions in the flattened batch `(B L,)`."""
        x = self.tokens(ids) + (self.positions.weight + self.segments.weight[0])  # (B, L, D)
        x = F.dropout(self.norm(x), self.dropout, self.training)
        for layer in self.layers:
            x = layer(x)
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
    ids = torch.from_numpy(batch["token_ids"]).long().to(DEVICE)
    positions = torch.from_numpy(flat_positions(batch)).to(DEVICE)
    labels = torch.from_numpy(batch["masked_labels"]).long().flatten().to(DEVICE)
    model.to(DEVICE)
    optimizer = torch.optim.AdamW(
        model.parameters(),
        lr=ADAMW["learning_rate"],
        betas=(ADAMW["beta_1"], ADAMW["beta_2"]),
        eps=ADAMW["epsilon"],
        weight_decay=ADAMW["weight_decay"],
        fused=True,
    )
    model.train()

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
    """Makes `Contender` objects that run a BERT training step in PyTorch.

    The models are the plain model, the compiled plain model, and Hugging Face's model.
    """
    setting = StepSetting(**options)
    torch.manual_seed(setting.seed)
    eager, compiled, hugging_face_model = (
        SdpaEncoder(setting),
        SdpaEncoder(setting),
        hugging_face(setting),
    )
    return {
        "PyTorch SDPA": training_step(setting, eager, eager),
        "PyTorch SDPA, torch.compile": training_step(setting, compiled, torch.compile(compiled)),
        "Hugging Face": training_step(
            setting,
            hugging_face_model,
            lambda *inputs: hugging_face_logits(hugging_face_model, *inputs),
        ),
    }
