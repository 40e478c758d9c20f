"""XLNet's two streams through a block: contents, and queries that do not know their own."""

from macaron_tf.layers.feed_forward import FeedForward
from macaron_tf.layers.relative_attention import RelativeAttention
from macaron_tf.layers.residual import Residual


class TwoStreams:
    """The part of a `Block` that takes a second stream through the same weights.

    Mixers of channels must see one position alone: a recurrence would tell a query what its own
    token is.
    """

    _sublayers: list[tuple[str, Residual]]

    def two_streams(
        self,
        content,
        query,
        past,
        past_mask,
        mask,
        content_mask,
        query_mask,
        places,
        segment_ids=None,
        training=None,
    ):
        """The next segment of a text through the block.

        Args:
            content: h, `(B, L, D)`. query: g, `(B, P, D)`, of P positions that are to be guessed.
            past, past_mask, mask, segment_ids: as of `SegmentSteps.with_past`.
            content_mask, query_mask: `(B, L, L)` boolean, what each position sees of h.
            places: `(B, P, L)`, one-hot, where the queries stand.

        Returns:
            h, g and the new past.

        Raises:
            ValueError: a mixer that sees other positions in another way.

        References: Yang et al. 2019 (XLNet), section 2.3.
        """
        past, new = iter(past), []
        for operator, residual in self._sublayers:
            mixer = residual.sublayer
            if operator == "channels" and isinstance(mixer, FeedForward):
                content = residual(content, training=training)
                query = residual(query, training=training)
            elif operator == "tokens" and isinstance(mixer, RelativeAttention):
                content, query, held = _attended(
                    residual,
                    content,
                    query,
                    next(past),
                    {"past_mask": past_mask, "mask": mask},
                    (content_mask, query_mask),
                    places,
                    {"segment_ids": segment_ids, "training": training},
                )
                new.append(held)
            else:
                raise ValueError(
                    f"two streams with a {type(self).__name__} are not possible: {residual.name} "
                    "would tell a query its own token; take transformer or macaron blocks"
                )
        return content, query, new


def _attended(residual, content, query, past, masks, streams, places, options):
    """Both streams through attention to the contents, and what it keeps of them."""
    attention: RelativeAttention = residual.sublayer
    training, segment_ids = options["training"], options["segment_ids"]
    keys = new_past = None

    def of_content(y):
        nonlocal keys, new_past
        keys = attention.keys(y, past, **masks, segment_ids=segment_ids)
        new_past = attention.new_past(y, past)
        return attention.attend(y, keys, streams[0], **options)

    content = residual.around(content, of_content, training)
    query = residual.around(
        query, lambda y: attention.attend(y, keys, streams[1], places=places, **options), training
    )
    return content, query, new_past
