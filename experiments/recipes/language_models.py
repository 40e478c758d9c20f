"""Recipes for language models: GPT, GPT-2, Llama, Transformer-XL and XLNet.

The tiny models have the sizes, the number of training tokens and the schedule of `bert_tiny`.
`--set model.block=macaron` replaces the Transformer blocks with the blocks of the Macaron paper.
Except for Llama and XLNet, `--set model.block=swish_rnn` replaces them with the blocks of the
SwishRNN paper. The number of weights in the matrices stays the same.

Measured: the validation results of the tiny models (`experiments/results/slides_decoders`) are from
runs with other settings than these recipes: 5,000 updates of 512 tokens, and pre-norm. The recipes
for the larger models were not run to the end.
"""

from experiments.recipes.bert import DEVLIN, bert_base, bert_tiny
from macaron_tf.objectives import (
    CausalLanguageObjective,
    PermutationObjective,
    SegmentLanguageObjective,
)
from macaron_tf.runs.pretraining import PretrainingRecipe, VocabularyConfig


def gpt_tiny() -> PretrainingRecipe:
    """Returns a recipe for a tiny GPT, which trains on two CPU cores.

        macaron predict runs/gpt "The story of"
        macaron train finetune_gpt:sst2 runs/gpt-sst2 --init runs/gpt

    The model predicts the next token. It follows Radford et al. 2018: a causal post-norm
    Transformer with learned positions and lower-cased BPE tokens. The embedding matrix also
    computes the logits. Rows are packed with consecutive documents, as in the paper. The loss
    covers all tokens, while a masked language model predicts only 15% of the tokens.

    Measured with three seeds and the settings that the docstring of this module names: a validation
    perplexity of 116.7 ± 0.4. With Macaron blocks, the perplexity is 121.9 ± 0.9; with SwishRNN
    blocks, it is 111.8 ± 1.2.
    """
    return bert_tiny().changed(
        model="gpt_tiny",
        objective=CausalLanguageObjective(),
        data=dict(
            packing="full_text", vocabulary=VocabularyConfig(kind="sentencepiece", size=4_000)
        ),
    )


def gpt_quick() -> PretrainingRecipe:
    """Returns a recipe for a small GPT, which trains in less than a minute on one core.

        macaron compare runs/compare --data-dir DIR

    The model is `gpt_tiny` with pre-norm and a vocabulary of 2,000 subword pieces. The model has
    0.82 million parameters, and reads the 0.6 million tokens of 600 Wikipedia articles once. The
    settings were chosen for two reasons: differences between architectures exceed the standard
    deviation over seeds, and the loss falls below the unigram loss. The learning rate is the
    Transformer's best of three (`experiments/results/splitting`).

    Measured with three seeds at this learning rate (`experiments/results/compare`): a validation
    loss of 4.708 ± 0.016 nats. Macaron blocks reach 4.736 ± 0.008 nats, and Macaron blocks with
    full steps reach 4.651 ± 0.009. The unigram loss is 6.227 nats. At their best learning
    rates, 4e-3 and 2e-3, and with six seeds, Macaron blocks reach 4.663 ± 0.020 nats and the
    Transformer 4.709 ± 0.012: Macaron is better (`experiments/results/splitting`). With two runs at
    once on two cores, a training run took 46 to 48 seconds. The command above prepares the corpus
    and trains nine models. It took 4 min 45 s.
    """
    return gpt_tiny().changed(
        model_options=(*gpt_tiny().model_options, ("norm", "pre")),
        data=dict(
            sources=(("tfds:wikipedia/20230601.en", "train[:600]"),),
            vocabulary=dict(size=2_000),
            batch_size=16,
        ),
        training=dict(
            max_steps=600,
            learning_rate=2e-3,
            warmup_steps=60,
            validate_every=100,
        ),
    )


