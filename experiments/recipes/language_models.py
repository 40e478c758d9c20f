"""Language models: GPT, GPT-2, Llama, Transformer-XL, XLNet.

The tiny ones have the shapes, tokens and schedule of `bert_tiny`; `--set model.block=macaron` or
`--set model.block=swish_rnn` gives them the papers' blocks with equal matrices. Measured: their
perplexities on validation text in `experiments/results/slides_decoders`, whose settings differ. The
others were not run at their size.
"""

from experiments.pretrain.run import PretrainingRecipe, VocabularyConfig
from experiments.recipes.bert import DEVLIN, bert_base, bert_tiny
from macaron_tf.objectives import MaskingConfig


def gpt_tiny() -> PretrainingRecipe:
    """GPT, tiny: predicts the next token of running text, for two cores.

        python -m experiments.generate complete runs/gpt "The story of"
        python -m experiments.finetune train sst2 runs/gpt-sst2 --init runs/gpt --preset gpt

    Radford et al. 2018: a causal post-norm Transformer with learned positions, whose embeddings of
    lower-cased BPE pieces also give the logits. Rows are filled up with the next document, like the
    paper's contiguous sequences. The model learns from every token, seven times as many as with 15%
    masked.

    Measured: 116.7 ± 0.4; Macaron 121.9 ± 0.9; SwishRNN 111.8 ± 1.2.
    """
    return bert_tiny().changed(
        model="gpt_tiny",
        objective="causal_language",
        corpus=dict(packing="full_text"),
        vocabulary=VocabularyConfig(kind="sentencepiece", size=4_000),
    )


def gpt_quick() -> PretrainingRecipe:
    """GPT of the quick start: trains in less than a minute on one core.

        python -m experiments.compare runs/compare --data-dir DIR

    It is `gpt_tiny` with a norm before each sub-layer and 2,000 pieces, 0.82 million weights, and
    reads 0.6 million tokens of 600 Wikipedia articles once. The settings are chosen such that
    differences between layers exceed the spread over seeds, and that the loss falls below that of
    predicting by frequency; the learning rate is that of `experiments/results/splitting`.

    Measured at this one rate (`experiments/results/compare`), three seeds: 4.708 ± 0.016 nats,
    Macaron 4.736 ± 0.008, its layer with full steps 4.651 ± 0.009; predicting by frequency 6.234.
    At the best of four rates Macaron has 4.658 ± 0.020, no significant difference from the
    Transformer (`experiments/results/compare/modern`). A training takes 48 s, and nine trainings
    with the corpus 4 min 45 s.
    """
    return gpt_tiny().changed(
        model_options=(*gpt_tiny().model_options, ("norm", "pre")),
        corpus=dict(sources=(("tfds:wikipedia/20230601.en", "train[:600]"),)),
        vocabulary=dict(size=2_000),
        batch_size=16,
        training=dict(
            max_steps=600,
            learning_rate=2e-3,
            warmup_steps=60,
            validate_every=100,
        ),
    )


def gpt_base() -> PretrainingRecipe:
    """GPT: predicts the next token of books.

    Radford et al. 2018, section 4.1: BERT's shapes; the learning rate rises linearly to 2.5e-4 over
    2,000 updates, then falls to 0 along a cosine; batches of 64 contiguous sequences of 512 tokens;
    BPE with 40,000 merges, lower-cased. Betas and epsilon are Adam's usual ones. The paper's 100
    epochs over about a billion tokens of BookCorpus are 3 million updates; PG-19 replaces
    BookCorpus.
    """
    return bert_base().changed(
        model="gpt_base",
        objective="causal_language",
        corpus=dict(sources=("tfds:pg19",), packing="full_text"),
        vocabulary=VocabularyConfig(kind="sentencepiece", size=40_480),
        masking=MaskingConfig(),
        training=dict(
            max_steps=3_000_000,
            learning_rate=2.5e-4,
            schedule="cosine",
            warmup_steps=2_000,
            warmup_start=0.0,
            beta_2=0.999,
            epsilon=1e-8,
            accumulation_steps=2,
        ),
    )


def gpt2_tiny() -> PretrainingRecipe:
    """GPT-2, tiny: a pre-norm GPT with byte-level BPE, for two cores.

        python -m experiments.generate complete runs/gpt2 "The story of"

    Radford et al. 2019, section 2: a LayerNorm before each sub-layer and one at the end, the last
    matrix of each sub-layer initialized smaller by 1/sqrt(number of sub-layers), and cased
    byte-level BPE, so that no text has an unknown piece. GPT-3 (Brown et al. 2020) is the same at
    larger sizes.

    Measured: 134.0; Macaron 141.9; SwishRNN 106.7.
    """
    return gpt_tiny().changed(
        model="gpt2_tiny",
        vocabulary=VocabularyConfig(kind="byte_bpe", size=4_000, lower_case=False),
    )


