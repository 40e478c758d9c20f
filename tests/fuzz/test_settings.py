"""Fuzz tests of the settings of every recipe type, in the form of `--set`."""

import functools

from tests.fuzz.profiles import examples, hypothesis, strategies, survive, values  # isort: skip

from experiments import registry
from macaron_tf.runs.recipe import recipe_from_json, settings_of

OF_TASKS = ("finetune:squad", "sentence_bert:snli", "text_to_text:sst2+cola")


@functools.cache
def known() -> list[tuple[str, str, str]]:
    """Returns (recipe name, path, value) for every setting of each recipe and model type."""
    found = {}
    for name in [*registry.names(), *OF_TASKS]:
        recipe = registry.load(name)
        kinds = type(recipe), type(recipe.model_config())
        for path, value, _, _ in settings_of(recipe):
            found.setdefault((kinds, path), (name, path, value))
    return list(found.values())


def check(name: str, settings: list[str]) -> None:
    """Asserts that settings are refused, or that the recipe is unchanged by a JSON round trip."""
    recipe = survive(registry.load, name, settings=settings)
    if recipe is None or survive(recipe.model_config) is None:
        return
    survive(recipe.make_objective)
    again = recipe_from_json(recipe.to_json(), "recipe.json")
    assert again.to_json() == recipe.to_json()


@examples(600, 800)
@hypothesis.given(strategies.data())
def test_any_value_of_any_setting(data):
    name, path, _ = data.draw(strategies.sampled_from(known()))
    others = [row for row in known() if row[0] == name]
    settings = [f"{path}={data.draw(values)}"]
    if data.draw(strategies.booleans()):
        _, path, value = data.draw(strategies.sampled_from(others))
        settings.append(f"{path}={data.draw(values | strategies.just(value))}")
    check(name, settings)


@examples(50, 100)
@hypothesis.given(strategies.sampled_from(["demo", "bert_tiny", "tcn_adding", "elmo_tiny"]), values)
def test_any_words(name, words):
    check(name, [words])
    survive(registry.load, words)
    check(name, [f"{words}=1"])
