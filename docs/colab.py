"""Links that open the notebooks in Colab, where the build of the site knows the repository's address.

A hook of MkDocs. GitHub's workflows set `GITHUB_REPOSITORY` to a name such as `owner/name`; without it no link is made.
"""

import os
from pathlib import Path
from typing import Any

_ADDRESS = "https://colab.research.google.com/github"


def buttons(repository: str, notebooks: list[str]) -> str:
    """The links as Markdown.

    >>> print(buttons("me/name", ["resume.ipynb"]).strip())
    [resume in Colab](https://colab.research.google.com/github/me/name/blob/main/notebooks/resume.ipynb){ .md-button }
    """
    links = (
        f"[{name.removesuffix('.ipynb')} in Colab]({_ADDRESS}/{repository}/blob/main/notebooks/{name}){{ .md-button }}"
        for name in notebooks
    )
    return "\n\n" + "\n".join(links)


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Add the links to the end of the page that names the notebooks. MkDocs calls this for each page."""
    repository = os.environ.get("GITHUB_REPOSITORY", "")
    if page.file.src_uri != "start.md" or not repository:
        return markdown
    return markdown + buttons(repository, sorted(path.name for path in Path("notebooks").glob("*.ipynb")))
