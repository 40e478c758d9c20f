"""Zero-shot and few-shot evaluation of language models, without gradient updates.

    python -m experiments.few_shot runs/gpt2 --task sst2 rte --shots 0 1 4 16 --seeds 1 2 3 \\
        --data-dir DIR --out scores
    python -m experiments.few_shot runs/gpt2 --task lambada:dev.txt.gz --shots 0 --out scores
    python -m experiments.few_shot runs/small runs/large --task sst2 --calibrate \\
        --data-dir DIR --out scores
    python -m experiments.few_shot runs/gpt2 --prompts gpt2 --task summarization squad \\
        translation:en-fr:tfds:multi30k/fr-en --shots 0 4 --data-dir DIR --out scores

As in Brown et al. 2020 (GPT-3), the model reads K examples and a question in words, and its answer
is scored. OUT/few_shot.md has a table of the scores, with those of a random guess and of the
majority class. few_shot.png shows the scores by K; sizes.png shows them by model size, if there are
several models.
"""

from experiments import command_line as cli

_FORMS = """tasks:
  cola sst2 mrpc qqp mnli qnli rte wnli boolq multirc   the class, named by a word (--words)
  squad          free answers, scored by F1 and exact match
  summarization  summaries of e-mails (AESLC), or of the pairs of
                 summarization:TEXT-SUMMARY:SOURCE, prompted by "TL;DR:" and scored by ROUGE
  translation:FROM-TO:SOURCE                            translations, scored by BLEU
  lambada:FILE   the last word of passages, which are lines of a plain or .gz file
  tsv:FILE       questions in the columns question and answer; for multiple choice also choice1,
                 choice2 ..., with the number of the correct one as answer
If a file's name has {split}, the examples come from train and the questions from validation.
Otherwise every fourth line is for the examples.

RUN is a run of `python -m experiments.pretrain` with the objective causal_language; RUN@CHECKPOINT
is one of its checkpoints; hugging-face:DIR is a folder with a GPT-2. The model reads as many of the
examples as fit, together with the question, into a row; the table shows their number.
"""

main = cli.single_program(
    "experiments.few_shot",
    __doc__,
    "experiments.few_shot.evaluate:run",
    cli.place("runs RUN", "models to evaluate: RUN, RUN@CHECKPOINT or hugging-face:DIR", nargs="+"),
    cli.place("--task TASK", "tasks to evaluate on, see below", nargs="+", required=True),
    cli.count(
        "--shots K",
        "numbers of examples to show before a question (default 0 1 4 16)",
        [0, 1, 4, 16],
        least=0,
        nargs="+",
        action=cli.Distinct,
    ),
    cli.count(
        "--seeds N",
        "seeds that choose the examples (default 1 2 3)",
        [1, 2, 3],
        least=0,
        nargs="+",
        action=cli.Distinct,
    ),
    cli.argument(
        "--normalization",
        "score of a choice: its log-likelihood per token, or summed (default token)",
        choices=("token", "sum"),
        default="token",
    ),
    cli.switch(
        "--calibrate",
        "divide the probabilities of choices by those after content-free questions (Zhao et al. "
        "2021)",
    ),
    cli.argument(
        "--prompts",
        'form of questions and translations: that of the papers, "Q: ... A:", or plain, '
        '"Question: ... Answer:" (default plain)',
        choices=("plain", "gpt2", "gpt3"),
        default="plain",
    ),
    cli.argument(
        "--template TEXT",
        "question of a task with classes, with {first} and {second} for its texts and \\n for a "
        "line break; needs --words",
    ),
    cli.argument("--words WORD", "a word for each class, in the order of the classes", nargs="+"),
    cli.count("--max-examples N", "most questions of each task (default 1000)", 1_000),
    cli.place("--out DIR", "folder of the table and figures", required=True),
    cli.TFDS,
    forms=_FORMS,
)

if __name__ == "__main__":
    raise SystemExit(main())
