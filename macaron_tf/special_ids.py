"""The special ids, and a segment, that vocabularies, batches, models and searches share."""

PAD = 0  # fills a row up; never attended, never counted
UNK = 1  # a character that the vocabulary does not have
BOS = 2  # the decoder's first input
EOS = 3  # the last token of every source and target
CLS_SEGMENT = 2  # of a [CLS] that ends a row: neither text's (Yang et al. 2019, section 2.5)
SPECIAL_PIECES = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")  # their names in an encoder
