"""Trains, evaluates and serves a small translation model in three to six minutes (`make demo`).

The demo downloads a corpus, trains a small Macaron transformer and prints its BLEU and ten
translations with references. It then exports the model, starts a server, and sends the server a
request over REST. To resume an interrupted demo, give the same command again.
"""

from experiments import command_line as cli

main = cli.single_program(
    "macaron demo",
    __doc__,
    "experiments.demo.stages:run",
    cli.local_path_argument(
        "--run DIR", "folder for the run (default: %(default)s)", default="runs/demo"
    ),
    cli.settings("training.max_minutes=5 or data.target_language=fr"),
)
