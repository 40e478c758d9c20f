"""Task types, which convert texts to a model's inputs, and the model's outputs to answers."""

from typing import Any

from macaron_tf.data.tasks.definitions import Task
from macaron_tf.errors import UserError
from macaron_tf.models import (
    CausalClassifier,
    Elmo,
    EncoderClassifier,
    EncoderConfig,
    EncoderDecoder,
    EncoderTokenClassifier,
    LanguageModel,
    PretrainingEncoder,
    SiameseEncoder,
)
from macaron_tf.models.base import Network
from macaron_tf.models.model_parts import ModelParts, TaskSettings
from macaron_tf.objectives import objective_class
from macaron_tf.tasks.base import Decoding, DecodingSettings, TaskKind
from macaron_tf.tasks.classification import Classification, MultiLabel, MultipleChoice
from macaron_tf.tasks.embedding import SentenceEmbedding, SentenceSettings, WordVectors
from macaron_tf.tasks.filling import Filling
from macaron_tf.tasks.generation import (
    Continuation,
    ContinuationSettings,
    TextToText,
    TextToTextSettings,
)
from macaron_tf.tasks.labelled import (
    LabelledSettings,
    LabelledTask,
    Limits,
    SpanLimits,
    of_classes,
)
from macaron_tf.tasks.question_answering import QuestionAnswering
from macaron_tf.tasks.token_classification import TokenClassification
from macaron_tf.tasks.translation import Translation, TranslationSettings

DECODING = {cls.name: cls for cls in (TextToText, Continuation, Translation)}
_TEXTS = (Classification, MultiLabel, MultipleChoice)
_LABELLED = {cls.kind: cls for cls in (*_TEXTS, QuestionAnswering, TokenClassification)}
_OF_SETTINGS: dict[type[TaskSettings], Any] = {
    SentenceSettings: SentenceEmbedding,
    ContinuationSettings: Continuation,
    TextToTextSettings: TextToText,
    TranslationSettings: Translation,
}
# Dict mapping `kind` to each class of settings.
SETTINGS = {LabelledSettings.kind: LabelledSettings} | {cls.kind: cls for cls in _OF_SETTINGS}
# Tasks of networks whose settings are the defaults.
_OF_NETWORKS: dict[type, Any] = {
    SiameseEncoder: SentenceEmbedding,
    Elmo: WordVectors,
    LanguageModel: Continuation,
    EncoderDecoder: Translation,
}
CLASSIFIERS = (EncoderClassifier, CausalClassifier, EncoderTokenClassifier)


def labelled(task: Task, *arguments) -> LabelledTask:
    """Creates a `LabelledTask` of the subclass that supports `task.kind`."""
    return _LABELLED[task.kind](task, *arguments)


def task_of(model: ModelParts) -> TaskKind:
    """Creates the task object by which a loaded model answers texts."""
    model.require_head()
    model.require_vocabulary()
    network, settings = model.network, model.settings
    if settings is None and isinstance(network, CLASSIFIERS):
        settings = of_classes(model)
    if isinstance(settings, LabelledSettings):
        metrics = model.card.results.get("metrics") or {}
        return labelled(settings.task, settings.limits, network, model.vocabulary, metrics)
    if settings is not None:
        return _OF_SETTINGS[type(settings)].of(model)
    learns = objective_class(model.card.objective)
    if learns.encoder_decoder or learns.causal:
        return Continuation.of(model)
    if learns.fills_masks and isinstance(network, PretrainingEncoder):
        return Filling.of(model)
    for network_class, task_class in _OF_NETWORKS.items():
        if isinstance(network, network_class):
            return task_class.of(model)
    config = model.config if isinstance(network, Network) else None
    if isinstance(config, EncoderConfig) and not config.causal and config.summary != "last":
        return SentenceEmbedding.of(model)  # encoder without a task head
    raise UserError(
        f"{model.card.title} is a {type(network).__name__} without a task: fine-tune it by "
        f"`macaron train finetune:TASK RUN --init {model.card.checkpoint or model.card.title}`"
    )
