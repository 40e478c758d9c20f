"""The committed results stay small, and no file names a path of the machine that made it."""

import pathlib
import re

ROOT = pathlib.Path(__file__).parents[1]
FILES = [path for path in (ROOT / "experiments" / "results").rglob("*") if path.is_file()]
TEXTS = {
    path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8")
    for path in FILES
    if path.suffix != ".png"
}


def test_the_results_are_small():
    assert len(FILES) <= 70 and sum(path.stat().st_size for path in FILES) <= 1_500_000
    assert {path.suffix for path in FILES} <= {".md", ".json", ".png"}


def test_no_result_has_a_path_of_a_machine():
    for name, text in TEXTS.items():
        assert not re.findall(r"(?<![\w.:<)/}-])/\w+/\w+|\.\./shared|\b[A-Z]:\\", text), name


def test_every_figure_is_shown():
    linked = set()
    for name, text in TEXTS.items():
        if name.endswith(".md"):
            for target in re.findall(r"\]\(([^)#\s]+)", text):
                linked.add((ROOT / name).parent.joinpath(target).resolve())
    assert not [path for path in FILES if path.suffix == ".png" and path not in linked]
