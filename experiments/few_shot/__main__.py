"""Evaluates language models zero-shot and few-shot, without gradient updates.

    python -m experiments.few_shot runs/gpt2 --task sst2 rte --shots 0 1 4 16 --seeds 1 2 3 \\
        --data-dir DIR --out scores
    python -m experiments.few_shot runs/gpt2 --task lambada:dev.txt.gz --shots 0 --out scores
    python -m experiments.few_shot runs/small runs/large --task sst2 --calibrate \\
        --data-dir DIR --out scores
    python -m experiments.few_shot runs/gpt2 --prompts gpt2 --task summarization squad \\
        translation:en-fr:tfds:multi30k/fr-en --shots 0 4 --data-dir DIR --out scores

As in Brown et al. 2020 (GPT-3), the prompt has K solved examples and a question, and the command
scores the model's answer. OUT/few_shot.md has a table of the scores, beside the scores of random
guessing and of the majority class. OUT/few_shot.png shows the scores over K. With models of several
sizes, OUT/sizes.png shows the scores over the number of parameters.
"""

from experiments import command_line as cli

_FORMS = """tasks:
  cola sst2 mrpc qqp mnli qnli rte wnli boolq multirc
                 classification: the answer is a word for each class (--words)
  squad          free-form answers, scored by F1 and exact match
  summarization  summaries of e-mails (AESLC), prompted by "TL;DR:" and scored by ROUGE
  summarization:TEXT-SUMMARY:SOURCE
                 summaries of your own texts; TEXT and SUMMARY name the two columns
  translation:FROM-TO:SOURCE
                 translations, scored by BLEU
  lambada:FILE   last-word prediction; each line of the plain or .gz file is a passage
  tsv:FILE       questions in the columns question and answer. For multiple choice, add the columns
                 choice1, choice2 ...; the answer is the number of the correct choice
If a file's name has {split}, the examples come from the split train and the questions from the
split validation. Otherwise every fourth line is used for examples.

RUN is a run of `python -m experiments.pretrain` with the objective causal_language. RUN@CHECKPOINT
chooses a checkpoint. hugging-face:DIR is a folder with a GPT-2. If K examples and the question are
too long for the model, it reads as many examples as fit. The table shows their mean number.
"""

main = cli.single_program(
    "experiments.few_shot",
    __doc__,
    "experiments.few_shot.evaluate:run",
    cli.place("runs RUN", "models to evaluate: RUN, RUN@CHECKPOINT or hugging-face:DIR", nargs="+"),
    cli.place("--task TASK", "tasks to evaluate on; the list is below", nargs="+", required=True),
    cli.count(
        "--shots K",
        "numbers of solved examples before a question (default: 0 1 4 16)",
        [0, 1, 4, 16],
        least=0,
        nargs="+",
        action=cli.Distinct,
    ),
    cli.count(
        "--seeds N",
        "random seeds that choose the examples (default: 1 2 3)",
        [1, 2, 3],
        least=0,
        nargs="+",
        action=cli.Distinct,
    ),
    cli.argument(
        "--normalization",
        "score of a choice: token means its log-likelihood divided by its number of tokens, sum "
        "means its log-likelihood (default: token)",
        choices=("token", "sum"),
        default="token",
    ),
    cli.switch(
        "--calibrate",
        "divide the probability of each choice by its probability after a content-free question "
        "(Zhao et al. 2021)",
    ),
    cli.argument(
        "--prompts",
        'form of questions and translations: plain is "Question: ... Answer:", gpt2 and gpt3 are '
        'the "Q: ... A:" forms of the papers (default: plain)',
        choices=("plain", "gpt2", "gpt3"),
        default="plain",
    ),
    cli.argument(
        "--template TEXT",
        "prompt of a classification task, with {first} and {second} for the texts and \\n for a "
        "line break; needs --words (default: the task's own prompt)",
    ),
    cli.argument(
        "--words WORD",
        "answer words, one for each class in the order of the classes; needs --template",
        nargs="+",
    ),
    cli.count("--max-examples N", "maximum number of questions per task (default: 1000)", 1_000),
    cli.place("--out DIR", "folder for the table and figures", required=True),
    cli.TFDS,
    forms=_FORMS,
)

if __name__ == "__main__":
    raise SystemExit(main())
