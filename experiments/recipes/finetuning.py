"""Recipes for fine-tuning a pre-trained model: `macaron train finetune:TASK RUN --init MODEL`.

All recipes but `sentence_bert` and `text_to_text` use Adam with epsilon 1e-6, weight decay 0.01,
10% warm-up and linear decay to 0, unless their docstring says otherwise. A validation per epoch
selects the best checkpoint on the development set. `macaron tasks` lists the tasks.
"""

from collections.abc import Mapping

from macaron_tf.data.tasks.definitions import get_task
from macaron_tf.runs.embedding import TRIPLETS, EmbeddingRecipe, EmbeddingTask, pair_task
from macaron_tf.runs.finetuning import (
    ExampleData,
    FinetuningRecipe,
    FinetuningTask,
    LabelledData,
)
from macaron_tf.runs.text_to_text import TextRecipe, recipe_of_task
from macaron_tf.training.config import fine_tuning

# Update counts in table 4 of Lei et al. 2022. Large sets that the table lacks have the update count
# of a set of similar size. All other sets have `_SWISH_RNN_MIN_STEPS` updates.
_SWISH_RNN_STEPS = {
    "boolq": 50_000,
    "cola": 50_000,
    "mnli": 200_000,
    "multirc": 50_000,
    "qnli": 100_000,
    "qqp": 150_000,
    "sst2": 80_000,
    "stsb": 30_000,
    **dict.fromkeys(("snli", "xnli"), 200_000),
    **dict.fromkeys(("race", "hellaswag", "squad", "squad2"), 100_000),
}
_SWISH_RNN_MIN_STEPS = 20_000  # update count of mrpc and rte in the table


def finetune(task: str) -> FinetuningRecipe:
    """Settings of Macaron's paper (Lu et al. 2019, appendix B.3) and of its released code.

        macaron train finetune:rte runs/rte --init runs/macaron_bert

    The paper searches over batch sizes of 16 and 32, 3 to 5 epochs, and peak learning rates of 5e-5
    and 3e-5. (The code has the rate 5e-5, but the text of the paper says 5e-3.) Adam's betas and
    the task head are as in BERT. Contexts of questions are longer than sentences, so their rows
    have BERT's length, 384.
    """
    return _recipe(task, 5e-5, dict(max_length=384))


def finetune_bert(task: str) -> FinetuningRecipe:
    """Settings of BERT (Devlin et al. 2018).

    Question answering takes 2 epochs at 3e-5, as in the released code. (The paper has 3 epochs at
    5e-5.) The batch size is 32, or 48 for SQuAD 2.0 (section 4.3). Rows have 384 tokens, and
    windows start every 128 tokens. Other tasks take 3 epochs at 5e-5 in batches of 32, which are
    values from the grid in appendix A.3. All other settings are as in `finetune`.
    """
    definition = get_task(task, own=True)
    if definition.kind != "spans":
        return _recipe(task, 5e-5)
    batch_size = 48 if definition.unanswerable else 32
    return _recipe(task, 3e-5, dict(batch_size=batch_size, max_length=384), epochs=2.0)


def finetune_gpt(task: str) -> FinetuningRecipe:
    """Settings of GPT (Radford et al. 2018, section 4.1).

    Fine-tuning takes 3 epochs at 6.25e-5 in batches of 32, with warm-up over 0.2% of the updates
    and linear decay to 0. The auxiliary language-modeling loss is weighted by 0.5, and the dropout
    rate before the classifier is 0.1. Adam has the settings of `finetune`.
    """
    return _recipe(task, 6.25e-5, warmup_fraction=0.002)


def finetune_elmo(task: str) -> FinetuningRecipe:
    """An LSTM on top of a frozen ELMo, trained for 5 epochs by Adam from 1e-3 to 0.

    Question answering reads windows of 400 words. Peters et al. 2018 describe the networks of their
    tasks, but give few training settings.
    """
    training = dict(epochs=5.0, warmup_fraction=0.0, clip_norm=5.0, weight_decay=0.0)
    recipe = _recipe(task, 1e-3, dict(max_length=400), **training)
    return recipe.changed(task=dict(words=dict(elmo_norm=True)))


