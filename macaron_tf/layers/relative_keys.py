"""What queries of relative attention are compared with."""

from typing import Any, NamedTuple


class Keys(NamedTuple):
    """What queries are compared with: S = M + L positions, M of them of the past.

    Attributes:
        key, value: `(B, H, S, d)`.
        distance: `(H, C, d)`, what stands for each distance, the greatest, S, first.
        segment_ids: `(B, S)` int or None.
        mask: which of them may be attended, broadcasting to `(B, H, T, S)`, or None.
    """

    key: Any
    value: Any
    distance: Any
    segment_ids: Any
    mask: Any
