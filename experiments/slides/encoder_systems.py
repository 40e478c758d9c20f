"""The encoders that are compared: every system of the slides, at one size and as many tokens."""

from experiments.slides.frame import Corpus, System

# Of every pre-training: 5,000 updates on 2.6 million tokens. Post-norm without T5's bias a model
# of this size still guesses by frequency after so many (BERT: a loss of 6.1; with both 5.4).
SETTINGS = (
    "batch_size=8",
    "training.max_steps=5_000",
    "model.norm=pre",
    "model.relative_bias=shared",
)

# Of every fine-tuning: models of this size need a higher learning rate than their papers'.
FINETUNING = (
    *("--learning-rates", "1e-3", "--seeds", "1", "--set", "max_length=64"),
    *("--set", "training.max_steps=400", "--set", "training.validate_every=200"),
)

# A 40th of the tokens that are read, so that ten masks a row are seen four times each, as in
# BERT's released data (Liu et al. 2019, section 4.1).
_FEW = 'corpus.sources=(("tfds:wikipedia/20230601.en", "train[:3%]"),)'

CORPORA = {
    "text": Corpus("bert_tiny"),
    "next_sentence": Corpus("bert_tiny", ("corpus.pairs=next_sentence",), "text"),
    "sentence_order": Corpus("albert_tiny", (), "text"),
    "bytes": Corpus("roberta_tiny"),
    "few_bytes": Corpus("roberta_tiny", (_FEW,), "bytes", judged_on="bytes"),
    "languages": Corpus("xlm_tiny"),
}
_BERT = ("masking.mask=0.8", "masking.random=0.1")
_NONE = ("corpus.pairs=none",)
_NEXT = ("corpus.pairs=next_sentence",)

SYSTEMS = (
    System("BERT", "bert_tiny", "text", _BERT, compared=True, sentences=True),
    System("ELECTRA", "electra_tiny", "text", compared=True),
    System("ALBERT", "albert_tiny", "sentence_order", compared=True),
    System("ALBERT, next sentences", "albert_tiny", "next_sentence", _NEXT, compared=True),
    System("ALBERT, neither", "albert_tiny", "text", _NONE, compared=True),
    System("RoBERTa", "roberta_tiny", "bytes"),
    System("RoBERTa, few, dynamic", "roberta_tiny", "few_bytes", (_FEW,), compared=True),
    System(
        "RoBERTa, few, static",
        "roberta_tiny",
        "few_bytes",
        (_FEW, "masking.duplicates=10"),
        compared=True,
    ),
    System("SpanBERT", "span_bert_tiny", "text"),
    System("XLM", "xlm_tiny", "languages"),
    System("gMLP", "gmlp_tiny", "text"),
    System("aMLP", "amlp_tiny", "text"),
)
