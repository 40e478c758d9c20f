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
                     CHECKPOINT is average, best, last or the number of a training step (default:
                     the first of average, best and last that exists)
  hugging-face:DIR   folder of a sentence-transformers model, or folder with the config.json, the
                     weights and the tokenizer of a BERT, DistilBERT, RoBERTa, XLM, XLM-R, ALBERT,
                     ELECTRA or ModernBERT
  keras-hub:DIR      folder of a KerasHub preset of BERT, DistilBERT, ELECTRA or RoBERTa
  model-garden:DIR   folder of a TensorFlow Model Garden BERT checkpoint, with bert_config.json and
                     vocab.txt
  hub:OWNER/NAME     Hugging Face Hub repository with a model in one of these formats: macaron_tf,
                     transformers, sentence-transformers, KerasHub or Model Garden
  none               random weights, for `embed train --init` only; requires --model NAME and
                     --vocabulary DIR
"""

_TASK = cli.argument("task", "task to train on, such as 'stsb', 'mnli' or 'triplets'")
_OBJECTIVE = cli.argument(
    "--objective",
    "training objective: 'softmax' for classification tasks, 'cosine' for the task stsb, or "
    "'triplet' for the task triplets (default: the objective of the task)",
    choices=("softmax", "cosine", "triplet"),
)
_POOLING = cli.argument(
    "--pooling",
    "method that pools the token vectors of a sentence into one vector. 'mean': their mean; "
    "'max': the maximum in each dimension; 'cls': the vector of the first token (default: the "
    "method of the encoder or, if the encoder has none, 'mean')",
    choices=("mean", "max", "cls"),
)
_OUTPUT = cli.path_argument(
    "--output DIR",
    "output folder for the scores (default: RUN/scores if the encoder is a run of `embed train`; "
    "otherwise the scores are only printed)",
)
_ENCODER = cli.together(
    cli.path_argument(
        "encoder ENCODER", "sentence encoder to apply, such as runs/sts or hugging-face:DIR"
    ),
    _POOLING,
    cli.count(
        "--max-length N",
        "maximum number of tokens in a sentence, including special tokens; longer sentences are "
        "truncated (default: the maximum of the encoder)",
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
            cli.path_argument(
                "--init FROM",
                "model to start from (required), such as runs/bert, hugging-face:DIR or 'none' "
                "(random weights)",
            ),
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
        "print the correlation of cosine similarities with similarity scores, or the metrics of a "
        "classification or triplet task",
        "experiments.embed.evaluate:run",
        cli.extra("evaluate"),
        _ENCODER,
        cli.argument(
            "--task",
            "task to evaluate on, such as 'stsb' (default: the task of the run if the encoder is a "
            "run of `embed train`, otherwise 'stsb')",
        ),
        cli.argument(
            "--split",
            "split to score, such as 'test' (default: 'validation', or 'validation_matched' for "
            "the tasks mnli and xnli). If the source is a file without {split} in its name, the "
            "default is the whole file",
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
        cli.path_argument(
            "sets SET",
            "sets of sentence pairs with similarity scores, as NAME=SOURCE, such as mine=tsv:FILE",
            nargs="+",
        ),
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
            "output .npy file for a float32 array with one row per sentence or, with --json, "
            "output JSON file (default with --json: stdout; without --json, the file is required)",
        ),
        cli.switch(
            "--unit",
            "scale each vector to Euclidean norm 1 (default: no scaling; the vectors of --json "
            "always have norm 1)",
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
            "file to search, with one sentence per line; the command caches the sentence vectors "
            "in FILE.HASH.npy",
            required=True,
        ),
        cli.argument(
            "--query TEXT",
            "query sentence, to which the command finds similar sentences (default: each line of "
            "stdin; repeatable)",
            action="append",
        ),
        cli.count(
            "--top N",
            "number of most similar sentences to print for each query (default: %(default)s)",
            10,
        ),
        cli.DEVICES,
    ),
    cli.settings_by("experiments.embed.train:run_settings", _TASK, _OBJECTIVE),
    epilog=_FORMS,
)
