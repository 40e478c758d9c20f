"""The demo runs all of its stages, on a toy corpus."""

import pytest

from macaron_tf.__main__ import main
from tests.toys.numbers import number_settings


@pytest.mark.slow
def test_all_stages_follow_each_other(number_text, tmp_path, capfd):
    settings = [*number_settings(number_text, 50), "data.test_split=validation"]
    flags = [word for setting in settings for word in ("--set", setting)]
    assert main(["demo", "--run", str(tmp_path / "run"), *flags]) == 0
    out = capfd.readouterr().out
    stages = [line for line in out.splitlines() if line.startswith("[") and "/4] " in line]
    assert [stage[:6] for stage in stages] == ["[1/4] ", "[2/4] ", "[3/4] ", "[4/4] "]
    assert "sacreBLEU" in out and (tmp_path / "run/served/1/saved_model.pb").is_file()
    _, answer = out.split("response of the server:\n")
    assert answer.partition("\n\n")[2].startswith("Done in ")