def finetune_spanbert(task: str) -> FinetuningRecipe:
    """Settings of SpanBERT (Joshi et al. 2020) and of the commands in its released code.

    Question answering takes 4 epochs at 2e-5 in batches of 32. Rows have 512 tokens, and windows
    start every 128 tokens. Other tasks have the settings of `finetune_bert` at 2e-5.
    """
    epochs = 4.0 if get_task(task, own=True).kind == "spans" else 3.0
    return _recipe(task, 2e-5, dict(max_length=512), epochs=epochs)


def finetune_swish_rnn(task: str) -> FinetuningRecipe:
    """Settings of SwishRNN (Lei et al. 2022, appendix B).

    Batches have 32 examples, and Adam has no weight decay. After 1,000 warm-up updates, the
    learning rate is constant. The recipe has the first of the paper's rates, which are 1e-5, 5e-6,
    3e-6 and 2e-6. A validation follows every 1,000 updates, and table 4 gives the maximum number of
    updates. The paper reports the mean of 3 runs. Adam's betas are as in the pre-training of this
    paper.
    """
    training = dict(
        epochs=None,
        warmup_fraction=None,
        validate_epochs=None,
        max_steps=_SWISH_RNN_STEPS.get(task, _SWISH_RNN_MIN_STEPS),
        schedule="constant",
        warmup_steps=1_000,
        beta_2=0.98,
        weight_decay=0.0,
        validate_every=1_000,
    )
    return _recipe(task, 1e-5, **training).changed(data=dict(max_length=512))


def _recipe(
    task: str, learning_rate: float, spans: Mapping[str, int] = {}, **training
) -> FinetuningRecipe:
    """Makes a recipe with the settings that the recipes of fine-tuning share.

    Args:
        task: name of the task.
        learning_rate: peak learning rate.
        spans: settings of `LabelledData` that apply only to question answering.
        training: settings of `EpochTraining`.
    """
    definition = get_task(task, own=True)
    data = LabelledData(definition.source, **spans if definition.kind == "spans" else {})
    return FinetuningRecipe(
        model="bert_base",
        task=FinetuningTask(definition.name),
        data=data,
        training=fine_tuning(learning_rate, best_metric="score", **training),
    )


def sentence_bert(task: str) -> EmbeddingRecipe:
    """Sentence-BERT (Reimers and Gurevych 2019, sections 3.1 and 4.4).

        macaron train sentence_bert:stsb runs/sts --init runs/bert

    The paper uses Adam with a learning rate of 2e-5, a batch size of 16, a linear warm-up over 10%
    of the updates, mean pooling, and one epoch for classes or triplets. Three settings are not from
    the paper: STS-B takes four epochs, the learning rate decays linearly to 0 after the warm-up,
    and weight decay and epsilon are as in BERT's fine-tuning. The pooling, the normalization and
    the maximum length of a sentence encoder in --init take precedence.
    """
    definition = pair_task(task)
    best_metric = "spearman" if definition.regression else "score"
    return EmbeddingRecipe(
        model="bert_base",
        task=EmbeddingTask(task),
        data=ExampleData(definition.source, batch_size=16),
        training=fine_tuning(
            2e-5,
            epochs=4.0 if definition.regression else 1.0,
            best_metric="accuracy" if definition is TRIPLETS else best_metric,
        ),
    )


def text_to_text(task: str) -> TextRecipe:
    """A T5 or BART that answers one or more tasks in words, as in `text_to_text:sst2+cola`.

        macaron train text_to_text:sst2 runs/t5-sst2 --init runs/t5

    A model that was trained by Adafactor, such as T5, is fine-tuned by Adafactor with a constant
    learning rate of 0.001 (Raffel et al. 2020, section 3.1.2). Any other model, such as BART, is
    fine-tuned by Adam with a learning rate of 3e-5 after warm-up (the released BART recipe). The
    contexts of SQuAD need 512 tokens, the length in the T5 paper. `cnn_dailymail` and `xsum` have
    the published lengths and searches of the model; they were not run here.
    """
    max_source = 512 if "squad" in task.split("+") else 128
    return recipe_of_task(task, "t5_base", max_source)
