"""Trains and applies sentence encoders (Sentence-BERT).

    python -m experiments.embed train stsb runs/sts --init runs/bert --data-dir DIR
    python -m experiments.embed evaluate runs/sts --data-dir DIR
    python -m experiments.embed evaluate hugging-face:DIR --task stsb --data-dir DIR
    python -m experiments.embed sts runs/sts senteval:DIR
    python -m experiments.embed encode runs/sts --input lines.txt --output vectors.npy
    python -m experiments.embed search runs/sts --corpus lines.txt --query "a man sleeps"

To resume an interrupted `train`, give the same command again. Without --query, `search` reads
queries from stdin, one per line.
"""

from experiments import command_line as cli

_FORMS = """tasks and their objectives:
  stsb                        --objective cosine: squared error between the cosine of the two
                              vectors and the score, which is scaled to [0, 1]
  mnli snli xnli mrpc qqp qnli rte wnli boolq
                              --objective softmax: cross-entropy of a classifier that reads the
                              sentence vectors u and v and the absolute difference |u-v|. For other
                              features, give for example --set "concatenation=u,v,u*v"
  triplets                    --objective triplet: triplet loss. The task needs --source tsv:FILE
                              with the columns anchor, positive and negative. A {split} in the name
                              FILE, as in triplets.{split}.tsv, stands for train or validation

SET of `sts`, a set of sentence pairs with similarity scores from 0 to 5:
  senteval:DIR                the sets STS12 to STS16, STSb and SICK-R that are in DIR, the folder
                              data/downstream of SentEval. All subsets of a year form one set
  NAME=tsv:FILE               table with the columns sentence1, sentence2 and label; results are
                              reported under NAME
  NAME=tfds:glue/stsb         development set of STS-B in TensorFlow Datasets

ENCODER and FROM, a model to apply or to start from:
  RUN[@CHECKPOINT]   run of `embed train`, `pretrain train` or `finetune train`
  hugging-face:DIR   folder of a sentence-transformers model, or folder with config.json, weights
                     and tokenizer of a BERT, RoBERTa, XLM, XLM-R, ALBERT or ELECTRA
  keras-hub:DIR      folder of a KerasHub preset of BERT, DistilBERT, ELECTRA or RoBERTa
  model-garden:DIR   folder with bert_config.json, vocab.txt and a checkpoint of a BERT
  hub:OWNER/NAME     repository on the Hugging Face hub that contains one of the folders above
  none               new model with random weights instead of FROM; needs --model NAME and
                     --vocabulary DIR
"""

_TASK = cli.argument("task", "task to train on, such as stsb; the tasks are listed below")
_OBJECTIVE = cli.argument(
    "--objective",
    "training objective (default: the objective of the task in the list below)",
    choices=("softmax", "cosine", "triplet"),
)
_POOLING = cli.argument(
    "--pooling",
    "method that pools the token vectors into a sentence vector; cls takes the vector of the first "
    "token (default: the method of the encoder or, if the encoder has none, mean)",
    choices=("mean", "max", "cls"),
)
_OUTPUT = cli.place(
    "--output DIR",
    "folder for the scores (default: RUN/scores; the scores of other models are only printed)",
)
_ENCODER = cli.together(
    cli.place("encoder ENCODER", "sentence encoder to apply; the forms are listed below"),
    _POOLING,
    cli.count(
        "--max-length N",
        "maximum number of tokens in a sentence, including special tokens; longer sentences are "
        "truncated (default: the encoder's own maximum)",
    ),
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
            cli.place(
                "--init FROM", "model to start from; the forms are listed below", required=True
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
        "print the correlation of cosine similarities with scores, or the metrics of a "
        "classification or triplet task",
        "experiments.embed.evaluate:run",
        _ENCODER,
        cli.argument(
            "--task",
            "task to evaluate on (default: the task of the run or, for another model, stsb)",
        ),
        cli.argument(
            "--split",
            "split to score (default: the development set; for a --source without {split} in its "
            "name, the whole file)",
        ),
        _OUTPUT,
        cli.EXAMPLES,
        cli.DEVICES,
    ),
    cli.command(
        "sts",
        "print Spearman's rank correlation between cosine similarities and scores on several sets",
        "experiments.embed.evaluate:run_sets",
        _ENCODER,
        cli.place(
            "sets SET",
            "sets of sentence pairs, as senteval:DIR or NAME=SOURCE; the forms are listed below",
            nargs="+",
        ),
        _OUTPUT,
        cli.TFDS,
        cli.DEVICES,
    ),
    cli.command(
        "encode",
        "write the vector of each line to a NumPy file or as JSON",
        "experiments.embed.evaluate:encode",
        _ENCODER,
        cli.place("--input FILE", "file with one sentence per line (default: stdin)"),
        cli.place(
            "--output FILE",
            ".npy file for a float32 array with one row per sentence or, with --json, JSON file "
            "(default with --json: stdout; without --json, the file is required)",
        ),
        cli.switch(
            "--unit",
            "scale each vector to Euclidean norm 1; --json always does so (default: not scaled)",
        ),
        cli.JSON,
        cli.DEVICES,
    ),
    cli.command(
        "search",
        "find the lines of a file with the greatest cosine similarity to a query",
        "experiments.embed.evaluate:search",
        _ENCODER,
        cli.local_place(
            "--corpus FILE",
            "file with one sentence per line in which to search; the command caches the sentence "
            "vectors in FILE.HASH.npy",
            required=True,
        ),
        cli.argument(
            "--query TEXT",
            "sentence to find similar sentences for (default: each line of stdin; repeatable)",
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
    forms=_FORMS,
)

if __name__ == "__main__":
    raise SystemExit(main())
