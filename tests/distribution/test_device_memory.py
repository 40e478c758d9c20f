"""Networks that exceed any machine's memory can be built without allocating their weights."""

import pytest

from macaron_tf.distribution.device_memory import without_values
from macaron_tf.layers import MacaronBlock

pytestmark = pytest.mark.quick


def test_a_model_that_no_machine_holds_has_shapes_without_values():
    with without_values():
        block = MacaronBlock(num_heads=2, feed_forward_dim=2**31 - 2, dropout=0.1)
        block.build((None, None, 8))
    # Two feed-forward halves of (D + 1) F / 2 + (F / 2 + 1) D each, attention's 4 (D + 1) D, and
    # three norms.
    half = 2**30 - 1
    assert block.count_params() == 2 * (9 * half + 8 * (half + 1)) + 4 * 9 * 8 + 3 * 16
    assert all(not variable.value.is_initialized() for variable in block.trainable_variables)
