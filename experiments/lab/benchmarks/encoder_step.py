"""Sizes and inputs of the encoder in the benchmark `train_step`."""

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class StepSetting:
    """Sizes and options of a BERT training step.

    Attributes:
        dtype_policy: Keras dtype policy. With `"mixed_bfloat16"`, matrix products are in bfloat16,
            and weights and optimizer state are in float32.
        jit: whether XLA compiles this library's step.
        implementation: implementation of this library's kernels.
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
    seed: int = 1

    @property
    def num_masked(self) -> int:
        """Number of predicted positions P in a row: 15% of L, rounded, but at least 1."""
        return max(1, round(0.15 * self.length))


# "small" has the sizes of BERT-mini. "base" has two layers of BERT-base at the maximum length of
# BERT. "bert_base" is the whole BERT-base, with a batch for a GPU.
SETTINGS = {
    "small": StepSetting(4, 256, 1024, 4, 32, 128),
    "base": StepSetting(2, 768, 3072, 12, 4, 512),
    "bert_base": StepSetting(12, 768, 3072, 12, 32, 512, vocab_size=30_522),
}

# AdamW settings of all contenders. The libraries add epsilon to different terms of the formula.
ADAMW = {"learning_rate": 1e-4, "beta_1": 0.9, "beta_2": 0.98}
ADAMW |= {"weight_decay": 0.01, "epsilon": 1e-8}
# LayerNorm epsilon of BERT, and standard deviation of the initial matrices.
EPSILON, INITIALIZER_RANGE = 1e-12, 0.02


def random_batch(setting: StepSetting) -> dict[str, np.ndarray]:
    """Draws a batch of random tokens without padding, with P positions to predict in each row.

    The tokens at these "masked" positions are random too, because the time does not depend on them.

    Returns:
        A dict of int32 arrays: `token_ids (B, L)`, `masked_positions (B, P)` in ascending order,
        and `masked_labels (B, P)`.
    """
    rng = np.random.default_rng(setting.seed)
    rows, length, count = setting.batch, setting.length, setting.num_masked
    positions = [rng.choice(length, count, replace=False) for _ in range(rows)]
    return {
        "token_ids": rng.integers(5, setting.vocab_size, (rows, length), dtype=np.int32),
        "masked_positions": np.sort(positions).astype(np.int32),
        "masked_labels": rng.integers(5, setting.vocab_size, (rows, count), dtype=np.int32),
    }
