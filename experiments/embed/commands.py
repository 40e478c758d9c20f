"""Trains and applies sentence encoders (Sentence-BERT).

    macaron embed train stsb runs/sts --init runs/bert --data-dir DIR
    macaron embed evaluate runs/sts --data-dir DIR
    macaron embed evaluate hugging-face:DIR --task stsb --data-dir DIR
    macaron embed sts runs/sts STSb=tfds:glue/stsb SICK-R=tsv:sick.tsv --data-dir DIR
    macaron embed encode runs/sts --input lines.txt --output vectors.npy
    macaron embed search runs/sts --corpus lines.txt --query "a man sleeps"

To resume an interrupted `train`, give the same command again. Without --query, `search` reads
queries from stdin, one per line.
"""

from experiments import command_line as cli

_FORMS = """tasks and their objectives:
  stsb                        regression on sentence pairs with the objective cosine: the squared
                              error between the cosine similarity of the two sentence vectors and
                              the score, scaled to [0, 1]
  mnli snli xnli mrpc qqp qnli rte wnli boolq
                              classification of sentence pairs with the objective softmax: the
                              cross-entropy of a classifier that reads the sentence vectors u and v
                              and the absolute difference |u-v|. To change the features, give for
                              example --set "concatenation=u,v,u*v"
  triplets                    your own triplets of sentences, trained with the triplet loss
                              (objective triplet). Give --source tsv:FILE, a table with the columns
                              anchor, positive and negative. For training, the file name must
                              contain {split}, which stands for train or validation, as in
                              triplets.{split}.tsv

SET of `sts`, a set of sentence pairs with similarity scores from 0 to 5:
  NAME=tsv:FILE               tab-separated table with the columns sentence1, sentence2 and label.
                              NAME is the name of the set in the printed results
  NAME=tfds:glue/stsb         validation split of STS-B, from TensorFlow Datasets. NAME is the name
                              of the set in the printed results

ENCODER and FROM, a model to apply or to start from:
  RUN[@CHECKPOINT]   folder of a run of `embed train`, `pretrain train` or `finetune train`.
                     CHECKPOINT is average, best, last or the number of a training step
  hugging-face:DIR keras-hub:DIR model-garden:DIR hub:OWNER/NAME
                     an encoder of another library, among them sentence-transformers; see
                     `macaron finetune train --help`
  none               random weights, for `embed train --init` only; requires --model NAME and
                     --vocabulary DIR
"""

_TASK = cli.argument("task", "task to train on, such as 'stsb', 'mnli' or 'triplets'")
_POOLING = cli.argument(
    "--pooling",
    "how a sentence's token vectors become one: their 'mean', their 'max' in each dimension, "
    "or (cls) the first token's vector (default: the encoder's method or, without one, 'mean')",
    choices=("mean", "max", "cls"),
)
_OUTPUT = cli.path_argument(
    "--output DIR",
    "output folder for the scores (default: RUN/scores if the encoder is a run of `embed train`; "
    "otherwise the scores are only printed)",
)
_ENCODER = cli.together(
    cli.path_argument("encoder ENCODER", "sentence encoder, such as runs/sts or hugging-face:DIR"),
    _POOLING,
    cli.count(
        "--max-length N",
        "maximum number of tokens in a sentence, which is cut (default: the encoder's maximum)",
    ),
    cli.LOWER_CASE,
)

main = cli.program(
    "macaron embed",
    __doc__,
    cli.command(
        "train",
        "train a sentence encoder, or resume an interrupted run",
        "experiments.embed.train:run",
        cli.unless_resumed(
            _TASK,
            cli.RUN_TO_TRAIN,
            cli.path_argument("--init FROM", "model to start from (required), see below"),
        ),
        _POOLING,
        cli.INIT_NONE,
        cli.EXAMPLES,
        cli.settings("epochs=2, training.seed=2, batch_size=32 or model.dropout=0"),
        cli.CALLBACKS,
        cli.DEVICES,
    ),
    cli.command(
        "evaluate",
        "print the correlation of cosine similarities with similarity scores, or the metrics of a "
        "classification or triplet task",
        "experiments.embed.evaluate:run",
        cli.extra("evaluate"),
        _ENCODER,
        cli.argument("--task", "task to evaluate on (default: the task of the run, or 'stsb')"),
        cli.argument(
            "--split",
            "split to score, such as 'test' (default: the task's first validation split, or the "
            "whole file if its name has no {split})",
        ),
        _OUTPUT,
        cli.EXAMPLES,
        cli.DEVICES,
    ),
    cli.command(
        "sts",
        "print Spearman's rank correlation between cosine similarities and similarity scores on "
        "several sets of sentence pairs",
        "experiments.embed.evaluate:run_sets",
        cli.extra("evaluate"),
        _ENCODER,
        cli.path_argument("sets SET", "sets of scored pairs, such as mine=tsv:FILE", nargs="+"),
        _OUTPUT,
        cli.TFDS,
        cli.DEVICES,
    ),
    cli.command(
        "encode",
        "write the sentence vector of each input line to a NumPy file or as JSON",
        "experiments.embed.evaluate:encode",
        _ENCODER,
        cli.path_argument("--input FILE", "file with one sentence per line (default: stdin)"),
        cli.path_argument(
            "--output FILE",
            "output .npy file for a float32 array with one row per sentence, or JSON file with "
            "--json (default with --json: stdout)",
        ),
        cli.switch(
            "--unit",
            "scale each vector to Euclidean norm 1, as the vectors of --json always are",
        ),
        cli.JSON,
        cli.DEVICES,
    ),
    cli.command(
        "search",
        "find the lines of a file with the greatest cosine similarity to a query",
        "experiments.embed.evaluate:search",
        _ENCODER,
        cli.local_path_argument(
            "--corpus FILE",
            "file to search, one sentence per line; FILE.HASH.npy caches the sentence vectors",
            required=True,
        ),
        cli.argument(
            "--query TEXT",
            "query sentence (default: each line of stdin; repeatable)",
            action="append",
        ),
        cli.count("--top N", "number of sentences to print for each query (default: 10)", 10),
        cli.DEVICES,
    ),
    cli.settings_by("experiments.embed.train:run_settings", _TASK),
    epilog=_FORMS,
)
