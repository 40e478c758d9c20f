"""Compares the temporal convolutional network (TCN) with LSTM, GRU and RNN of equal size.

    python -m experiments.tcn train jsb out/jsb --data music/JSB_Chorales.mat
    python -m experiments.tcn train nottingham out/nottingham --data music/Nottingham.mat
    python -m experiments.tcn train adding out/adding
    python -m experiments.tcn train copy_memory out/copy
    python -m experiments.tcn train ptb_words out/words --data ptb
    python -m experiments.tcn train ptb_characters out/characters --data ptb
    python -m experiments.tcn train wikitext out/wikitext --data-dir DIR
    python -m experiments.tcn train lambada out/lambada --data lambada --data-dir DIR
    python -m experiments.tcn train mnist out/mnist --data-dir DIR
    python -m experiments.tcn train permuted_mnist out/permuted --data-dir DIR
    python -m experiments.tcn train --resume out/jsb/tcn-1 --data music/JSB_Chorales.mat

The word `train` may be left out. The recurrent models are Keras's layers, with as many parameters
as the TCN. The command writes OUT/TASK.md, .json and .png, and a run's folder for each model and
seed. Complete runs are not trained again: to resume an interrupted command, give it again; --resume
resumes one of its runs. The recipe of a TASK is `tcn_TASK`.
"""

from experiments import command_line as cli

main = cli.program(
    "experiments.tcn",
    __doc__,
    cli.command(
        "train",
        "train the models of a task, or resume interrupted runs",
        "experiments.tcn.train:run",
        cli.unless_resumed(
            cli.local_place(
                "task",
                "adding, copy_memory, jsb, nottingham, ptb_words, ptb_characters, wikitext, "
                "lambada, mnist or permuted_mnist; or a function of your own that returns a "
                "recipe, FILE.py[:NAME]",
            ),
            cli.place("out", "folder of the runs and results"),
            cli.argument(
                "--models",
                "models to train (default: all four)",
                nargs="+",
                choices=("tcn", "lstm", "gru", "rnn"),
                action=cli.Distinct,
            ),
            cli.count(
                "--seeds N",
                "seeds of the runs (default 1)",
                least=0,
                nargs="+",
                action=cli.Distinct,
            ),
        ),
        cli.local_place(
            "--data PATH",
            "the .mat file of the music; for ptb and lambada, the folder of the texts, such as "
            "LAMBADA's dev.txt and test.txt",
        ),
        cli.TFDS,
        cli.settings("training.max_steps=500 or batch_size=8, for all models"),
        cli.CALLBACKS,
    ),
    cli.recipes("experiments.tcn.run:SequenceRecipe"),
    cli.settings_of("experiments.tcn.run:SequenceRecipe"),
    default="train",
)

if __name__ == "__main__":
    raise SystemExit(main())