def llama_tiny() -> PretrainingRecipe:
    """Llama, tiny: a GPT with modern layers and byte-level BPE, for two cores.

        python -m experiments.generate complete runs/llama "The story of"

    Touvron et al. 2023: RMSNorm before each sub-layer, rotary positions, a gated feed-forward with
    SiLU, no biases, no dropout; two query heads share one key and value head. `--set
    model.block=macaron` gives it Macaron's blocks with the same parts.

    Not measured yet.
    """
    return gpt2_tiny().changed(model="llama_tiny")


def llama_quick() -> PretrainingRecipe:
    """Llama of the quick start: `gpt_quick` with the model of `llama_tiny`.

        python -m experiments.pretrain train llama_quick runs/llama --data-dir DIR

    Measured (`experiments/results/compare/modern`): 4.544 ± 0.035 nats at a rate of 4e-3; with
    `--set model.block=macaron` 4.392 ± 0.005; `gpt_quick` 4.708 at its own.
    """
    return gpt_quick().changed(model="llama_tiny", model_options=())


def gpt2_base() -> PretrainingRecipe:
    """GPT-2, its smallest size: 124 million parameters.

    Radford et al. 2019, section 2.3: 50,257 byte-level pieces, 1,024 positions, batches of 512
    sequences. The paper does not give the learning rate or the number of updates. These, the betas,
    the clipping and the weight decay are those of GPT-3's model of this size (Brown et al. 2020,
    table 2.1 and appendix B): 6e-4, Adam(0.9, 0.95), norm 1, decay 0.1, a warm-up of 375 million
    tokens, here 715 updates, and 300 billion tokens in all. GPT-3's cosine ends at a tenth of the
    peak, this one at 0. Dropout is 0.1 as in GPT. `tfds:c4` replaces WebText, which is not public.
    Other sizes: `--set model=gpt2_medium`, `gpt2_large`, `gpt2_xl`, or `gpt3_small` to `gpt3_175b`
    with `--set corpus.sequence_length=2048`.
    """
    return gpt_base().changed(
        model="gpt2_base",
        corpus=dict(sources=("tfds:c4/en",), sequence_length=1024),
        vocabulary=VocabularyConfig(
            kind="byte_bpe", size=50_257, lower_case=False, max_documents=1_000_000
        ),
        batch_size=16,
        training=dict(
            max_steps=572_000,
            learning_rate=6e-4,
            warmup_steps=715,
            beta_2=0.95,
            weight_decay=0.1,
            clip_norm=1.0,
            accumulation_steps=32,
        ),
    )


def transformer_xl_tiny() -> PretrainingRecipe:
    """Transformer-XL, tiny: predicts the next token of texts that continue from row to row.

        python -m experiments.pretrain evaluate runs/xl --corpus corpora/xl --memory 64 128 256 512

    Dai et al. 2019: 32 parallel texts, segments of 64 tokens (rows of 66 without their [CLS] and
    [SEP]), and a memory of 64 tokens, as long as a segment, as in the paper. Gradients are clipped
    at 0.25 as in its released code. Validation text is held out in runs of 32 consecutive rows,
    2,048 tokens, so that longer memories can be evaluated.

    Measured: 103.7; Macaron 109.0; SwishRNN 101.8.
    """
    return bert_tiny().changed(
        model="transformer_xl_tiny",
        model_options=(("activation_dropout", 0.0), ("dropout", 0.0)),
        objective="segment_language",
        memory_length=64,
        corpus=dict(
            sequence_length=66, packing="full_text", validation_every=50, validation_run=32
        ),
        training=dict(clip_norm=0.25),
    )


