"""The special ids that vocabularies, batches, models and searches share."""

PAD = 0  # fills a row up; never attended, never counted
UNK = 1  # a character that the vocabulary does not have
BOS = 2  # the decoder's first input
EOS = 3  # the last token of every source and target
