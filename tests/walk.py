"""Runs the commands of the documentation on real data, with a few updates each.

    python -m tests.walk DATA_DIR OUT [--only WORD ...]

DATA_DIR is a TensorFlow Datasets folder. Each command runs in its own process, and its output goes
to OUT/log.txt. A second walk skips the commands that succeeded.
"""

import argparse
import functools
import os
import pathlib
import shlex
import subprocess
import sys
import time

from tests.toys.guides import write_modules
from tests.toys.processes import ROOT

MACARON = str(pathlib.Path(sys.executable).with_name("macaron"))
SHORT = "max_steps=20 warmup_steps=5 validate_every=10 save_every_steps=10 log_every=5"


def commands(data: str, out: pathlib.Path) -> list[str]:
    """Returns the arguments of `macaron` for each command."""
    r, d = out / "runs", f"--data-dir {data}"
    short = " ".join(f"--set training.{setting}" for setting in SHORT.split())
    tune = "--set training.max_steps=10 --set training.validate_every=10 --set data.max_length=32"
    answer = tune.replace("data.max_length=32", "data.validation_examples=64")
    pretrained = "bert roberta modern_bert albert span_bert electra gmlp amlp macaron_bert bert_rab"
    pretrained += " gpt gpt2 transformer_xl xlnet t5 bart xlm_clm xlm"
    exported = "m30k rte squad conll gpt2 t5-sst2 elmo sts"
    return [
        "recipes",
        f"train multi30k_macaron_tiny {r}/m30k {d} {short}",
        f"average {r}/m30k --last 2",
        f"evaluate {r}/m30k {d} --split validation[:64]",
        f"predict {r}/m30k 'A man is riding a bike.'",
        "settings bert_tiny warm",
        f"prepare bert_tiny {out}/corpus {d}",
        f"train swish_rnn_tiny {r}/swish --corpus {out}/corpus {short}",
        f"predict {r}/swish 'the [MASK] of the story'",
        f"evaluate {r}/swish --corpus {out}/corpus",
        *(f"train {name}_tiny {r}/{name} {d} {short}" for name in pretrained.split()),
        f"predict {r}/bert 'the [MASK] of the story'",
        f"train multi30k_xlm_tiny {r}/x --init {r}/xlm {d} {short}",
        f"train xlm_captions_tiny {r}/captions {d} {short}",
        f"train multi30k_unsupervised_tiny {r}/u --init {r}/captions {d} {short}",
        f"evaluate {r}/u --backward {d} --split validation[:64]",
        f"train multi30k_bart_tiny {r}/b --init {r}/bart {d} {short} "
        "--set task.first_stage_steps=5",
        f"train bert_tiny {r}/own {d} {short} --set model.block=my_parts:ChannelsFirst",
        f"train gpt_tiny {r}/gate {d} {short} --set model.block=my_operator:GateBlock",
        f"train bert_tiny {r}/z {d} {short} --set objective=my_objective:WithZLoss",
        f"train multi30k_transformer_tiny {r}/splitting {d} {short} "
        "--set 'model.scheme=channels/2 width 1, tokens, channels/2 width 1'",
        f"look {r}/swish 'a man sleeps' --out {out}/look",
        "tasks",
        "settings finetune:classify table",
        f"train finetune:classify {r}/mine --set data.source=tsv:{out}/mine.tsv --init {r}/swish "
        f"{tune}",
        f"train finetune:rte {r}/rte --init {r}/swish {d} {tune}",
        f"evaluate {r}/rte {d}",
        f"predict {r}/rte 'Two men sleep.\tMen sleep.'",
        f"compare {r}/tasks bert={r}/bert swish={r}/swish --tasks cola rte --seeds 1 --jobs 1 "
        f"{tune} {d}",
        f"train finetune_bert:squad {r}/squad --init {r}/bert {d} {tune} "
        "--set data.spans.max_question=16",
        f"train finetune_bert:conll2003 {r}/conll --init {r}/bert {d} {tune}",
        f"predict {r}/gpt2 'The story of' --set top_p=0.9 --set seed=7 --set max_tokens=8",
        f"score {r}/gpt2 {out}/lines.txt",
        f"few_shot {r}/gpt2 --task rte --shots 0 1 --max-examples 20 {d} --out {out}/scores",
        f"train text_to_text:sst2 {r}/t5-sst2 --init {r}/t5 {d} {answer}",
        f"predict {r}/t5-sst2 'a fine film'",
        f"train text_to_text:sst2+cola+rte {r}/t5-all --init {r}/t5 {d} {answer} "
        "--set data.mixing.limit=8192",
        f"prepare transformer_xl_tiny {out}/xl {d}",
        f"train transformer_xl_tiny {r}/xl --corpus {out}/xl {short}",
        f"evaluate {r}/xl --corpus {out}/xl --set objective.memory_length=32",
        f"train elmo_tiny {r}/elmo {d} {short}",
        f"predict {r}/elmo --input {out}/lines.txt --json",
        f"train finetune_elmo:rte {r}/elmo-rte --init {r}/elmo {d} {tune}",
        f"train sentence_bert:stsb {r}/sts --init {r}/bert {d} {tune}",
        f"evaluate {r}/sts {d}",
        f"predict {r}/sts --input {out}/lines.txt --output {out}/v.npy",
        f"train bert_tiny {r}/mirrored --corpus {out}/corpus {short} --strategy mirrored "
        "--replicas 2",
        *(f"export {r}/{name} {out}/served/{name}" for name in exported.split()),
        f"compare {out}/compare {d} --seeds 1 {short}",
        f"compare {out}/own own=my_block:Mine --seeds 1 {short}",
        f"compare {out}/probes own=my_block:Mine --probes parity --seeds 1 {short}",
        f"probe gpt_probe recall {r}/recall {short}",
        f"compare {out}/norms bert_tiny swish_rnn_tiny --corpus {out}/corpus --seeds 1 {short}",
        f"compare {out}/schemes "
        "'outside=multi30k_macaron_tiny:model.scheme=tokens/2, channels, tokens/2' "
        f"macaron=multi30k_macaron_tiny --equal parameters --seeds 1 {d} {short} "
        "--set task.average_last=2",
        f"compare {out}/tuned bert=finetune:rte:init={r}/bert swish=finetune:rte:init={r}/swish "
        f"--seeds 1 {d} {tune}",
    ]  # fmt: skip


