"""Entities found by a tagger, scored by seqeval (Tjong Kim Sang and De Meulder 2003)."""

from collections.abc import Sequence

from macaron_tf.errors import UserError


def score_tags(
    predictions: Sequence[Sequence[str]], truths: Sequence[Sequence[str]]
) -> dict[str, float]:
    """Precision, recall and F1 of entities, each of its type and with both its ends right.

    Args:
        predictions, truths: the tags of each sentence, IOB2.

    Returns:
        As fractions: "f1", "precision" and "recall" over all entities, and of each type that
        occurs "TYPE_f1" and so on, an entity being only what IOB2 says, from its B- on;
        "conlleval_f1", the F1 of CoNLL's own script, which takes an I- that follows nothing for a
        beginning.

    Raises:
        UserError: seqeval is not installed.
        ValueError: the numbers of sentences, or of a sentence's words, differ.
    """
    try:
        from seqeval.metrics import classification_report, f1_score
        from seqeval.scheme import IOB2
    except ImportError as error:
        raise UserError("scoring entities needs a package: pip install seqeval") from error
    predictions, truths = [*map(list, predictions)], [*map(list, truths)]
    if [*map(len, predictions)] != [*map(len, truths)]:
        raise ValueError("the predictions are not of the same sentences")
    metrics = {"f1": 0.0, "precision": 0.0, "recall": 0.0, "conlleval_f1": 0.0}
    if all(tag == "O" for tags in (*predictions, *truths) for tag in tags):
        return metrics  # seqeval has no report on nothing
    report = classification_report(
        truths, predictions, output_dict=True, mode="strict", scheme=IOB2, zero_division=0
    )
    names = {"f1": "f1-score", "precision": "precision", "recall": "recall"}
    for kind, found in report.items():
        if kind == "micro avg" or not kind.endswith(" avg"):
            prefix = "" if kind == "micro avg" else f"{kind}_"
            metrics |= {prefix + name: float(found[theirs]) for name, theirs in names.items()}
    metrics["conlleval_f1"] = float(f1_score(truths, predictions, zero_division=0))
    return metrics
