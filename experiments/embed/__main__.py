"""Trains and uses sentence encoders (Sentence-BERT), whose vectors are compared by the cosine.

    python -m experiments.embed train stsb runs/sts --init runs/bert --data-dir DIR
    python -m experiments.embed evaluate runs/sts --data-dir DIR
    python -m experiments.embed evaluate hugging-face:DIR --task stsb --data-dir DIR
    python -m experiments.embed sts runs/sts senteval:DIR
    python -m experiments.embed encode runs/sts --input lines.txt --output vectors.npy
    python -m experiments.embed search runs/sts --corpus lines.txt --query "a man sleeps"

To resume an interrupted `train`, give the same command again. Without --query, `search` answers
stdin line by line.
"""

from experiments import command_line as cli

_FORMS = """tasks and their objectives:
  stsb                        --objective cosine: the cosine approaches the score, scaled to [0, 1]
  mnli snli xnli mrpc qqp qnli rte wnli boolq
                              --objective softmax: predicts the pair's class from u, v and |u-v|
                              (or other terms: --set "concatenation=u,v,u*v")
  triplets                    --objective triplet: --source tsv:FILE with the columns anchor,
                              positive and negative; {split} in the name becomes train, validation

SET of `sts`, pairs with scores from 0 to 5:
  senteval:DIR                the sets STS12 to STS16, STSb and SICK-R that SentEval's folder
                              data/downstream has; the subsets of a year are joined to one set
  NAME=tsv:FILE               a table with the columns sentence1, sentence2 and label
  NAME=tfds:glue/stsb         the development set

ENCODER and FROM:
  RUN[@CHECKPOINT]   a run of `train`; or of pre-training or fine-tuning, with mean pooling
  hugging-face:DIR   a sentence-transformers directory, or config.json, weights and tokenizer of a
                     BERT, RoBERTa, XLM, XLM-R, ALBERT or ELECTRA
  keras-hub:DIR      a preset's folder: BERT, DistilBERT, ELECTRA, RoBERTa
  model-garden:DIR   bert_config.json, vocab.txt and checkpoint of a BERT
  hub:OWNER/NAME     any of these on Hugging Face's hub
  none               random weights (FROM only); needs --model NAME and --vocabulary DIR
"""

_TASK = cli.argument("task", "task to learn: stsb, mnli, ..., or triplets, see below")
_OBJECTIVE = cli.argument(
    "--objective",
    "training objective (default: the one that fits the task)",
    choices=("softmax", "cosine", "triplet"),
)
_POOLING = cli.argument(
    "--pooling",
    "how to make a sentence's vector from those of its tokens (default: the encoder's, or mean)",
    choices=("mean", "max", "cls"),
)
_OUTPUT = cli.place("--output DIR", "folder for the metrics (default: RUN/scores)")
_ENCODER = cli.together(
    cli.place("encoder ENCODER", "the sentence encoder, see below"),
    _POOLING,
    cli.count("--max-length N", "most tokens of a sentence (default: the encoder's)"),
    cli.LOWER_CASE,
)

main = cli.program(
    "experiments.embed",
    __doc__,
    cli.command(
        "train",
        "train a sentence encoder, or resume an interrupted run",
        "experiments.embed.train:run",
        cli.unless_resumed(
            _TASK,
            cli.RUN_TO_TRAIN,
            cli.place("--init FROM", "the model to start from, see below", required=True),
        ),
        _OBJECTIVE,
        _POOLING,
        cli.INIT_NONE,
        cli.EXAMPLES,
        cli.settings("epochs=2, training.seed=2, batch_size=32 or model.dropout=0"),
        cli.CALLBACKS,
        cli.DEVICES,
    ),
    cli.command(
        "evaluate",
        "correlate cosines with human scores, or measure the accuracy of classes or triplets",
        "experiments.embed.evaluate:run",
        _ENCODER,
        cli.argument("--task", "task to score on (default: the run's, or stsb)"),
        cli.argument("--split", "split to score (default: the development set, or all of a file)"),
        _OUTPUT,
        cli.EXAMPLES,
        cli.DEVICES,
    ),
    cli.command(
        "sts",
        "print Spearman's correlation on several sets of scored pairs, and the mean",
        "experiments.embed.evaluate:run_sets",
        _ENCODER,
        cli.place("sets SET", "sets of pairs: senteval:DIR or NAME=SOURCE, see below", nargs="+"),
        _OUTPUT,
        cli.TFDS,
        cli.DEVICES,
    ),
    cli.command(
        "encode",
        "write the vector of each line to an array or to JSON",
        "experiments.embed.evaluate:encode",
        _ENCODER,
        cli.place("--input FILE", "file with one sentence per line (default: stdin)"),
        cli.place(
            "--output FILE",
            ".npy file for the array (lines, D) float32; with --json stdout by default",
        ),
        cli.switch("--unit", "scale each vector to length 1, as --json does"),
        cli.JSON,
        cli.DEVICES,
    ),
    cli.command(
        "search",
        "find the lines of a file that are nearest to a query, by exact cosine search",
        "experiments.embed.evaluate:search",
        _ENCODER,
        cli.local_place(
            "--corpus FILE",
            "file with one sentence per line; its vectors are saved in FILE.HASH.npy",
            required=True,
        ),
        cli.argument(
            "--query TEXT",
            "query; may be repeated (default: each line of stdin is a query)",
            action="append",
        ),
        cli.count("--top N", "number of lines for each query (default %(default)s)", 10),
        cli.DEVICES,
    ),
    cli.settings_by("experiments.embed.train:run_settings", _TASK, _OBJECTIVE),
    forms=_FORMS,
)

if __name__ == "__main__":
    raise SystemExit(main())
