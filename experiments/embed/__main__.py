"""Sentence-BERT: vectors of sentences whose cosine says how alike they are.

    python -m experiments.embed train stsb runs/sts --init runs/bert --data-dir DIR
    python -m experiments.embed evaluate runs/sts --data-dir DIR
    python -m experiments.embed evaluate hugging-face:DIR --task stsb --data-dir DIR
    python -m experiments.embed sts runs/sts senteval:DIR
    python -m experiments.embed encode runs/sts --input lines.txt --output vectors.npy
    python -m experiments.embed search runs/sts --corpus lines.txt --query "a man sleeps"

`train` goes on where it was stopped when the same command is given again. Without --query, `search`
answers stdin line by line.
"""

from experiments import command_line as cli

_FORMS = """tasks, and what they are learnt by:
  stsb                        --objective cosine: the cosine is to be the score, scaled to [0, 1]
  mnli snli xnli mrpc qqp qnli rte wnli boolq
                              --objective softmax: the pair's class from u, v and |u-v|
                              (--set "concatenation=u,v,u*v" and so on)
  triplets                    --objective triplet: --source tsv:FILE with the columns anchor,
                              positive and negative; {split} in the name becomes train, validation

SET of `sts`: pairs and their scores from 0 to 5
  senteval:DIR                those of STS12 to STS16, STSb and SICK-R that are in SentEval's
                              folder data/downstream; the pairs of a year's sub-sets are one set
  NAME=tsv:FILE               a table with the columns sentence1, sentence2 and label
  NAME=tfds:glue/stsb         the development set

ENCODER and FROM:
  RUN[@CHECKPOINT]   a run of `train`, or of pre-training or fine-tuning, whose vectors are averaged
  hugging-face:DIR   a sentence-transformers directory, or config.json, weights and tokenizer of a
                     BERT, RoBERTa, XLM, XLM-R, ALBERT or ELECTRA
  keras-hub:DIR      a preset's folder: BERT, DistilBERT, ELECTRA, RoBERTa
  model-garden:DIR   bert_config.json, vocab.txt and checkpoint of a BERT
  hub:OWNER/NAME     any of these on Hugging Face's hub
  none               (FROM alone) weights drawn at random; with --model NAME and --vocabulary DIR
"""

_TASK = cli.argument("task", "what to learn from: stsb, mnli, ..., or triplets")
_OBJECTIVE = cli.argument(
    "--objective",
    "what to learn by; the one that fits the task by default",
    choices=("softmax", "cosine", "triplet"),
)
_POOLING = cli.argument(
    "--pooling",
    "a sentence's vector from its tokens'; the encoder's own by default, or else mean",
    choices=("mean", "max", "cls"),
)
_OUTPUT = cli.place("--output DIR", "where the metrics go; RUN/scores by default")
_ENCODER = cli.together(
    cli.place("encoder ENCODER", "what makes the vectors"),
    _POOLING,
    cli.count("--max-length N", "longest row; the encoder's own by default"),
    cli.LOWER_CASE,
)

main = cli.program(
    "experiments.embed",
    __doc__,
    cli.command(
        "train",
        "train an encoder of sentences, or go on with an interrupted run",
        "experiments.embed.train:run",
        cli.unless_resumed(
            _TASK,
            cli.RUN_TO_TRAIN,
            cli.place("--init FROM", "what to start with", required=True),
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
        "Spearman and Pearson of the cosine against people's scores",
        "experiments.embed.evaluate:run",
        _ENCODER,
        cli.argument("--task", "the run's own by default, else stsb"),
        cli.argument("--split", "the development set by default, of a file all"),
        _OUTPUT,
        cli.EXAMPLES,
        cli.DEVICES,
    ),
    cli.command(
        "sts",
        "Spearman's correlation on several sets of scored pairs, and their mean",
        "experiments.embed.evaluate:run_sets",
        _ENCODER,
        cli.place("sets SET", "senteval:DIR or NAME=SOURCE", nargs="+"),
        _OUTPUT,
        cli.TFDS,
        cli.DEVICES,
    ),
    cli.command(
        "encode",
        "lines to an array of vectors, one for each line, in order; or to JSON",
        "experiments.embed.evaluate:encode",
        _ENCODER,
        cli.place("--input FILE", "a sentence a line; stdin by default"),
        cli.place(
            "--output FILE", ".npy: (lines, D) float32, by numpy.load; of --json stdout by default"
        ),
        cli.switch("--unit", "scale each vector to length 1, as those of --json are"),
        cli.JSON,
        cli.DEVICES,
    ),
    cli.command(
        "search",
        "the lines of a file nearest to a query, by the cosine, exactly",
        "experiments.embed.evaluate:search",
        _ENCODER,
        cli.local_place(
            "--corpus FILE",
            "a sentence a line; its vectors are kept beside it, in FILE.HASH.npy",
            required=True,
        ),
        cli.argument("--query TEXT", "as often as wanted; stdin by default", action="append"),
        cli.count("--top N", "answers a query (default %(default)s)", 10),
        cli.DEVICES,
    ),
    cli.settings_by("experiments.embed.train:run_settings", _TASK, _OBJECTIVE),
    forms=_FORMS,
)

if __name__ == "__main__":
    raise SystemExit(main())
