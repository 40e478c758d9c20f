"""The language models and sequence-to-sequence systems that are compared, block by block."""

from experiments.slides.frame import Corpus, System

# Of every pre-training: 5,000 updates on 2.6 million tokens, as of `encoder_systems`, pre-norm: a
# post-norm model of this size with learned positions may rest at guessing by frequency.
SETTINGS = ("batch_size=8", "training.max_steps=5_000", "model.norm=pre")
# The same number of words: 2,500 updates of 32 rows of 32.
ELMO_SETTINGS = ("training.max_steps=2_500",)

# Examples and a question have to fit into a row: 4 times as long ones, a quarter as many.
_LONG = ("corpus.sequence_length=256", "model.max_length=256")
_BLOCKS = ("transformer", "macaron", "swish_rnn")

CORPORA = {
    "text": Corpus("bert_tiny"),
    "pieces": Corpus("gpt_tiny"),
    "bytes": Corpus("gpt2_tiny", _LONG[:1]),
    "segments": Corpus("transformer_xl_tiny", (), "text"),
    "streams": Corpus("xlnet_tiny", (), "text"),
}

SYSTEMS = (
    System("GPT", "gpt_tiny", "pieces", blocks=_BLOCKS, compared=True),
    System("GPT-2", "gpt2_tiny", "bytes", (*_LONG, "batch_size=2"), blocks=_BLOCKS),
    System("Transformer-XL", "transformer_xl_tiny", "segments", blocks=_BLOCKS),
    # A recurrence would tell each token to itself.
    System("XLNet", "xlnet_tiny", "streams", blocks=_BLOCKS[:2]),
    System("T5", "t5_tiny", "text", blocks=_BLOCKS, compared=True),
    System("BART", "bart_tiny", "text", blocks=_BLOCKS),
)
ELMO = System("ELMo", "elmo_tiny", "")

# Positions that a Transformer-XL looks back on; 64 in training.
MEMORIES = (1, 64, 128, 256, 512)
# What GPT-2 is asked without training, and after how many examples.
FEW_SHOT = ("--task", "sst2", "rte", "--shots", "0", "1", "2", "4", "--max-examples", "400")
