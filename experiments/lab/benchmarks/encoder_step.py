"""Shapes of the encoder and the batch on which `train_step` times every contender."""

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class StepSetting:
    """A BERT with D, F and H, its batch of B rows of L tokens, and how its step is run.

    Attributes:
        dropout: rate for embeddings, attention weights and outputs of sub-layers.
        dtype_policy: `"mixed_bfloat16"` computes matrix products in bfloat16 and keeps weights and
            optimizer in float32.
        jit: whether XLA compiles the step, for contenders that do not choose it themselves.
        implementation: of the kernels, for contenders that do not choose it themselves.
        replicas: number of devices of the contender that has several.
    """

    num_layers: int
    hidden_dim: int
    feed_forward_dim: int
    num_heads: int
    batch: int
    length: int
    vocab_size: int = 8_000
    dropout: float = 0.1
    dtype_policy: str = "float32"
    jit: bool = False
    implementation: str = "auto"
    replicas: int = 2
    seed: int = 1

    @property
    def masked(self) -> int:
        """P, the number of masked positions in a row: 15%, as in BERT."""
        return max(1, round(0.15 * self.length))

    @property
    def tokens(self) -> int:
        """Number of tokens in a step, B L."""
        return self.batch * self.length

    @property
    def flops(self) -> float:
        """Floating point operations of a step's matrix products; a multiply-add counts as two.

        The forward pass has 2 (4 D^2 + 2 D F) for each token and layer in the weights, 4 L D in
        attention's scores and sums, and 2 (D^2 + D V) for each masked position. The backward pass
        has twice as many.
        """
        width, wide = self.hidden_dim, self.feed_forward_dim
        layer = 8 * width**2 + 4 * width * wide + 4 * self.length * width
        head = 2 * (width**2 + width * self.vocab_size)
        return 3.0 * self.batch * (self.num_layers * self.length * layer + self.masked * head)


# small: BERT-mini's shapes; base: two of BERT-base's layers at its greatest length; bert_base: the
# whole BERT-base, with a batch for a GPU.
SETTINGS = {
    "small": StepSetting(4, 256, 1024, 4, 32, 128),
    "base": StepSetting(2, 768, 3072, 12, 4, 512),
    "bert_base": StepSetting(12, 768, 3072, 12, 32, 512, vocab_size=30_522),
}

GEMM_SIZE = 2048  # width of the square matrices whose product measures a library's peak rate
GEMM_FLOPS = 2.0 * GEMM_SIZE**3


def square_matrix() -> np.ndarray:
    """A random float32 matrix whose product measures the peak rate."""
    return np.random.default_rng(0).normal(size=(GEMM_SIZE, GEMM_SIZE)).astype(np.float32)


# Settings of every contender's AdamW. Libraries place epsilon differently, which takes no time.
ADAMW = {"learning_rate": 1e-4, "beta_1": 0.9, "beta_2": 0.98}
ADAMW |= {"weight_decay": 0.01, "epsilon": 1e-8}
# BERT's epsilon of every LayerNorm, and the deviation of all initial matrices.
EPSILON, INITIALIZER_RANGE = 1e-12, 0.02


def random_batch(setting: StepSetting) -> dict[str, np.ndarray]:
    """Draws random tokens without padding, with P masked positions in each row.

    Returns:
        int32 `token_ids (B, L)`; `masked_positions (B, P)`, ascending within a row; and
        `masked_labels (B, P)`.
    """
    rng = np.random.default_rng(setting.seed)
    rows, length, count = setting.batch, setting.length, setting.masked
    positions = [rng.choice(length, count, replace=False) for _ in range(rows)]
    return {
        "token_ids": rng.integers(5, setting.vocab_size, (rows, length), dtype=np.int32),
        "masked_positions": np.sort(positions).astype(np.int32),
        "masked_labels": rng.integers(5, setting.vocab_size, (rows, count), dtype=np.int32),
    }


def flat_positions(batch: dict[str, np.ndarray]) -> np.ndarray:
    """The masked positions in a batch that is flattened to `(B L,)`: int64 `(B P,)`."""
    rows, length = batch["token_ids"].shape
    return (batch["masked_positions"] + length * np.arange(rows)[:, None]).reshape(-1)
