"""Recipes for masked language models: BERT, and the encoders of the SwishRNN and Macaron papers.

Measured: the table has validation losses of the tiny models with seeds 1, 2 and 3, at commit
b8802b7. A training run took 16 to 19 minutes on one core, while other programs were running.
`experiments/results/encoders` compares the models at equal norms and at the best of three rates.
The recipes for the larger models were not run to the end.

    bert_tiny           5.32, 5.03, 5.56        swish_rnn_tiny      4.21, 4.19, 4.15
    bert_rab_tiny       4.98, 4.62, 4.53        macaron_bert_tiny   4.81, 4.78, 4.71
"""

from macaron_tf.objectives import MaskedLanguageObjective, MaskingConfig
from macaron_tf.runs.pretraining import PretrainingData, PretrainingRecipe, VocabularyConfig
from macaron_tf.training.config import TrainingConfig


def bert_tiny() -> PretrainingRecipe:
    """Returns a recipe for a tiny BERT, which pre-trains in 15 to 30 minutes on one core.

    The model reads 12 million tokens, each only once, so it needs no dropout. The objective and the
    optimizer are from the SwishRNN paper (see `bert_base`). The learning rate, the schedule and the
    initializer range (see the catalog) were chosen for this size. At first, the loss stays near
    6.5, which is the loss of predicting tokens by their frequency. In three runs, the validation
    loss fell below 6.4 after 2,000 to 3,000 updates. A shorter schedule or a higher learning rate
    can keep the loss at 6.5: with 4,000 updates and a peak learning rate of 2e-3, `bert_rab_tiny`
    stayed there with three of four seeds (`experiments/results/encoders`).

    The other tiny recipes of this module differ from `bert_tiny` only in the model. The models of
    the papers can therefore be compared on the same corpus, with equally large matrices and the
    same number of updates.
    """
    return PretrainingRecipe(
        model="bert_tiny",
        model_options=(("dropout", 0.0), ("attention_dropout", 0.0)),
        data=PretrainingData(
            ("tfds:wikipedia/20230601.en", "tfds:pg19"),
            sequence_length=64,
            vocabulary=VocabularyConfig(size=4_000),
            batch_size=32,
        ),
        objective=MaskedLanguageObjective(masking=MaskingConfig(mask=1.0, random=0.0)),
        training=TrainingConfig(
            max_steps=6_000,
            learning_rate=1e-3,
            schedule="linear",
            warmup_steps=500,
            beta_2=0.98,
            epsilon=1e-6,
            weight_decay=0.01,
            decay_vectors=False,
            validate_every=250,
            best_metric="loss",
        ),
    )


def bert_quick() -> PretrainingRecipe:
    """Returns a recipe for a small BERT, which trains in less than a minute on one core.

        macaron bench my_block.py:Mine

    `bert_tiny` in pre-norm, with the vocabulary and the text of `gpt_quick`.
    """
    return bert_tiny().changed(
        model_options=(*bert_tiny().model_options, ("norm", "pre")),
        data=dict(
            sources=(("tfds:wikipedia/20230601.en", "train[:600]"),),
            vocabulary=dict(size=2_000),
        ),
        training=dict(max_steps=600, learning_rate=2e-3, warmup_steps=60, validate_every=100),
    )


# Settings of Devlin et al. 2019, appendix A.2: a million updates, Adam(0.9, 0.999).
# With micro-batches of 32 rows, an update has 256 rows.
DEVLIN = dict(
    max_steps=1_000_000,
    learning_rate=1e-4,
    warmup_steps=10_000,
    beta_2=0.999,
    accumulation_steps=8,
)


def bert_base() -> PretrainingRecipe:
    """Returns a recipe for BERT-orig, the BERT base of the SwishRNN paper, without sentence pairs.

    Settings from Lei et al. 2022, table 3: 1,024 sequences of 512 tokens per update. 15% of the
    tokens are replaced by [MASK], and there is no next-sentence prediction. Positions are learned
    embeddings.

    The paper does not give Adam's epsilon. The recipe uses 1e-6, as BERT does.

    Differences: the text is Wikipedia and PG-19. PG-19 replaces BookCorpus, which TensorFlow
    Datasets does not include. The vocabulary has 30,522 WordPiece tokens, as in BERT, but is
    trained on this text.
    """
    return bert_tiny().changed(
        model="bert_base",
        model_options=(),
        data=dict(sequence_length=512, vocabulary=VocabularyConfig(size=30_522)),
        training=dict(
            max_steps=300_000,
            learning_rate=3e-4,
            warmup_steps=20_000,
            accumulation_steps=32,
            dtype_policy="mixed_bfloat16",
            validate_every=5_000,
        ),
    )


