"""The page about the command: what `lrnets VERB --help` prints, asked when the pages are built."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from typing import Any

MARK = "<!-- the help of every verb -->"


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Put the help of every verb in the place of the mark."""
    return markdown.replace(MARK, all_help()) if MARK in markdown else markdown


def all_help() -> str:
    """A section for the command and one for each verb."""
    overview = help_of()
    names = re.findall(r"^ {4}([a-z]+) ", overview, re.MULTILINE)
    sections = [f"```text\n{overview}```"]
    sections += [f"## lrnets {name}\n\n```text\n{help_of(name)}```" for name in names]
    return "\n\n".join(sections)


def help_of(*verb: str) -> str:
    command = [sys.executable, "-m", "lrnets.cli", *verb, "--help"]
    plain = {**os.environ, "COLUMNS": "86", "NO_COLOR": "1"}
    return subprocess.run(command, capture_output=True, text=True, check=True, env=plain).stdout
