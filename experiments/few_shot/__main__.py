"""Zero-, one- and few-shot evaluation of language models, without a gradient update.

    python -m experiments.few_shot runs/gpt2 --task sst2 rte --shots 0 1 4 16 --seeds 1 2 3 \\
        --data-dir DIR --out scores
    python -m experiments.few_shot runs/gpt2 --task lambada:dev.txt.gz --shots 0 --out scores
    python -m experiments.few_shot runs/small runs/large --task sst2 --calibrate \\
        --data-dir DIR --out scores
    python -m experiments.few_shot runs/gpt2 --prompts gpt2 --task summarization squad \\
        translation:en-fr:tfds:multi30k/fr-en --shots 0 4 --data-dir DIR --out scores

Brown et al. 2020 (GPT-3): K examples and a question in words, and the model's answer. The table
(OUT/few_shot.md) has chance and the majority class beside the scores; few_shot.png draws them
against K, sizes.png, of several models, against their size.
"""

from experiments import command_line as cli

_FORMS = """tasks:
  cola sst2 mrpc qqp mnli qnli rte wnli boolq multirc   classes by their words, --words
  squad          answers in free form: F1 and exact match
  summarization  "TEXT TL;DR:", AESLC's e-mails or summarization:TEXT-SUMMARY:SOURCE: ROUGE
  translation:FROM-TO:SOURCE                            "SENTENCE =": BLEU
  lambada:FILE   a passage a line, plain or .gz: its last word
  tsv:FILE       columns question and answer, and of a choice choice1, choice2 ... with the number
                 of the right one as answer
Files with {split} in their names have train, for the examples, and validation; of others every
fourth line is for the examples.

RUN is a run of `python -m experiments.pretrain` with the objective causal_language, RUN@CHECKPOINT
one of its checkpoints; or hugging-face:DIR, a folder with a GPT-2. Examples and question have to
fit into a row of the training: the table says how many did.
"""

main = cli.single_program(
    "experiments.few_shot",
    __doc__,
    "experiments.few_shot.evaluate:run",
    cli.place("runs RUN", "RUN, RUN@CHECKPOINT or hugging-face:DIR", nargs="+"),
    cli.place("--task TASK", "see below", nargs="+", required=True),
    cli.count(
        "--shots K", "examples shown", [0, 1, 4, 16], least=0, nargs="+", action=cli.Distinct
    ),
    cli.count(
        "--seeds N", "of which are shown", [1, 2, 3], least=0, nargs="+", action=cli.Distinct
    ),
    cli.argument(
        "--normalization",
        "log-likelihood of an answer a token, or as it is (default token)",
        choices=("token", "sum"),
        default="token",
    ),
    cli.switch(
        "--calibrate",
        "divide by what the answers have after queries about nothing (Zhao et al. 2021)",
    ),
    cli.argument(
        "--prompts",
        'questions and translations as the papers ask them, "Q: ... A:" (default plain, "Question: '
        '... Answer:")',
        choices=("plain", "gpt2", "gpt3"),
        default="plain",
    ),
    cli.argument(
        "--template TEXT",
        "how a task of classes is asked, with {first} and {second} and \\n for a line's end; goes "
        "with --words",
    ),
    cli.argument("--words WORD", "a word for each class, in turn", nargs="+"),
    cli.count("--max-examples N", "questions at most", 1_000),
    cli.place("--out DIR", "folder of table and figures", required=True),
    cli.TFDS,
    forms=_FORMS,
)

if __name__ == "__main__":
    raise SystemExit(main())
