"""Which positions may be attended: boolean masks, True = attend."""

import functools

from keras import ops


def broadcast_mask(mask):
    """Brings a boolean mask, True = attend, to rank 4.

    Args:
        mask: key padding `(B, S)`, full `(B, T, S)` or per head `(B, H, T, S)`; None stays None.

    Returns:
        The mask as `(B, 1, 1, S)`, `(B, 1, T, S)` or `(B, H, T, S)`.
    """
    if mask is None:
        return None
    rank = len(mask.shape)
    if rank == 2:
        return mask[:, None, None, :]  # (B, 1, 1, S)
    if rank == 3:
        return mask[:, None, :, :]  # (B, 1, T, S)
    if rank == 4:
        return mask
    raise ValueError(f"an attention mask has rank 2, 3 or 4, got shape {mask.shape}")


def all_of(*masks):
    """Where all the given masks, of shapes that broadcast, are True; None where none is given."""
    given = [mask for mask in masks if mask is not None]
    return functools.reduce(ops.logical_and, given) if given else None


def combine_masks(*masks):
    """What all the given masks let be attended, at rank 4; None where none is given.

    Args:
        masks: each None or boolean of any rank that `broadcast_mask` takes.
    """
    return all_of(*(broadcast_mask(mask) for mask in masks))


def causal_attention_mask(length):
    """Lower-triangular mask `(1, 1, T, T)`: True where the key is not after the query."""
    positions = ops.arange(length, dtype="int32")
    return (positions[None, :] <= positions[:, None])[None, None]
