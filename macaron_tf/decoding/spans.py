"""Search for the best answer span of each question in extractive question answering.

A long context is split into overlapping windows, which the network reads separately.
"""

import tensorflow as tf

from macaron_tf.data.tasks.questions import WindowPositions

_FORBIDDEN = -1e9  # logit of a position where no answer can start or end
IMPOSSIBLE = -1e8  # a span with a lower score is not a possible answer


def best_spans(logits: tf.Tensor, max_answer: int) -> dict[str, tf.Tensor]:
    """Finds the best span in each of M windows.

    The score of a span is the sum of its start and end logits, `logits (M, 2, L)`, -1e9 where no
    answer is allowed. Position 0, [CLS], is "no answer". Of equal scores, the shortest and then the
    first span is chosen. A span has at most `max_answer` positions.

    Returns a dict of `(M,)` tensors: `"start"` and `"end"` int64, the first and the last position,
    and float32 `"score"`, which is below `IMPOSSIBLE` if no span is possible, `"null"`, the score
    of "no answer", and `"log_total"`, the log-sum-exp of the scores of all spans.
    """
    logits = tf.cast(logits, tf.float32)
    starts, ends = logits[:, 0], logits[:, 1]  # (M, L)
    null = tf.reduce_sum(logits[:, :, :1], axis=[1, 2])  # (M,)
    forbidden = tf.fill([tf.shape(starts)[0], 1], _FORBIDDEN)
    starts = tf.concat([forbidden, starts[:, 1:]], axis=1)
    padded_ends = tf.pad(ends, [[0, 0], [0, max_answer]], constant_values=_FORBIDDEN)
    length = tf.shape(starts)[1]
    # scores[:, d, i] is the score of the span from i to i + d; A = max_answer.
    parts = [starts + padded_ends[:, d : d + length] for d in range(max_answer)]
    scores = tf.stack(parts, axis=1)  # (M, A, L)
    flat = tf.reshape(scores, (-1, max_answer * length))  # (M, A L)
    best = tf.argmax(flat, axis=1)  # (M,)
    num_columns = tf.cast(length, tf.int64)
    return {
        "start": best % num_columns,
        "end": best % num_columns + best // num_columns,
        "score": tf.reduce_max(flat, axis=1),
        "null": null,
        "log_total": tf.reduce_logsumexp(flat, axis=1),
    }


def best_answers(spans: dict[str, tf.Tensor], positions: WindowPositions) -> dict[str, tf.Tensor]:
    """Finds the best answer to each of N questions over all windows of the question's context.

    `spans` are the `best_spans` of all windows, and `positions` maps token positions in windows to
    character positions in contexts.

    Returns a dict of `(N,)` tensors: `"start"` and `"end"` int64 for `context[start:end]`, both 0
    if no span is possible, and float32 `"score"`, `"null"`, the minimum over the windows as in
    BERT's released code, and `"log_total"` of all spans.
    """
    question = positions.question
    score = tf.math.segment_max(spans["score"], question)  # (N,)
    windows = tf.range(tf.size(question, tf.int64), dtype=tf.int64)
    is_best = spans["score"] >= tf.gather(score, question)
    best = tf.math.segment_min(tf.where(is_best, windows, tf.int64.max), question)  # (N,)
    # If the best score is NaN, no window equals the score. Keep the index in range.
    best = tf.minimum(best, tf.size(question, tf.int64) - 1)
    is_possible = score > IMPOSSIBLE
    shift = tf.gather(positions.first_piece - positions.boundary, best)  # (N,)

    def character(positions: tf.Tensor, pieces: tf.RaggedTensor) -> tf.Tensor:
        index = pieces.row_starts() + tf.gather(positions, best) + shift
        # Append a value, so that the index 0 is valid for an empty context.
        values = tf.concat([pieces.values, [0]], axis=0)
        offset = tf.gather(values, tf.where(is_possible, index, 0))
        return tf.cast(offset, tf.int64) * tf.cast(is_possible, tf.int64)

    max_log_total = tf.math.segment_max(spans["log_total"], question)  # (N,)
    shares = tf.exp(spans["log_total"] - tf.gather(max_log_total, question))
    return {
        "start": character(spans["start"], positions.starts),
        "end": character(spans["end"], positions.ends),
        "score": score,
        "null": tf.math.segment_min(spans["null"], question),
        "log_total": max_log_total + tf.math.log(tf.math.segment_sum(shares, question)),
    }


def decide_answered(answers: dict[str, tf.Tensor], threshold: float | None) -> dict[str, tf.Tensor]:
    """Decides whether each of N questions has an answer, from the result of `best_answers`.

    A question has an answer if `null - score` is at most `threshold` or, with `None`, if any span
    is possible. The result is `"answered"` `(N,)` bool and its `"probability"` `(N,)` float32, by a
    softmax over the spans of all windows and, with a threshold, "no answer".
    """
    score, null, total = answers["score"], answers["null"], answers["log_total"]
    is_possible = score > IMPOSSIBLE
    if threshold is None:
        probability = tf.where(is_possible, tf.exp(score - total), 0.0)
        return {"answered": is_possible, "probability": probability}
    answered = is_possible & (null - score <= threshold)
    maximum = tf.maximum(total, null)
    total = maximum + tf.math.log(tf.exp(total - maximum) + tf.exp(null - maximum))
    probability = tf.exp(tf.where(answered, score, null) - total)
    return {"answered": answered, "probability": probability}
