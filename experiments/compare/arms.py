"""Arms, which are the compared variants, and the tasks on which pre-trained models are compared."""

import dataclasses
import re
from collections.abc import Sequence
from typing import Any

from experiments import registry
from macaron_tf.errors import UserError
from macaron_tf.io.plug_ins import find, import_module, is_import_path, origin_of, vars_of
from macaron_tf.layers import BLOCKS, Block
from macaron_tf.runs.finetuning import FinetuningRecipe


def recipes_of_tasks(tasks: Sequence[str]) -> list[str]:
    """Returns the recipes that `--tasks` names, such as "finetune:rte" for the value "rte"."""
    recipes = [task if ":" in task else f"finetune:{task}" for task in tasks]
    for recipe in recipes:
        registry.load(recipe, FinetuningRecipe)
    return recipes


def task_of(recipe: str) -> str:
    """Returns the task of a recipe, such as "rte" for "finetune:rte"."""
    return recipe.rpartition(":")[2]


@dataclasses.dataclass(frozen=True)
class Arm:
    """One of the compared variants, which is a recipe with changed settings.

    The form on the command line is `[NAME=]RECIPE[:PATH=VALUE,...]`. A value may contain commas,
    because a setting ends only at a comma before `PATH=`. The recipe may be a user's function, as
    `FILE.py[:NAME]` or `package.module:NAME`, and may have a task, as in `finetune:rte`. Instead of
    a recipe, a key of `BLOCKS`, `FILE.py[:CLASS]` or `package.module:CLASS` is a block for the
    recipe of another arm.

    Attributes:
        name: name in tables and folders, by default the name of the recipe or of the class.
        recipe: name of the recipe; "" for a block until the recipe is known.
        task: task from `--tasks` on which this arm, a pre-trained model, is fine-tuned, or probe
            from `--probes`; `None` for an arm that is a recipe.
        rate: learning rate from `--rates` at which this arm is trained; `None` without that flag.
    """

    name: str
    recipe: str
    settings: tuple[str, ...]
    rate: float | None = None
    task: str | None = None

    @classmethod
    def parse(cls, text: str) -> "Arm":
        pattern = r"(?:([^=:]+)=)?([^:]*(?::[A-Za-z_][\w+]*(?=:|$)){0,2}):?(.*)"
        name, recipe, settings = re.fullmatch(pattern, text, re.S).groups()
        parts = re.split(r",\s*(?=[a-z_]+(?:\.\w+)*=)", settings) if settings else []
        if recipe in BLOCKS or (
            recipe.partition(":")[0] not in registry.FAMILY_OF and _names_block(recipe)
        ):
            own = None if recipe in BLOCKS else find(recipe, Block, trust_code=True).__name__
            name, parts, recipe = name or own or recipe, [f"model.block={recipe}", *parts], ""
        name = name or recipe.replace(":", "-")
        if not re.fullmatch(r"[\w.+-]+", name):
            characters = "letters, digits, '_', '.', '+' and '-'"
            raise UserError(f"the name {name!r} of the arm {text!r} must consist of {characters}")
        return cls(name, recipe, tuple(parts))

    @classmethod
    def of_start(cls, text: str, recipe: str) -> "Arm":
        """Parses `[NAME=]FROM[:PATH=VALUE,...]`, a pre-trained model to fine-tune by `recipe`.

        NAME is by default the last part of FROM.
        """
        pattern = r"(?:([\w.+-]+)=)?(.+?)(?::([a-z_]+(?:\.\w+)*=.*))?"
        name, location, settings = re.fullmatch(pattern, text, re.S).groups()
        name = name or re.split("[/:]", location.rstrip("/"))[-1]
        arm = cls.parse(f"{name}={recipe}:{settings or ''}")
        return arm.changed(f"init={location}", task=task_of(recipe))

    @property
    def label(self) -> str:
        """Name, task and learning rate of the arm, for the names of its folders."""
        task = "" if self.task is None else f"-{self.task}"
        return f"{self.name}{task}" + ("" if self.rate is None else f"-lr{self.rate:g}")

    def changed(self, *settings: str, **values: Any) -> "Arm":
        """Returns a copy with other fields and with settings in place of those of the same path."""
        paths = {setting.partition("=")[0] for setting in settings}
        unchanged = (setting for setting in self.settings if setting.partition("=")[0] not in paths)
        return dataclasses.replace(self, settings=(*unchanged, *settings), **values)

    def sets(self, path: str) -> bool:
        """Returns whether the arm sets the setting with the path `path`."""
        return any(setting.partition("=")[0] == path for setting in self.settings)


def _names_block(location: str) -> bool:
    """Returns whether code of the user is a class, or else is in a module of blocks alone."""
    if not is_import_path(location) or origin_of(location) is None:
        return False
    module, _, attribute = location.partition(":")
    module = import_module(module)
    has_only_blocks = vars_of(module, Block) and not vars_of(module, None)
    value = vars(module).get(attribute)
    return isinstance(value, type) or (value is None and bool(has_only_blocks))
