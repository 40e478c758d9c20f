"""Cached decoding of a block: one new token at a time, or what is given many at once."""

from macaron_tf.layers.residual import Residual


class CachedSteps:
    """The part of a `Block` that goes on from what its sub-layers keep of the past."""

    attends: bool
    _sublayers: list[tuple[str, Residual]]

    def start(self, memory):
        """What cached decoding keeps of the memory `(B, S, D)`, once for each sentence."""
        return [
            residual.sublayer.start(memory)
            for operator, residual in self._sublayers
            if operator == "memory"
        ]

    def empty_cache(self, batch_size, beam_size: int, max_length: int | None):
        """Room for the past of K hypotheses, `(B, K, ...)` in every tensor.

        Raises:
            ValueError: the token mixer needs the whole sequence at once.
        """
        return [
            residual.sublayer.empty_cache(batch_size, beam_size, max_length)
            for operator, residual in self._sublayers
            if self._remembers(operator, residual)
        ]

    def _remembers(self, operator: str, residual: Residual) -> bool:
        """Whether cached decoding keeps a past for this sub-layer; raises where it cannot."""
        cached = hasattr(residual.sublayer, "empty_cache")
        if operator == "tokens" and not cached:
            raise ValueError(
                f"cached decoding with a {type(self).__name__} is not supported: "
                f"{residual.name} needs the whole sequence at once"
            )
        return cached and operator != "memory"

    def step(self, x, index, context, cache, memory_mask=None, position_bias=None):
        """One token of each hypothesis through the block.

        Args:
            x: `(B K, D)` or `(B, K, D)`, the new tokens.
            index: scalar int32 or None, see `MultiHeadAttention.step`.
            context: from `start`; `cache`: from `empty_cache` or the last step.
            memory_mask: `(B, S)` boolean.
            position_bias: see `MultiHeadAttention.step`.

        Returns:
            An output of the shape of x, and the new cache.

        Raises:
            ValueError: as `empty_cache`.
        """
        context, cache, new_cache = iter(context), iter(cache), []
        for operator, residual in self._sublayers:
            if operator == "memory":
                x, _ = residual.step(x, index, next(context), memory_mask)
            elif self._remembers(operator, residual):
                bias = self._biases(operator, position_bias)
                x, held = residual.step(x, index, next(cache), **bias)
                new_cache.append(held)
            else:
                x = residual(x, training=False)
        return x, new_cache

    @property
    def reads(self) -> bool:
        """Whether `read` can do it: every sub-layer with a cache can, and there is no memory."""
        if any(operator == "memory" for operator, _ in self._sublayers):
            return False
        kept = [one.sublayer for _, one in self._sublayers if hasattr(one.sublayer, "empty_cache")]
        return all(hasattr(sublayer, "read") for sublayer in kept)

    def read(self, x, index, cache, position_bias=None):
        """The next L tokens of each text through the block, as L steps bring them.

        Args:
            x: `(B, L, D)`.
            index: of the first of them, or None; position_bias: see `MultiHeadAttention.step`.
            cache: from `empty_cache` or the last step, of K = 1.

        Returns:
            `(B, L, D)`, and the new cache.

        Raises:
            ValueError: as `empty_cache`.
        """
        cache, new_cache = iter(cache), []
        for operator, residual in self._sublayers:
            if self._remembers(operator, residual):
                bias = self._biases(operator, position_bias)
                x, held = residual.read(x, index, next(cache), **bias)
                new_cache.append(held)
            else:
                x = residual(x, training=False)
        return x, new_cache

    def _biases(self, operator: str, position_bias) -> dict:
        """What only scores take."""
        return {"position_bias": position_bias} if operator == "tokens" and self.attends else {}