def transformer_xl_base() -> PretrainingRecipe:
    """Transformer-XL, the paper's standard model for WikiText-103: 16 layers, D 410, 10 heads.

        python -m experiments.pretrain evaluate runs/xl --corpus corpora/xl --memory 640 --clamp 400

    Dai et al. 2019, section 4.1, and the released script: 60 parallel texts, segments of 150 tokens
    and a memory of 150, adaptive softmax with cutoffs at 20,000, 40,000 and 200,000 of 267,735
    words, tied to the embeddings, with equal widths (divisor 1): 151,107,538 parameters. With
    segments of 64, a memory of 640 and distances clamped at 400, the paper's perplexity of words is
    24.0. For such segments, `prepare` another corpus with `--set corpus.sequence_length=66` and
    this corpus's `--vocabulary`.

    Differences: Wikipedia instead of WikiText-103; 32,000 pieces instead of words, hence
    perplexities of pieces, and a tied softmax that is not adaptive (the catalog's
    `transformer_xl_base` has the cutoffs); a linear decay instead of the script's cosine.
    """
    return transformer_xl_tiny().changed(
        model="transformer_xl_base",
        model_options=(("adaptive_cutoffs", ()),),
        memory_length=150,
        corpus=dict(sources=bert_base().corpus.sources, sequence_length=152, validation_every=200),
        vocabulary=VocabularyConfig(kind="sentencepiece", size=32_000, lower_case=False),
        batch_size=60,
        training=dict(
            max_steps=200_000,
            learning_rate=2.5e-4,
            warmup_steps=0,
            beta_2=0.999,
            epsilon=1e-8,
            weight_decay=0.0,
            validate_every=4_000,
        ),
    )


def xlnet_tiny() -> PretrainingRecipe:
    """XLNet, tiny: predicts tokens in random order, each from those before it in that order.

        python -m experiments.finetune train rte runs/rte --init runs/xlnet --data-dir DIR

    Yang et al. 2019: rows that continue from batch to batch with a memory of 48 tokens (384 for the
    paper's rows of 512), one token in 6 predicted, in spans of 1 to 5. Both streams share weights;
    the content stream is fine-tuned. All text is read forwards; `--set bidirectional=True` reads
    half of the rows backwards, as in the paper. The loss cannot be compared with a language
    model's, because tokens are predicted from both sides. Recurrent blocks (swish_rnn) are not
    possible, because they would reveal a token to its own prediction.

    Measured: a loss of 5.19; Macaron 5.18.
    """
    return bert_tiny().changed(
        model="xlnet_tiny",
        model_options=(("activation_dropout", 0.0), ("attention_dropout", 0.0), ("dropout", 0.0)),
        objective="permutation_language",
        memory_length=48,
        corpus=dict(packing="full_text", validation_every=50, validation_run=32),
    )


def xlnet_large() -> PretrainingRecipe:
    """XLNet large: 24 layers, D 1024, 16 heads, 361 million parameters.

    Yang et al. 2019, section 3.1 and appendix A.4: K = 6, and 8,192 rows per update, from as many
    texts, which continue in the next update. Their memories have 384 tokens, as in the released
    command: 8,192 x 384 x 1,024 numbers in each of 24 layers take 309 GB over all devices in
    float32, and half of that in bfloat16. The micro-batch of 4 rows fits one core of a TPU v4 (8
    take 18.6 GiB). For the 1,024 cores of the paper's 512 TPU v3 chips, give `--set
    batch_size=4096 --set training.accumulation_steps=2`.

    Differences: Wikipedia and PG-19 instead of the paper's five corpora; rows of running text with
    [CLS] first instead of pairs of segments with [CLS] last; whole rows are permuted, while the
    command permutes 256 tokens at a time.
    """
    return bert_base().changed(
        model="xlnet_large",
        objective="permutation_language",
        memory_length=384,
        bidirectional=True,
        corpus=dict(packing="full_text", validation_every=200, validation_run=32),
        vocabulary=VocabularyConfig(kind="unigram", size=32_000, lower_case=False),
        batch_size=4,
        training=DEVLIN
        | dict(max_steps=500_000, learning_rate=4e-4, warmup_steps=40_000, accumulation_steps=2048),
    )


def xlnet_base() -> PretrainingRecipe:
    """XLNet base: 12 layers, D 768, 12 heads, 117 million parameters.

    Yang et al. 2019, section 3.4 (the ablation on BERT's data): as `xlnet_large`, except for the
    shapes, K = 6 or 7 (`--set partial_prediction=7.0`) and the number of updates, which is BERT's,
    as section 3.1 says of the large model on these data. Published results for K = 7 and 6: SQuAD
    2.0 F1 81.3 and 81.0, MNLI 85.8 and 85.6, SST-2 92.7 and 93.4, RACE 66.1 and 66.7. A micro-batch
    has 16 rows, because two streams and the memory of 32 rows take 22 GiB of a TPU's core.
    """
    training = DEVLIN | dict(accumulation_steps=16)
    return xlnet_large().changed(model="xlnet_base", batch_size=16, training=training)
