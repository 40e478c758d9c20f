"""Ids that vocabularies, batches, models and decoding share."""

PAD = 0  # padding; never attended, never counted
UNK = 1  # a character that the vocabulary does not have
BOS = 2  # the decoder's first input
EOS = 3  # the last token of every source and target
CLS_SEGMENT = 2  # segment id of a [CLS] at the end of a row (Yang et al. 2019, section 2.5)
SPECIAL_PIECES = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")  # of an encoder's vocabulary