def gpt_probe() -> PretrainingRecipe:
    """Returns a recipe for a GPT of two layers, which learns a probe in a quarter of a minute.

        macaron compare runs/probes own=my_block.py:Mine --probes

    Width 64 and two layers are the smallest model of Arora et al. 2023. Three settings let
    attention learn recall within 600 updates: ALiBi's preference for near positions, which also
    reads rows that are longer than those of training; a separate output matrix; and matrices with
    an initial standard deviation of 0.1 instead of 0.02, which is meant for models of width 768.
    Without them, the Transformer stays at 13% in `recall`.

    With a feed-forward width of 288, a multiple of 96, SwishRNN can have as many parameters.
    """
    return gpt_quick().changed(
        model_options=(
            ("num_layers", 2),
            ("hidden_dim", 64),
            ("feed_forward_dim", 288),
            ("num_heads", 4),
            ("dropout", 0.0),  # every row is new
            ("attention_dropout", 0.0),
            ("norm", "pre"),
            ("positions", "alibi"),
            ("tied", False),
            ("initializer_range", 0.1),
            ("scaled_outputs", True),
        ),
        data=dict(batch_size=64),
        training=dict(learning_rate=3e-3, schedule="cosine", clip_norm=1.0, weight_decay=0.1),
    )


def gpt_base() -> PretrainingRecipe:
    """Returns a recipe for GPT, a language model trained on books.

    Settings from Radford et al. 2018, section 4.1: the sizes of BERT base, batches of 64 contiguous
    sequences of 512 tokens, and lower-cased BPE with 40,000 merges. The learning rate rises
    linearly to 2.5e-4 over 2,000 updates, then falls to 0 along a cosine. The paper's 100 epochs
    over about a billion tokens of BookCorpus are 3 million updates.

    Adam has its default betas and epsilon.

    Differences: PG-19 replaces BookCorpus.
    """
    return bert_base().changed(
        model="gpt_base",
        objective=CausalLanguageObjective(),
        data=dict(
            sources=("tfds:pg19",),
            packing="full_text",
            vocabulary=VocabularyConfig(kind="sentencepiece", size=40_480),
        ),
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
    """Returns a recipe for a tiny GPT-2, which trains on two CPU cores.

        macaron predict runs/gpt2 "The story of"

    The model follows Radford et al. 2019, section 2. A LayerNorm precedes each sub-layer, and
    another LayerNorm follows the last block. The initial weights of the last matrix in each
    sub-layer are divided by the square root of the number of sub-layers. The vocabulary is cased
    byte-level BPE, so no text has unknown tokens. GPT-3 (Brown et al. 2020) is a larger model of
    this type, in which layers alternate full and sliding-window attention.

    Measured with one seed, rows of 256 tokens and the settings that the docstring of this module
    names: a validation perplexity of 134.0. With Macaron blocks, the perplexity is 141.9; with
    SwishRNN blocks, it is 106.7.
    """
    return gpt_tiny().changed(
        model="gpt2_tiny",
        data=dict(vocabulary=VocabularyConfig(kind="byte_bpe", size=4_000, lower_case=False)),
    )


def llama_tiny() -> PretrainingRecipe:
    """Returns a recipe for a tiny Llama, which trains on two CPU cores.

        macaron predict runs/llama "The story of"

    The model follows Touvron et al. 2023: RMSNorm before each sub-layer, rotary position
    embeddings, a SiLU-gated feed-forward layer, no biases, and no dropout. Two query heads share
    each key and value head. The three feed-forward matrices have width 256, which is two thirds of
    the width in `gpt2_tiny`. The vocabulary is byte-level BPE. `--set model.block=macaron` builds
    Macaron blocks from the same layers.

    Measured: there are no results yet.
    """
    return gpt2_tiny().changed(model="llama_tiny")


def llama_quick() -> PretrainingRecipe:
    """Returns a recipe for a small Llama: `gpt_quick` with the model of `llama_tiny`.

        macaron train llama_quick runs/llama --data-dir DIR

    Measured over three seeds with `--set training.learning_rate=4e-3`
    (`experiments/results/compare`): a validation loss of 4.544 ± 0.035 nats, and 4.392 ±
    0.005 nats with `--set model.block=macaron`. `gpt_quick` reaches 4.708 ± 0.016 nats at its own
    learning rate of 2e-3.
    """
    return gpt_quick().changed(model="llama_tiny", model_options=())


def gpt2_base() -> PretrainingRecipe:
    """Returns a recipe for the smallest GPT-2, with 124 million parameters.

    Settings from Radford et al. 2019, section 2.3: 50,257 byte-level BPE tokens, 1,024 positions,
    and batches of 512 sequences. Dropout is 0.1, as in GPT.

    The paper does not give the remaining settings. They are taken from the GPT-3 model of this size
    (Brown et al. 2020, table 2.1 and appendix B): a learning rate of 6e-4, Adam(0.9, 0.95),
    gradient clipping at norm 1, a weight decay of 0.1, a warm-up over 375 million tokens (715
    updates), and 300 billion training tokens.

    Differences: the cosine schedule ends at 0 instead of a tenth of the peak. `tfds:c4` replaces
    WebText, which is not public. The vocabulary is trained on the first million documents.

    For other sizes, use `--set model=gpt2_medium`, `gpt2_large` or `gpt2_xl`. For GPT-3, use `--set
    data.sequence_length=2048` and a model from `gpt3_small` to `gpt3_175b`.
    """
    return gpt_base().changed(
        model="gpt2_base",
        data=dict(
            sources=("tfds:c4/en",),
            sequence_length=1024,
            vocabulary=VocabularyConfig(
                kind="byte_bpe", size=50_257, lower_case=False, max_documents=1_000_000
            ),
            batch_size=16,
        ),
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
    """Returns a recipe for a tiny Transformer-XL, whose attention has a memory of earlier text.

        macaron evaluate runs/xl --corpus corpora/xl --set objective.memory_length=256

    The recipe follows Dai et al. 2019: the model reads several texts in parallel, one segment at a
    time, and the memory is as long as a segment. Gradients are clipped at norm 0.25, as in the
    released code. This recipe has 32 texts and segments of 64 tokens. A row has 66 tokens, because
    it also contains [CLS] and [SEP]. The validation text consists of chunks of 32 consecutive rows
    (2,048 tokens), so that longer memories can be evaluated.

    Measured with one seed and the settings that the docstring of this module names: a validation
    perplexity of 103.7. With Macaron blocks, the perplexity is 109.0; with SwishRNN blocks, it is
    101.8.
    """
    return bert_tiny().changed(
        model="transformer_xl_tiny",
        model_options=(("activation_dropout", 0.0), ("dropout", 0.0)),
        objective=SegmentLanguageObjective(memory_length=64),
        data=dict(sequence_length=66, packing="full_text", validation_every=50, validation_run=32),
        training=dict(clip_norm=0.25),
    )


def transformer_xl_base() -> PretrainingRecipe:
    """Returns a recipe for the paper's Transformer-XL with 16 layers, width 410 and 10 heads.

        macaron evaluate runs/xl --corpus corpora/xl --set objective.memory_length=640 \\
            --set model.clamp_length=400

    Settings from Dai et al. 2019, section 4.1, and the released script for WikiText-103: 60
    parallel texts, segments of 150 tokens and a memory of 150 tokens. The paper's model has
    151,107,538 parameters. Its adaptive softmax has cutoffs at 20,000, 40,000 and 200,000 of the
    267,735 words, is tied to the embeddings, and has the same width for all clusters (divisor 1).
    The paper reports a word perplexity of 24.0 for segments of 64 tokens, a memory of 640 tokens,
    and distances clamped at 400. To evaluate with such segments, `prepare` another corpus with
    `--set data.sequence_length=66` and the `--vocabulary` of the training corpus.

    Differences: Wikipedia and PG-19 replace WikiText-103. The vocabulary has 32,000 subword pieces
    instead of words, so perplexities are per subword token. The softmax is tied but not adaptive;
    the model `transformer_xl_base` in the catalog has the adaptive cutoffs. The learning rate falls
    linearly instead of along a cosine.
    """
    return transformer_xl_tiny().changed(
        model="transformer_xl_base",
        model_options=(("adaptive_cutoffs", ()),),
        objective=dict(memory_length=150),
        data=dict(
            sequence_length=152,
            validation_every=200,
            vocabulary=VocabularyConfig(kind="sentencepiece", size=32_000, lower_case=False),
            batch_size=60,
        ),
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
    """Returns a recipe for a tiny XLNet, which predicts tokens of a row in random order.

        macaron train finetune:rte runs/rte --init runs/xlnet --data-dir DIR

    Settings from Yang et al. 2019: a token is predicted from the tokens that precede it in a random
    permutation. The model predicts one in 6 tokens, in spans of 1 to 5 tokens. Rows continue from
    batch to batch with a memory of 48 tokens. (The paper's rows of 512 tokens have a memory of
    384.) The content and query streams share weights, and fine-tuning uses the content stream. All
    text is read forwards; `--set objective.bidirectional=True` reads half of the rows backwards, as
    in the paper.

    The loss is not comparable to the loss of a causal language model, because predicted tokens have
    context on both sides. Recurrent blocks (`swish_rnn`) are not supported, because they would
    reveal a token to its own prediction.

    Measured with one seed and the settings that the docstring of this module names: a validation
    loss of 5.19 nats, and 5.18 nats with Macaron blocks.
    """
    return bert_tiny().changed(
        model="xlnet_tiny",
        model_options=(("activation_dropout", 0.0), ("attention_dropout", 0.0), ("dropout", 0.0)),
        objective=PermutationObjective(memory_length=48),
        data=dict(packing="full_text", validation_every=50, validation_run=32),
    )


def xlnet_large() -> PretrainingRecipe:
    """Returns a recipe for XLNet large: 24 layers, width 1024, 16 heads, 361 million parameters.

    Settings from Yang et al. 2019, section 3.1 and appendix A.4: the model predicts one in 6
    tokens. An update has 8,192 rows from 4,096 texts. Each text is read forwards in one row and
    backwards in another, and continues in the next update. The memory has 384 tokens, as in the
    released command.

    The memory stores 8,192 x 384 x 1,024 numbers in each of 24 layers. It takes 309 GB over all
    devices in float32, and half as much in bfloat16. A micro-batch of 4 rows fits one core of a TPU
    v4 (8 rows take 18.6 GiB). For the 1,024 cores of the paper's 512 TPU v3 chips, use `--set
    batch_size=4096 --set training.accumulation_steps=2`.

    Differences: Wikipedia and PG-19 replace the paper's five corpora. A row is [CLS] and running
    text, while a row in the paper is a pair of segments and [CLS]. The recipe permutes whole rows,
    while the released command permutes 256 tokens at a time.
    """
    return bert_base().changed(
        model="xlnet_large",
        objective=PermutationObjective(memory_length=384, bidirectional=True),
        data=dict(
            packing="full_text",
            validation_run=32,
            vocabulary=VocabularyConfig(kind="unigram", size=32_000, lower_case=False),
            batch_size=4,
        ),
        training=DEVLIN
        | dict(max_steps=500_000, learning_rate=4e-4, warmup_steps=40_000, accumulation_steps=2048),
    )


def xlnet_base() -> PretrainingRecipe:
    """Returns a recipe for XLNet base: 12 layers, width 768, 12 heads, 117 million parameters.

    The recipe follows the ablation on BERT's data in Yang et al. 2019, section 3.4. The model
    predicts one in 6 tokens. To predict one in 7, use `--set objective.partial=7.0`. The
    training settings are BERT's: a million updates of 256 rows, with a peak learning rate of 1e-4
    after 10,000 updates. The paper states that it uses BERT's settings only for XLNet large on
    BERT's data (section 3.1). Except for these settings and the sizes, all settings are the same as
    in `xlnet_large`. A micro-batch has 16 rows, because two streams and the memory of 32 rows take
    22 GiB on a TPU core.

    The paper reports these scores, first for one in 7 and then for one in 6 tokens: SQuAD 2.0 F1
    81.3 and 81.0, MNLI 85.8 and 85.6, SST-2 92.7 and 93.4, RACE 66.1 and 66.7.
    """
    training = DEVLIN | dict(accumulation_steps=16)
    return xlnet_large().changed(model="xlnet_base", data=dict(batch_size=16), training=training)
