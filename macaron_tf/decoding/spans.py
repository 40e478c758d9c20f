"""Search for the best answer span of each question in extractive question answering.

A long context is split into overlapping windows, which the network reads separately.
"""

import tensorflow as tf

from macaron_tf.data.tasks.questions import WindowPositions

_FORBIDDEN = -1e9  # logit of a position where no answer can start or end
IMPOSSIBLE = -1e8  # a span with a lower score is not a possible answer


def best_spans(logits: tf.Tensor, max_answer: int) -> dict[str, tf.Tensor]:
    """Finds the best span in each of M windows.

    The score of a span is the sum of its start logit and its end logit. Position 0, [CLS],
    represents "no answer". If several spans have the best score, the function chooses the shortest
    span, and among equally short spans the first span. `logits (M, 2, L)` are start and end logits,
    -1e9 at positions where no answer is allowed. A span has at most `max_answer` positions.

    Returns:
        Dict of five `(M,)` tensors. `"start"` and `"end"` int64 are the first and the last position
        of the best span. `"score"` float32 is the score of the best span, which is below
        `IMPOSSIBLE` if no span is possible. `"null"` float32 is the score of "no answer".
        `"log_total"` float32 is the log-sum-exp of the scores of all spans.
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

    Returns:
        Dict of five `(N,)` tensors. `"start"` and `"end"` int64 are character positions. The answer
        is `context[start:end]`. Both positions are 0 if no span is possible. `"score"` float32 is
        the best score. `"null"` float32 is the minimum "no answer" score over the windows, as in
        BERT's released code. `"log_total"` float32 is the log-sum-exp of the scores of all spans.
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

    `threshold` is the maximum of `null - score` at which a question has an answer. `None` means
    that every question with a possible span has an answer. The result is `"answered"` `(N,)` bool
    and `"probability"` `(N,)` float32. The probability of the decision comes from a softmax over
    the spans of all windows. If `threshold` is set, the softmax includes "no answer".
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
