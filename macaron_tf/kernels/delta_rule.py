"""The gated delta rule, a linear recurrence whose state is a matrix, computed chunk by chunk.

The state S `(d_k, d_v)` of a head is a memory that maps keys to values. At each position it decays,
and the value stored under the key moves towards the new value:

    S[t] = exp(g[t]) S[t-1] + beta[t] k[t] (v[t] - k[t]^T exp(g[t]) S[t-1])^T
    o[t] = S[t]^T q[t]

`delta_rule` computes C positions at once. Within a chunk, the corrections of the C values depend on
each other, which is a triangular system of equations. Between chunks, the state changes by a matrix
product: S[n+1] = M[n] S[n] + U[n].

References: Yang et al. 2024, "Gated Delta Networks", section 3.3; Yang et al. 2024, "Parallelizing
Linear Transformers with the Delta Rule over Sequence Length", section 3.
"""

from keras import ops

from macaron_tf.kernels.recurrence import loop


def delta_step(query, key, value, decay, beta, state):
    """Computes one position: `query` and `key (B, H, d_k)`, `value (B, H, d_v)`.

    Args:
        decay, beta: logarithm of the decay, and strength of the update, `(B, H)`.
        state: S before the position, `(B, H, d_k, d_v)` float32.

    Returns:
        Output `(B, H, d_v)`, and S after the position.
    """
    state = state * ops.exp(decay)[..., None, None]
    stored = ops.einsum("bhk,bhkv->bhv", key, state)
    state = state + key[..., None] * ((value - stored) * beta[..., None])[..., None, :]
    return ops.einsum("bhk,bhkv->bhv", query, state), state


def delta_rule(query, key, value, decay, beta, state, chunk: int = 64):
    """Computes T positions: `query` and `key (B, H, T, d_k)`, `value (B, H, T, d_v)`, in float32.

    Args:
        decay, beta: logarithm of the decay, and strength of the update, `(B, H, T)`.
        state: S before the first position, `(B, H, d_k, d_v)`.
        chunk: number of positions C in a chunk.

    Returns:
        Outputs `(B, H, T, d_v)`, and S after the last position.
    """
    length = ops.shape(query)[2]
    if isinstance(length, int):
        chunk = min(chunk, length)
    columns = [_chunks(x, length, chunk) for x in (query, key, value, decay[..., None])]
    query, key, value, decay = columns  # (n, B, H, C, d)
    beta = _chunks(beta[..., None], length, chunk)
    decay = ops.cumsum(decay[..., 0], axis=-1)  # (n, B, H, C), from the start of the chunk
    sees = ops.tril(ops.ones((chunk, chunk), "float32"))
    # (n, B, H, C, C), decay from position j to position i >= j.
    # Products, because TensorFlow broadcasts `where` slowly on a CPU. The inner one keeps the
    # exponential, and so its gradient, from overflow at j > i.
    between = ops.exp((decay[..., :, None] - decay[..., None, :]) * sees) * sees
    transposed_key = ops.swapaxes(key, -1, -2)
    # Unit lower triangular matrix: position i corrects what positions j < i store under its key.
    system = ops.tril(beta * ops.matmul(key, transposed_key) * between, -1)
    system = system + ops.eye(chunk, dtype="float32")
    from_start = ops.exp(decay)[..., None]
    # Values that a chunk stores, if the state is 0, and the keys by which it corrects the state.
    right = ops.concatenate([beta * value, beta * from_start * key], axis=-1)
    solved = ops.solve_triangular(system, right, lower=True)
    stored, corrected = solved[..., : value.shape[-1]], solved[..., value.shape[-1] :]
    to_end = ops.swapaxes(key * ops.exp(decay[..., -1:] - decay)[..., None], -1, -2)
    identity = ops.eye(key.shape[-1], dtype="float32")
    matrices = ops.exp(decay[..., -1])[..., None, None] * identity - ops.matmul(to_end, corrected)
    states = linear_states(matrices, ops.matmul(to_end, stored), state)  # (n + 1, B, H, d_k, d_v)
    stored = stored - ops.matmul(corrected, states[:-1])
    scores = ops.matmul(query, transposed_key) * between
    y = ops.matmul(from_start * query, states[:-1]) + ops.matmul(scores, stored)
    # (n, B, H, C, d_v) -> (B, H, n, C, d_v) -> (B, H, n C, d_v)
    y = ops.transpose(y, (1, 2, 0, 3, 4))
    batch, heads, *_, width = ops.shape(y)
    return ops.reshape(y, (batch, heads, -1, width))[:, :, :length], states[-1]


def _chunks(x, length, chunk: int):
    """Splits `x (B, H, T, d)` into chunks `(n, B, H, C, d)`; zeros fill the last chunk."""
    batch, heads, _, width = ops.shape(x)
    count = (length + chunk - 1) // chunk
    x = ops.pad(x, [[0, 0], [0, 0], [0, count * chunk - length], [0, 0]])
    # (B, H, n C, d) -> (B, H, n, C, d) -> (n, B, H, C, d)
    x = ops.reshape(x, (batch, heads, count, chunk, width))
    return ops.transpose(x, (2, 0, 1, 3, 4))


def linear_states(matrices, additions, start):
    """Computes the states of S[n+1] = M[n] S[n] + U[n], from S[0] = `start` to S[N].

    Args:
        matrices: M, `(N, ..., d, d)`.
        additions: U, `(N, ..., d, m)`.
        start: `(..., d, m)`.

    Returns:
        `(N + 1, ..., d, m)`, by a loop with a hand-derived gradient.
    """

    def step(state, inputs):
        return ops.matmul(inputs[0], state) + inputs[1]

    @ops.custom_gradient
    def forward(matrices, additions, start):
        states = loop(step, start, [matrices, additions])
        states = ops.concatenate([start[None], states], axis=0)

        def backward(*arguments, upstream=None):
            upstream = arguments[0] if upstream is None else upstream
            transposed = ops.swapaxes(matrices, -1, -2)
            # Gradient of each S[n], which S[n+1] passes on through M[n]^T.
            later = ops.concatenate([transposed[1:], ops.zeros_like(transposed[:1])], axis=0)
            last = ops.zeros_like(start)
            gradients = loop(step, last, [later, upstream[1:]], reverse=True)
            to_matrices = ops.matmul(gradients, ops.swapaxes(states[:-1], -1, -2))
            to_start = upstream[0] + ops.matmul(transposed[0], gradients[0])
            return to_matrices, gradients, to_start

        return states, backward

    return forward(matrices, additions, start)
