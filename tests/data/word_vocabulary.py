"""A vocabulary of whole words with an encoder vocabulary's interface, for tests of its users."""

import tensorflow as tf


class WordVocabulary:
    """Cuts at spaces; special ids 0 to 4, then the words in the order given."""

    pad_id, unk_id, cls_id, sep_id, mask_id = range(5)
    pair_separators = 1
    cls_last = False

    def __init__(self, words):
        self.words = list(words)
        self.pieces = 5 + len(self.words)
        self.size = -(-self.pieces // 8) * 8
        values = tf.range(5, self.pieces, dtype=tf.int32)
        self.table = tf.lookup.StaticHashTable(
            tf.lookup.KeyValueTensorInitializer(tf.constant(self.words), values), self.unk_id
        )

    def encode(self, strings: tf.Tensor) -> tf.RaggedTensor:
        """(B,) strings to (B, None) int32."""
        words = tf.strings.split(strings)
        return words.with_values(self.table.lookup(words.values))

    def trackables(self) -> list:
        """The lookup table."""
        return [self.table]
