"""What is put into the pages when they are built."""

import argparse
import importlib.util
from pathlib import Path

import pytest

from lrnets.cli_arguments import command_parser

HOOKS = Path(__file__).parents[2] / "docs/hooks"


def hook(name: str):
    spec = importlib.util.spec_from_file_location(f"hook_{name}", HOOKS / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_help_of_every_verb_is_on_the_page():
    page = hook("commands").on_page_markdown("before\n\n<!-- the help of every verb -->\n")
    (verbs,) = (
        action.choices for action in command_parser()._actions if isinstance(action, argparse._SubParsersAction)
    )  # fmt: skip
    assert page.startswith("before\n\n```text\nusage: lrnets [-h] [--version] VERB")
    assert [f"## lrnets {name}\n\n```text\nusage: lrnets {name} " in page for name in verbs] == [True] * len(verbs)
    assert "--resume" in page
    assert hook("commands").on_page_markdown("nothing to do") == "nothing to do"


def test_cells_become_prose_and_code():
    prose = "# %% [markdown]\n# # Title\n#\n# Some *prose*.\n#\n#     indented\n\n"
    script = f"{prose}# %%\nx = 1  # %\n\n\n# %%\n\n# %%\ny = 2\n"
    assert hook("cells").as_markdown(script) == (
        "# Title\n\nSome *prose*.\n\n    indented\n\n```python\nx = 1  # %\n```\n\n```python\ny = 2\n```"
    )
    with pytest.raises(ValueError, match="begins with 'import os'; put it into a cell"):
        hook("cells").as_markdown("import os\n# %%\nx = 1\n")


@pytest.mark.parametrize("page", ["ternary-mnist", "convert-your-own"])
def test_pages_of_scripts_have_all_of_their_code(page):
    text = hook("cells").on_page_markdown((HOOKS.parent / f"examples/{page}.md").read_text())
    script = (HOOKS.parents[1] / f"examples/{page.replace('-', '_')}.py").read_text()
    code = [line for line in script.splitlines() if line and not line.startswith("#")]
    assert code
    assert all(line in text.splitlines() for line in code)


def test_formulas_become_mathml():
    pytest.importorskip("latex2mathml", reason="comes with `make docs`")
    inline = r'<p>with <span class="arithmatex">\(a &lt; b\)</span> in it</p>'
    display = '<div class="arithmatex">\\[ v^2 =\nm \\]</div>'
    page = hook("mathml").on_page_content(inline + display)
    assert page.count("<math ") == 2
    assert "arithmatex" not in page
    assert '<span class="formula"><math xmlns="http://www.w3.org/1998/Math/MathML" display="inline">' in page
    assert "<mi>a</mi>" in page
    assert '<div class="formula"><math xmlns="http://www.w3.org/1998/Math/MathML" display="block">' in page
    assert "<msup>" in page
