"""Docstrings as the API reference shows them: doctests become blocks of code, and roles become names.

An extension of griffe, which reads the docstrings for mkdocstrings.
"""

import re
from typing import Any

import griffe


def markdown(text: str) -> str:
    """A docstring as Markdown.

    >>> markdown("See :class:`~a.B`.")
    'See `a.B`.'
    >>> markdown("Sum:\\n\\n>>> 1 + 1\\n2\\n\\nEnd.")
    'Sum:\\n\\n```pycon\\n>>> 1 + 1\\n2\\n```\\n\\nEnd.'
    """
    text = re.sub(r":\w+:`~?([\w.]+)`", r"`\1`", text)
    text = re.sub(r"::$", ":", text, flags=re.MULTILINE)
    return re.sub(r"^>>> (?:.|\n(?!\n))*", r"```pycon\n\g<0>\n```", text, flags=re.MULTILINE)


class Doctests(griffe.Extension):
    """Rewrites each docstring before it is parsed."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Rewrite the docstring of one object."""
        if obj.docstring is not None:
            obj.docstring.value = markdown(obj.docstring.value)
