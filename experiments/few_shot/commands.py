"""Evaluates language models zero-shot and few-shot, without gradient updates.

    macaron few_shot runs/gpt2 --task sst2 rte --shots 0 1 4 16 --seeds 1 2 3 \\
        --data-dir DIR --out scores
    macaron few_shot runs/small runs/large --task sst2 --data-dir DIR --out scores

As in Brown et al. 2020 (GPT-3), a prompt consists of K shots (solved examples) and a question. The
command scores the model's answers to the questions. OUT/few_shot.md has a table of the scores, with
the scores of random guessing and of the majority class for comparison. OUT/few_shot.png shows the
scores over K. If the prompt is longer than the model allows, the command leaves out examples. The
table shows the mean number of examples in a prompt.

RUN is a run of pre-training with the objective causal_language. RUN@CHECKPOINT names a checkpoint.
hugging-face:DIR is a folder with a GPT, GPT-2 or Llama of transformers.

The tasks are cola, sst2, mrpc, qqp, mnli, snli, xnli, qnli, rte, wnli, cb, wic, wsc, boolq and
multirc. Each class has an answer word, and the model predicts the class with the most probable
answer word.

lm-evaluation-harness has prompts for other tasks: `lm_eval --model macaron --model_args path=RUN`.
"""

from experiments import command_line as cli

main = cli.single_program(
    "macaron few_shot",
    __doc__,
    "experiments.few_shot.evaluate:run",
    cli.extra("studies"),
    cli.path_argument("runs RUN", "language models: RUN, RUN@CHECKPOINT, ...", nargs="+"),
    cli.argument(
        "--task TASK", "tasks, such as 'sst2'", nargs="+", action=cli.Distinct, required=True
    ),
    cli.numbers(
        "--shots K", "numbers of examples in a prompt (default: 0 1 4 16)", [0, 1, 4, 16], minimum=0
    ),
    cli.seeds([1, 2, 3], "random seeds for drawing the shots"),
    cli.count("--max-examples N", "maximum number of questions per task (default: 1000)", 1_000),
    cli.path_argument("--out DIR", "output folder for the table and the figures", required=True),
    cli.TFDS,
)
