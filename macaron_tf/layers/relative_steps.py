"""Cached decoding of relative attention, over a window of the last tokens."""

from keras import ops

from macaron_tf.layers.attention_masks import broadcast_mask
from macaron_tf.layers.distances import sinusoids
from macaron_tf.layers.relative_keys import Keys


class RelativeSteps:
    """The part of a `RelativeAttention` that goes on from the last tokens' keys and values."""

    def empty_cache(self, batch_size, beam_size: int, max_length: int | None):
        """Room for keys and values of the last M = `max_length` tokens, `(B, K, H, M, d)`.

        And which of them there are, `(B, K, M)`. With None it grows from nothing.

        Raises:
            ValueError: the layer compares segments, which decoding does not have.
        """
        if self.segments:
            raise ValueError("cached decoding with relative segments is not supported")
        size = max_length or 0
        shape = (batch_size, beam_size, self.num_heads, size, self._head_dim)
        seen = ops.zeros((batch_size, beam_size, size), "bool")
        return ops.zeros(shape, self.compute_dtype), ops.zeros(shape, self.compute_dtype), seen

    def step(self, x, index, cache, position_bias=None):
        """Attends one new token of each hypothesis, see `MultiHeadAttention.step`.

        Args:
            x: `(B K, D)` or `(B, K, D)`.
            index: anything but None lets the oldest token go; None lengthens the cache.
            cache: from `empty_cache` or the last step. position_bias: added to the scores.
        """
        beams = cache[0].shape[1]
        # (B K, H d) -> (B, K, H, 1, d); (B K, 2 H d) -> (B, K, 2, H, 1, d)
        heads = (self.num_heads, 1, self._head_dim)
        query = ops.reshape(self.query(x), (-1, beams, *heads))
        new = ops.reshape(self.key_value(x), (-1, beams, 2, *heads))
        key, value = (
            ops.concatenate([held, part], axis=3)
            for held, part in zip(cache[:2], ops.unstack(new, 2, axis=2), strict=True)
        )  # (B, K, H, M + 1, d)
        seen = ops.concatenate([cache[2], ops.ones_like(query[:, :, 0, :, 0], "bool")], axis=2)
        distances = ops.arange(ops.shape(key)[3] - 1, -1, -1, dtype="int32")
        width = self.distance.kernel.shape[0]
        # The projection goes to the one query instead of all M + 1 distances.
        # (D, H d) -> (D, H, d) -> (H, d, D)
        kernel = ops.cast(ops.convert_to_tensor(self.distance.kernel), query.dtype)
        kernel = ops.reshape(kernel, (width, self.num_heads, self._head_dim))
        back = ops.add(query, ops.cast(self.distance_bias, query.dtype))
        back = ops.matmul(back, ops.transpose(kernel, (1, 2, 0)))  # (B, K, H, 1, D)
        if self.scaled:
            back = ops.multiply(back, ops.cast(self._head_dim**-0.5, back.dtype))
        encoding = ops.cast(sinusoids(distances, width, self.clamp_length), back.dtype)
        by_distance = ops.matmul(back, ops.transpose(encoding))  # (B, K, H, 1, M + 1)
        scores = ops.add(
            self._product(query, self.content_bias, key), ops.cast(by_distance, "float32")
        )  # (B, K, H, 1, M + 1)
        if position_bias is not None:
            length = ops.shape(key)[3]
            scores = ops.add(scores, position_bias(query_length=1, key_length=length))
        y = self._weighted(scores, seen[:, :, None, None, :], value, training=False)
        flat = (-1, *x.shape[1:-1], self.num_heads * self._head_dim)
        first = 0 if index is None else 1
        cache = (key[:, :, :, first:], value[:, :, :, first:], seen[:, :, first:])
        return self.output_projection(ops.reshape(y, flat)), cache

    def read(self, x, index, cache, position_bias=None):
        """Attends the next L tokens of each text at once, see `MultiHeadAttention.read`.

        Args:
            x: `(B, L, D)`.
            index, position_bias: as of `step`. cache: as of `step`, of K = 1.
        """
        past_keys, past_values, past_seen = (part[:, 0] for part in cache)
        new_keys, new_values = self._split_heads(self.key_value(x), 2)  # (B, H, L, d)
        key = ops.concatenate([past_keys, new_keys], axis=2)  # (B, H, M + L, d)
        value = ops.concatenate([past_values, new_values], axis=2)
        seen = ops.concatenate([past_seen, ops.ones_like(x[..., 0], "bool")], axis=1)  # (B, M + L)
        held, length = ops.shape(past_seen)[1], ops.shape(x)[1]
        mask, bias = broadcast_mask(seen), None
        if index is not None:
            # Each sees the M before it, as if the oldest had gone: token i from place i on.
            first = ops.arange(length, dtype="int32")[:, None]  # (L, 1)
            within = ops.arange(held + length, dtype="int32") >= first  # (L, M + L)
            mask = ops.logical_and(mask, within)
        if position_bias is not None:
            bias = position_bias(query_length=length, key_length=held + length)
        keys = Keys(key, value, self.distance_keys(held, length), None, mask)
        y = self.attend(x, keys, attention_bias=bias, training=False)
        if index is None:
            return y, tuple(part[:, None] for part in (key, value, seen))
        kept = (key[:, :, length:], value[:, :, length:], seen[:, length:])
        # Said to be as long as before, which a loop must know: (B, H, M, d) -> (B, 1, H, M, d)
        pairs = zip(kept, cache, strict=True)
        return y, tuple(ops.reshape(part, ops.shape(old)) for part, old in pairs)
