"""The recurrence with a gradient derived by hand, so that no loop is differentiated.

With u[t] = c[t-1] - x[t], s = sigmoid(alpha u + beta) and q = u s (1 - s), a step's derivative by
the state before it is J = s + alpha q, and by x it is 1 - J. All of these are taken at once, before
the loop. What is left to it is a product and a sum a step: G[t] = dc[t] + J[t+1] G[t+1].
"""

from keras import ops

from macaron_tf.kernels.scan import one_step, scan
from macaron_tf.kernels.steps import from_steps, in_steps, keep_in_steps, start_in_steps


def recurrence(x, alpha, beta, step_size, mask, start):
    """See `swish_recurrence`; the vectors and `start (B, k, R)` are float32."""
    steps = in_steps(ops.cast(x, "float32"), step_size)  # (n, k, B, R)
    run = _with_gradient(keep_in_steps(mask, step_size))
    c = run(steps, alpha, beta, start_in_steps(start))
    return ops.cast(from_steps(c, ops.shape(x)[1]), x.dtype)


def _with_gradient(keep):
    @ops.custom_gradient
    def run(x, alpha, beta, start):
        def step(c, inputs):
            return one_step(c, *inputs, alpha, beta)

        c = scan(step, start, (x, keep))

        def gradient(*arguments, upstream=None):
            dc = arguments[0] if upstream is None else upstream
            before = ops.concatenate([start[None], c[:-1]], axis=0)
            jacobian, u, q = derivatives(before - x, keep, alpha, beta)
            return _gradients(_backward(dc, jacobian), jacobian, u, q)

        return c, gradient

    return run


def derivatives(u, keep, alpha, beta):
    """J, u and q of the module's text; a padded step hands its state on: J = 1, q = 0."""
    s = ops.sigmoid(alpha * u + beta)
    q = u * s * (1.0 - s)
    jacobian = s + alpha * q
    if keep is None:
        return jacobian, u, q
    jacobian = ops.where(keep > 0, jacobian, 1.0)
    return jacobian, *(ops.where(keep > 0, array, 0.0) for array in (u, q))


def _backward(dc, jacobian):
    """`G (n, k, B, R)`: the loss's whole derivative by every state."""
    # J of the step after; nothing comes after the last.
    after = ops.concatenate([jacobian[1:], ops.zeros_like(jacobian[:1])], axis=0)
    return scan(
        lambda g, inputs: inputs[0] + inputs[1] * g,
        ops.zeros_like(dc[0]),
        (dc, after),
        reverse=True,
    )


def _gradients(g, jacobian, u, q):
    """Of x, alpha, beta and the start."""
    passed, gq = g * jacobian, g * q
    return g - passed, ops.sum(gq * u, axis=(0, 1, 2)), ops.sum(gq, axis=(0, 1, 2)), passed[0]
