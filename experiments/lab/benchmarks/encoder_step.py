"""The encoder's shapes and the batch that every contender of `train_step` gets."""

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class StepSetting:
    """A BERT with D, F and H, its batch of B rows of L tokens, and how its step is run.

    Attributes:
        dropout: everywhere: embeddings, attention weights, sub-layers' outputs.
        dtype_policy: mixed_bfloat16: matrix products in it, weights and optimizer in float32.
        jit, implementation: compiled with XLA, and of the kernels, where contenders do not say.
        replicas: of the contender that has several.
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
        """P, the positions asked for in a row: BERT's 15%."""
        return max(1, round(0.15 * self.length))

    @property
    def tokens(self) -> int:
        """Of a step: B L."""
        return self.batch * self.length

    @property
    def flops(self) -> float:
        """Of a step's matrix products, a multiply-add being two.

        Forward, of each token and layer 2 (4 D^2 + 2 D F) in the weights and 4 L D in attention's
        scores and sums; of each position asked for 2 (D^2 + D V). Backward twice as many.
        """
        width, wide = self.hidden_dim, self.feed_forward_dim
        layer = 8 * width**2 + 4 * width * wide + 4 * self.length * width
        head = 2 * (width**2 + width * self.vocab_size)
        return 3.0 * self.batch * (self.num_layers * self.length * layer + self.masked * head)


# small: BERT-mini's shapes; base: two of BERT-base's layers at its greatest length; bert_base: all
# of it, with a batch for a GPU.
SETTINGS = {
    "small": StepSetting(4, 256, 1024, 4, 32, 128),
    "base": StepSetting(2, 768, 3072, 12, 4, 512),
    "bert_base": StepSetting(12, 768, 3072, 12, 32, 512, vocab_size=30_522),
}

GEMM_SIZE = 2048  # of the square matrices whose product is a library's peak
GEMM_FLOPS = 2.0 * GEMM_SIZE**3


def square_matrix() -> np.ndarray:
    """A random matrix for the peak, float32."""
    return np.random.default_rng(0).normal(size=(GEMM_SIZE, GEMM_SIZE)).astype(np.float32)


# Of every contender's AdamW. They place epsilon differently, which takes no time.
ADAMW = {"learning_rate": 1e-4, "beta_1": 0.9, "beta_2": 0.98}
ADAMW |= {"weight_decay": 0.01, "epsilon": 1e-8}
# BERT's, of every LayerNorm, and the deviation that all matrices start with.
EPSILON, INITIALIZER_RANGE = 1e-12, 0.02


def random_batch(setting: StepSetting) -> dict[str, np.ndarray]:
    """Random tokens without padding, P of each row's asked for.

    Returns:
        int32 `token_ids (B, L)`; `masked_positions` within rows, ascending, and `masked_labels`,
        both `(B, P)`.
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
    """The masked positions in a batch laid out as `(B L,)`: int64 `(B P,)`."""
    rows, length = batch["token_ids"].shape
    return (batch["masked_positions"] + length * np.arange(rows)[:, None]).reshape(-1)
