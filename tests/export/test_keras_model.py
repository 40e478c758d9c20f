import pytest

from export.keras_model import main


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--decoding", "{beam"], "--decoding {beam: "),
        (["--decoding", '{"beams": 4}'], "beams"),
        (["--decoding", '{"beam_size": 0}'], "beam_size=0 must be"),
        ([], "nowhere.keras is no model that Keras saved"),
    ],
)
def test_bad_input_is_one_sentence(arguments, sentence, tmp_path, capsys):
    model = str(tmp_path / "nowhere.keras")
    assert main([model, str(tmp_path), str(tmp_path / "out"), *arguments]) == 2
    assert sentence in capsys.readouterr().err and not (tmp_path / "out").exists()