def bert_large() -> PretrainingRecipe:
    """Returns a recipe for the BERT large of the SwishRNN paper (BERT-orig).

    An update has 4,096 sequences (Lei et al. 2022, table 3). Except for the model, the batch size
    and the learning rate, all settings are the same as in `bert_base`.
    """
    return bert_base().changed(
        model="bert_large",
        data=dict(batch_size=8),
        training=dict(learning_rate=2e-4, accumulation_steps=512),
    )


def bert_devlin_128() -> PretrainingRecipe:
    """Returns a recipe for the first 900,000 updates of the original BERT base.

        macaron train bert_devlin_128 runs/bert128 --data-dir DIR
        macaron train bert_devlin_512 runs/bert --data-dir DIR --init runs/bert128

    These updates have rows of 128 tokens. The second command above runs the last 100,000 updates,
    which have rows of 512 tokens.

    Settings from Devlin et al. 2019, appendix A.2: a million updates of 256 rows. In the paper, 90%
    of the updates have short rows of 128 tokens to save time. The objectives are next-sentence
    prediction and masked tokens (80% [MASK], 10% a random token, 10% unchanged). Adam's learning
    rate is 1e-4 after 10,000 updates, and then falls linearly to 0 at a million updates.
    `schedule_end` is the learning rate at 900,000 updates. Adam's epsilon and the gradient clipping
    are from the released code. The text and the vocabulary are the same as in `bert_base`. For the
    large model, add `--set model=bert_large` to both commands.
    """
    return bert_base().changed(
        data=dict(sequence_length=128, pairs="next_sentence", batch_size=128),
        objective=MaskedLanguageObjective(),
        training=DEVLIN
        | dict(max_steps=900_000, schedule_end=1e-4 / 9.9, clip_norm=1.0, accumulation_steps=2),
    )


def bert_devlin_512() -> PretrainingRecipe:
    """Returns a recipe for the last 100,000 updates of the original BERT base.

    These updates have rows of 512 tokens. The recipe continues a training run of `bert_devlin_128`
    (see the commands there), but Adam's moments start from 0.
    """
    first = bert_devlin_128()
    return first.changed(
        data=dict(sequence_length=512, batch_size=32),
        training=dict(
            max_steps=100_000,
            learning_rate=first.training.schedule_end,
            schedule_end=0.0,
            warmup_steps=0,
            accumulation_steps=8,
        ),
    )


def bert_rab_tiny() -> PretrainingRecipe:
    """Returns a recipe for a tiny BERT-rab: `bert_tiny` with T5's relative attention bias."""
    return bert_tiny().changed(model="bert_rab_tiny")


def bert_rab_base() -> PretrainingRecipe:
    """Returns a recipe for the BERT-rab base of the SwishRNN paper.

    The model is `bert_base` with a separate T5 relative attention bias in each layer.
    """
    return bert_base().changed(model="bert_rab_base")


def bert_rab_large() -> PretrainingRecipe:
    """Returns a recipe for the BERT-rab large of the SwishRNN paper.

    The model is `bert_large` with a separate T5 relative attention bias in each layer.
    """
    return bert_large().changed(model="bert_rab_large")


def swish_rnn_tiny() -> PretrainingRecipe:
    """Returns a recipe for a tiny SwishRNN.

    The model is `bert_rab_tiny` with recurrences in place of feed-forward layers. The step sizes of
    its three layers are 1, 2 and 4.
    """
    return bert_tiny().changed(model="swish_rnn_tiny")