def run(line: str, log) -> bool:
    """Runs a command with its output in the log; returns whether it succeeded."""
    log.write(f"\n$ macaron {line}\n")
    log.flush()
    paths = [str(pathlib.Path(log.name).parent), os.environ.get("PYTHONPATH", "")]
    env = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths))}  # for `write_modules`
    command = [MACARON, *shlex.split(line)]
    return subprocess.run(command, stdout=log, stderr=log, env=env).returncode == 0


def serve(folder: pathlib.Path, log) -> bool:
    """Serves an exported translator and requests one translation; returns whether it succeeded."""
    command = [MACARON, "serve", str(folder), "--port", "0"]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
    try:
        url = server.stdout.readline().split()[-1]
        ask = [sys.executable, "-m", "experiments.examples.ask_server", folder.name]
        ask += ["A man is riding.", "--url", url]
        return subprocess.run(ask, stdout=log, stderr=log).returncode == 0
    finally:
        server.terminate()
        server.wait()


def main() -> int:
    """Runs the walk; returns 1 if a command failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.walk", description=__doc__)
    parser.add_argument("data_dir", help="a TensorFlow Datasets folder")
    parser.add_argument("out", help="folder for runs, corpora, exports and the log")
    parser.add_argument("--only", nargs="+", default=[""], help="commands that hold these words")
    options = parser.parse_args()
    out = pathlib.Path(options.out)
    out.mkdir(parents=True, exist_ok=True)
    (out / "lines.txt").write_text("the story of a man\na woman in the house\n")
    (out / "mine.tsv").write_text("sentence\tlabel\n" + "a fine film\tfilm\nno page\tweb\n" * 50)
    for page in (ROOT / "README.md", *(ROOT / "docs").glob("*.md")):
        write_modules(out, page.read_text(encoding="utf-8"))
    done_file, failed = out / "done.txt", []
    done = set(done_file.read_text().splitlines()) if done_file.exists() else set()
    with (out / "log.txt").open("a") as log:
        lines = commands(options.data_dir, out)
        todo = [(line, functools.partial(run, line, log)) for line in lines]
        todo.append(("serve and ask", lambda: serve(out / "served" / "m30k", log)))
        for position, (name, function) in enumerate(todo, 1):
            if name in done or not any(word in name for word in options.only):
                continue
            start = time.monotonic()
            succeeded = function()
            result = f"{'ok' if succeeded else 'FAILED'} {time.monotonic() - start:5.0f} s  {name}"
            print(f"[{position}/{len(todo)}] {result}", flush=True)
            if not succeeded:
                failed.append(name)
                continue
            with done_file.open("a") as file:
                file.write(name + "\n")
    print(f"{len(failed)} of {len(todo)} failed; output: {out / 'log.txt'}")
    return int(bool(failed))


if __name__ == "__main__":
    raise SystemExit(main())
