"""Modules that the pages of the documentation show."""

import pathlib
import re
import textwrap


def write_modules(out: pathlib.Path, text: str) -> list[str]:
    """Writes the modules that a page shows; returns their names.

    They are Python blocks that begin with `# NAME.py`, and texts that `cat > NAME.py` writes.
    """
    matches = re.findall(r"```python\n(# (\w+)\.py\n.*?)```", text, re.S)
    written = re.findall(r"^    cat > (\w+)\.py <<'END'\n(.*?)^    END$", text, re.S | re.M)
    matches += [(textwrap.dedent(code), name) for name, code in written]
    for code, name in matches:
        (out / f"{name}.py").write_text(code, encoding="utf-8")
    return [name for _, name in matches]
