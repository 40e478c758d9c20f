"""Ids of special tokens, and the special tokens of encoder vocabularies."""

PAD = 0  # padding, which attention masks and token counts exclude
UNK = 1  # unknown token, for a character outside the vocabulary
BOS = 2  # beginning of sequence, the first input token of a decoder
EOS = 3  # end of sequence, the last token of every source and target
CLS_SEGMENT = 2  # segment id of [CLS] at the end of a row (Yang et al. 2019, section 2.5)
SPECIAL_PIECES = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")  # for encoder vocabularies
