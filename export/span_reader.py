"""A fine-tuned span reader as a SavedModel: question and context in, answer out."""

import tensorflow as tf

from experiments.finetuning.kinds import Limits
from export.texts import checked_text
from macaron_tf.data.encoder_vocabulary import PieceVocabulary
from macaron_tf.data.question_windows import encode_questions
from macaron_tf.data.tasks import Task
from macaron_tf.decoding.spans import best_answers, best_spans, decided


class SpanReaderModule(tf.Module):
    """What a SavedModel holds: the vocabulary, the network and the search, as one signature.

    Signature `serving_default`: `question (B,)` and `context (B,)` strings to `answer (B,)`
    strings, "" where there is none, `start (B,)` and `end (B,)` int64, its place in the context in
    characters, and `probability (B,)` float32. A context of any length is read through windows. A
    text that is not UTF-8 is an InvalidArgumentError: a server's client gets a 400.

    Args:
        network: the trained `EncoderSpanReader`.
        vocabulary: the one it was trained with.
        task: whether a question may have no answer.
        limits: what it was trained with.
        threshold: see `macaron_tf.decoding.spans.decided`.
    """

    def __init__(
        self,
        network,
        vocabulary: PieceVocabulary,
        task: Task,
        limits: Limits,
        threshold: float = 0.0,
    ):
        super().__init__(name="span_reader")
        self.network = network
        self.vocabulary = vocabulary
        self.limits = limits
        self.threshold = threshold if task.unanswerable else None
        # What a SavedModel restores: variables and the tokenizer's resource.
        self.tracked = [*(weight.value for weight in network.weights), *vocabulary.trackables()]

    def answer(self, question: tf.Tensor, context: tf.Tensor) -> dict[str, tf.Tensor]:
        """Texts `(B,)` to the outputs of `serving_default`."""
        question, context = checked_text(question), checked_text(context)
        spans = self.limits.spans
        inputs, places = encode_questions(
            self.vocabulary,
            question,
            context,
            max_length=self.limits.max_length,
            stride=spans.doc_stride,
            max_question=spans.max_question,
        )
        logits = self.network(inputs, training=False)  # (M, 2, L)
        found = best_answers(best_spans(logits, spans.max_answer), places)
        judged = decided(found, self.threshold)
        start, end = (
            tf.where(judged["answered"], found[name], tf.zeros_like(found[name]))
            for name in ("start", "end")
        )
        answer = tf.strings.substr(context, start, end - start, unit="UTF8_CHAR")
        return {
            "answer": answer,
            "start": start,
            "end": end,
            "probability": judged["probability"],
        }

    def signatures(self) -> dict[str, tf.types.experimental.ConcreteFunction]:
        """The concrete functions by signature name."""
        texts = [tf.TensorSpec((None,), tf.string, name) for name in ("question", "context")]
        function = tf.function(
            lambda question, context: self.answer(question, context), autograph=False
        )
        return {"serving_default": function.get_concrete_function(*texts)}
