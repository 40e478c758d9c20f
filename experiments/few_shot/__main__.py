"""Evaluates language models zero-shot and few-shot, without gradient updates.

    python -m experiments.few_shot runs/gpt2 --task sst2 rte --shots 0 1 4 16 --seeds 1 2 3 \\
        --data-dir DIR --out scores
    python -m experiments.few_shot runs/gpt2 --task lambada:dev.txt.gz --shots 0 --out scores
    python -m experiments.few_shot runs/small runs/large --task sst2 --calibrate \\
        --data-dir DIR --out scores
    python -m experiments.few_shot runs/gpt2 --prompts gpt2 --task summarization squad \\
        translation:en-fr:tfds:multi30k/fr-en --shots 0 4 --data-dir DIR --out scores

As in Brown et al. 2020 (GPT-3), a prompt consists of K solved examples and a question. The command
scores the model's answers to the questions. OUT/few_shot.md has a table of the scores, with the
scores of random guessing and of the majority class for comparison. OUT/few_shot.png shows the
scores over K. With models of several sizes, OUT/sizes.png shows the scores over the number of
parameters.
"""

from experiments import command_line as cli

_FORMS = """tasks:
  cola sst2 mrpc qqp mnli qnli rte wnli boolq multirc
                 classification; the model chooses among one answer word per class (see --words)
  squad          free-form answers, scored by F1 and exact match
  summarization  subject lines of e-mails (AESLC), prompted by "TL;DR:" and scored by ROUGE
  summarization:TEXT-SUMMARY:SOURCE
                 summaries of your own texts. TEXT and SUMMARY are the names of the two columns
  translation:FROM-TO:SOURCE
                 translation from the language code FROM to TO, scored by BLEU
  lambada:FILE   last-word prediction; each line of the file, plain or .gz, is a passage
  tsv:FILE       question answering; the table has the columns `question` and `answer`. For multiple
                 choice, the table also has columns choice1, choice2 ..., and `answer` is the number
                 of the correct choice. jsonl:FILE, parquet:FILE and datasets:DIR have the same
                 columns
SOURCE is a source of text pairs; `experiments.translate train --help` lists the forms. If the name
of a file contains {split}, the command reads solved examples from the file for train, and questions
from the file for validation. Otherwise every fourth line of the file is a solved example.

RUN is a run of `python -m experiments.pretrain` with the objective causal_language. RUN@CHECKPOINT
names a checkpoint. hugging-face:DIR is a folder with a GPT or GPT-2 of transformers. If the prompt
is longer than the model allows, the command leaves out examples. The table shows the mean number of
examples in a prompt.
"""

main = cli.single_program(
    "experiments.few_shot",
    __doc__,
    "experiments.few_shot.evaluate:run",
    cli.place(
        "runs RUN",
        "language models to evaluate: RUN, RUN@CHECKPOINT or hugging-face:DIR",
        nargs="+",
    ),
    cli.place(
        "--task TASK", "tasks to evaluate on; the forms are listed below", nargs="+", required=True
    ),
    cli.count(
        "--shots K",
        "numbers of solved examples in a prompt (default: 0 1 4 16)",
        [0, 1, 4, 16],
        least=0,
        nargs="+",
        action=cli.Distinct,
    ),
    cli.count(
        "--seeds N",
        "random seeds; each seed draws other solved examples (default: 1 2 3)",
        [1, 2, 3],
        least=0,
        nargs="+",
        action=cli.Distinct,
    ),
    cli.argument(
        "--normalization",
        "score of an answer choice: its log-likelihood per token, or the sum over its tokens "
        "(default: token)",
        choices=("token", "sum"),
        default="token",
    ),
    cli.switch(
        "--calibrate",
        "divide the probability of each answer choice by its probability after a question without "
        "content, such as N/A (Zhao et al. 2021; default: off)",
    ),
    cli.argument(
        "--prompts",
        'format of prompts for questions and translations: plain means "Question: ... Answer:", '
        'gpt2 and gpt3 mean the formats of the GPT-2 and GPT-3 papers, "Q: ... A:" (default: '
        "plain)",
        choices=("plain", "gpt2", "gpt3"),
        default="plain",
    ),
    cli.argument(
        "--template TEXT",
        "prompt format of a classification task, in which {first} and {second} stand for the texts "
        "and \\n for a line break; requires --words and a single --task (default: the task's own "
        "format)",
    ),
    cli.argument(
        "--words WORD",
        "answer word for each class, in the order of the classes; requires --template (default: "
        "the task's own words)",
        nargs="+",
    ),
    cli.count("--max-examples N", "maximum number of questions per task (default: 1000)", 1_000),
    cli.place("--out DIR", "folder for the table and the figures", required=True),
    cli.TFDS,
    forms=_FORMS,
)

if __name__ == "__main__":
    raise SystemExit(main())
