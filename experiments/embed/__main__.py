"""Trains and applies sentence encoders (Sentence-BERT).

    python -m experiments.embed train stsb runs/sts --init runs/bert --data-dir DIR
    python -m experiments.embed evaluate runs/sts --data-dir DIR
    python -m experiments.embed evaluate hugging-face:DIR --task stsb --data-dir DIR
    python -m experiments.embed sts runs/sts senteval:DIR
    python -m experiments.embed encode runs/sts --input lines.txt --output vectors.npy
    python -m experiments.embed search runs/sts --corpus lines.txt --query "a man sleeps"

To resume an interrupted `train`, give the same command again. Without --query, `search` reads its
queries from stdin, one per line.
"""

from experiments import command_line as cli

_FORMS = """tasks and their objectives:
  stsb                        --objective cosine: squared error between the cosine of the two
                              vectors and the score, which is scaled to [0, 1]
  mnli snli xnli mrpc qqp qnli rte wnli boolq
                              --objective softmax: cross-entropy of a classifier that reads the
                              vectors u and v and their difference |u-v|. For other features, add
                              for example --set "concatenation=u,v,u*v"
  triplets                    --objective triplet: triplet loss. Needs --source tsv:FILE with the
                              columns anchor, positive and negative. In the name of the file,
                              {split} stands for train and validation

SET of `sts`, which consists of sentence pairs with scores from 0 to 5:
  senteval:DIR                STS12 to STS16, STSb and SICK-R, if they are in DIR, the folder
                              data/downstream of SentEval. All subsets of a year form one set
  NAME=tsv:FILE               table with the columns sentence1, sentence2 and label
  NAME=tfds:glue/stsb         development set of STS-B

ENCODER and FROM:
  RUN[@CHECKPOINT]   run of `train`, of pre-training or of fine-tuning
  hugging-face:DIR   sentence-transformers directory, or folder with config.json, weights and
                     tokenizer of a BERT, RoBERTa, XLM, XLM-R, ALBERT or ELECTRA
  keras-hub:DIR      preset folder of a BERT, DistilBERT, ELECTRA or RoBERTa
  model-garden:DIR   folder with bert_config.json, vocab.txt and a checkpoint of a BERT
  hub:OWNER/NAME     repository on the Hugging Face Hub with one of the folders above
  none               random weights, for FROM only; needs --model NAME and --vocabulary DIR
"""

_TASK = cli.argument("task", "task to train on, such as stsb, mnli or triplets; the list is below")
_OBJECTIVE = cli.argument(
    "--objective",
    "training objective (default: the objective that fits the task)",
    choices=("softmax", "cosine", "triplet"),
)
_POOLING = cli.argument(
    "--pooling",
    "pooling of token vectors into a sentence vector (default: as in the encoder, or else mean)",
    choices=("mean", "max", "cls"),
)
_OUTPUT = cli.place("--output DIR", "folder for the metrics (default: RUN/scores)")
_ENCODER = cli.together(
    cli.place("encoder ENCODER", "sentence encoder; the forms are below"),
    _POOLING,
    cli.count(
        "--max-length N", "maximum number of tokens in a sentence (default: as in the encoder)"
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
            cli.place("--init FROM", "model to start from; the forms are below", required=True),
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
        "print the correlation of cosines with scores, or the accuracy on classes or triplets",
        "experiments.embed.evaluate:run",
        _ENCODER,
        cli.argument("--task", "task to evaluate on (default: the task of the run, or else stsb)"),
        cli.argument(
            "--split", "split to evaluate on (default: the development set, or the whole file)"
        ),
        _OUTPUT,
        cli.EXAMPLES,
        cli.DEVICES,
    ),
    cli.command(
        "sts",
        "print Spearman's correlation on several sets of scored pairs, and the mean correlation",
        "experiments.embed.evaluate:run_sets",
        _ENCODER,
        cli.place(
            "sets SET",
            "sets of sentence pairs, as senteval:DIR or NAME=SOURCE; the forms are below",
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
            ".npy file for a float32 array (lines, D), or JSON file (default with --json: stdout)",
        ),
        cli.switch("--unit", "scale each vector to norm 1, which --json always does"),
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
            "file with one sentence per line; the command saves the vectors in FILE.HASH.npy",
            required=True,
        ),
        cli.argument(
            "--query TEXT",
            "query; may be repeated (default: each line of stdin)",
            action="append",
        ),
        cli.count("--top N", "number of lines to print for each query (default: %(default)s)", 10),
        cli.DEVICES,
    ),
    cli.settings_by("experiments.embed.train:run_settings", _TASK, _OBJECTIVE),
    forms=_FORMS,
)

if __name__ == "__main__":
    raise SystemExit(main())
