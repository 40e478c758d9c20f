"""A text segment by segment: what a block's sub-layers carry from one to the next."""

from macaron_tf.layers.relative_attention import RelativeAttention
from macaron_tf.layers.residual import Residual


class SegmentSteps:
    """The part of a `Block` that goes on from what its sub-layers keep of earlier segments."""

    _sublayers: list[tuple[str, Residual]]

    def empty_past(self, batch_size, memory_length: int) -> list:
        """What is kept before a text: of each sub-layer that looks back, `(B, ...)`.

        Args:
            batch_size: B.
            memory_length: M, positions that attention keeps.

        Raises:
            ValueError: the token mixer keeps nothing.
        """
        return [
            residual.sublayer.empty_past(batch_size, memory_length)
            for operator, residual in self._sublayers
            if self._carries(operator, residual)
        ]

    def share_biases(self, other: RelativeAttention | None) -> RelativeAttention | None:
        """Takes the u and v of another block's attention, before `build`.

        Args:
            other: whose; None where this block is the first.

        Returns:
            Whose the next block takes.
        """
        for operator, residual in self._sublayers:
            if operator == "tokens" and isinstance(residual.sublayer, RelativeAttention):
                if other is not None:
                    residual.sublayer.share_biases(other)
                other = other or residual.sublayer
        return other

    def _carries(self, operator: str, residual: Residual) -> bool:
        """Whether a sub-layer keeps something of a segment; raises where it should and cannot."""
        carries = hasattr(residual.sublayer, "with_past")
        if operator == "tokens" and not carries:
            raise ValueError(
                f"a memory of earlier segments with a {type(self).__name__} is not supported: "
                f"{residual.name} keeps none; set positions='transformer_xl'"
            )
        return carries

    def with_past(
        self,
        x,
        past,
        past_mask=None,
        mask=None,
        attention_mask=None,
        segment_ids=None,
        training=None,
    ):
        """The next segment of a text through the block.

        Args:
            x: `(B, L, D)`.
            past: from `empty_past` or the last segment; past_mask: `(B, M)` boolean, which
                positions of it there are.
            mask: `(B, L)` boolean, False at padding. attention_mask, segment_ids: see
                `RelativeAttention.with_past`.

        Returns:
            `(B, L, D)` and the new past.

        Raises:
            ValueError: as `empty_past`.
        """
        past, new = iter(past), []
        for operator, residual in self._sublayers:
            if not self._carries(operator, residual):
                x = residual(x, training=training)
                continue
            arguments = {"mask": mask}
            if operator == "tokens":
                arguments |= {
                    "past_mask": past_mask,
                    "attention_mask": attention_mask,
                    "segment_ids": segment_ids,
                }
            x, held = residual.with_past(x, next(past), training=training, **arguments)
            new.append(held)
        return x, new