def swish_rnn_base() -> PretrainingRecipe:
    """Returns a recipe for the base model of the SwishRNN paper.

    The model is BERT-rab with recurrences in place of feed-forward layers (Lei et al. 2022). The
    layers cycle through the step sizes 1, 2 and 4. For step size 1 in all layers, as in the first
    row of table 2, use `--set model.rnn_step_sizes=1`. As the mean score over ten tasks, the paper
    reports 84.0 for this model, 81.0 for BERT-rab and 81.9 for BERT-orig (table 1).
    """
    return bert_base().changed(model="swish_rnn_base")


def swish_rnn_large() -> PretrainingRecipe:
    """Returns a recipe for the large model of the SwishRNN paper, with an inner width of 2,752.

    The step sizes of the recurrences cycle through 1, 2 and 4 from layer to layer. Lei et al. 2022
    (table 1) report a mean score over ten tasks of 88.4 for this model, 86.3 for BERT-rab and 87.8
    for BERT-orig.
    """
    return bert_large().changed(model="swish_rnn_large")


def macaron_bert_tiny() -> PretrainingRecipe:
    """Returns a recipe for a tiny Macaron-BERT: `bert_tiny` with pre-norm Macaron blocks.

    The two feed-forward layers of each block have a width of 192.
    """
    return bert_tiny().changed(model="macaron_bert_tiny")


def macaron_bert_base() -> PretrainingRecipe:
    """Returns a recipe for the Macaron-BERT base of the paper.

    Settings from Lu et al. 2019, appendix B.2: as in BERT, the model predicts 15% of the tokens. Of
    the predicted tokens, 80% are replaced by [MASK], 10% are replaced by a random token, and 10%
    are unchanged. Masking is dynamic. In half of the pairs, the second segment is from another
    document. The loss is the sum of the masked language model loss and the next-sentence loss. The
    two feed-forward layers of each block have a width of 1,536.

    Settings from the released script: pre-norm, 800,000 updates of 128K tokens, and a peak learning
    rate of 3e-4. In this recipe, an update has 256 rows of 512 tokens. The warm-up takes 10,000
    updates, as in BERT.

    Differences: PG-19 replaces BookCorpus. The paper splits sentences with spaCy and tokenizes with
    Moses. In this recipe, `data.sentence_splitter` splits sentences, and SentencePiece splits
    lower-cased text without a tokenizer.

    The paper reports a GLUE score of 79.7, and 77.4 for its BERT base (table 2).
    """
    return bert_base().changed(
        model="macaron_bert_base",
        data=dict(
            pairs="next_sentence",
            vocabulary=VocabularyConfig(kind="sentencepiece", size=32_000),
            batch_size=8,
        ),
        objective=MaskedLanguageObjective(),
        training=dict(max_steps=800_000, warmup_steps=10_000, beta_2=0.999, validate_every=10_000),
    )


def macaron_bert_released() -> PretrainingRecipe:
    """Returns a recipe for Macaron-BERT base with the network and training of the released code.

    In the repository zhuohan123/macaron-net, bert/fairseq/models/transformer.py uses sinusoidal
    positions. This file multiplies token embeddings by sqrt(D) and applies no LayerNorm to the
    result. Only the LayerNorm in the masked language model head has a scale and an offset. The
    first feed-forward layer of a block uses ReLU, and the second uses GELU. The script train.sh
    uses rows of at most 384 tokens, 20 micro-batches of 6,400 tokens per update, and a learning
    rate that falls from the first update on.

    Differences: a micro-batch has 16 rows of 384 tokens, or 6,144 tokens. The sinusoidal positions
    have the frequencies of the Transformer paper instead of the frequencies in tensor2tensor. All
    matrices are initialized with a standard deviation of D^-1/2. The released code initializes
    embeddings and feed-forward layers in this way, but has Xavier uniform initialization for
    attention. The text is the same as in `macaron_bert_base`, and the vocabulary has 32,768 subword
    pieces.
    """
    return macaron_bert_base().changed(
        model_options=(
            ("scheme", "channels/2 with relu, tokens, channels/2 with gelu"),
            ("positions", "sinusoidal"),
            ("embedding_scale", True),
            ("embedding_norm", False),
            ("affine", False),
            ("epsilon", 1e-5),
            ("initializer_range", 768**-0.5),
        ),
        data=dict(sequence_length=384, vocabulary=dict(size=32_768), batch_size=16),
        training=dict(warmup_steps=0, accumulation_steps=20),
    )
