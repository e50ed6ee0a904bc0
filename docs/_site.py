"""The site's hook for MkDocs: brings pages from outside ``docs/`` into the site and keeps their links right.

MkDocs only knows ``docs/``. The changelog, the security policy, the Chinese README and the examples' READMEs stay where
a reader of the repository looks for them, and every page links to others as the repository has them. The hook adds each
page under its path in the repository, together with every file that a page links to, and rewrites links from the
repository's tree to the site's. README.md is README.en.md there, since MkDocs would take it for the front page.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

ROOT = Path(__file__).parent.parent
OUTSIDE = ("CHANGELOG.md", "CONTRIBUTING.md", "README.md", "README.zh.md", "SECURITY.md", "examples/*/README.md")
LINK = re.compile(r"(\]\()([^)#\s]+)((?:#[^)\s]*)?\))")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages from outside ``docs/``, and the files that any page links to there."""
    from mkdocs.structure.files import File  # noqa: PLC0415 - tests import this module without MkDocs

    added = {path.relative_to(ROOT).as_posix() for pattern in OUTSIDE for path in ROOT.glob(pattern)}
    pages = [*added, *(f"docs/{file.src_uri}" for file in files.documentation_pages())]
    for page in pages:
        for target in linked(page):
            if (ROOT / target).is_file() and not target.startswith("docs/"):
                added.add(target)
    for path in sorted(added):
        files.append(File.generated(config, place(path), abs_src_path=str(ROOT / path)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Rewrite links that lead from one tree to the other."""
    del config, files
    home = Path(page.file.abs_src_path or "").relative_to(ROOT).as_posix()
    return LINK.sub(lambda found: found[1] + moved(found[2], home) + found[3], markdown)


def linked(page: str) -> set[str]:
    """The repository's paths that a page links to."""
    targets = {found[2] for found in LINK.finditer((ROOT / page).read_text())}
    return {resolved(target, page) for target in targets if "://" not in target}


def moved(target: str, home: str) -> str:
    """A link of the page ``home`` as the site has it."""
    if "://" in target:
        return target
    start = Path(place(home)).parent
    return Path(os.path.relpath(place(resolved(target, home)), start)).as_posix()


def resolved(target: str, page: str) -> str:
    """The repository's path that a link of a page means."""
    return Path(os.path.normpath(Path(page).parent / target)).as_posix()


def place(path: str) -> str:
    """The path in the site of a path in the repository."""
    return "README.en.md" if path == "README.md" else path.removeprefix("docs/")
