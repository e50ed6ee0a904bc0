"""The documentation is run: examples, commands, configuration, links, the site's navigation and the translations."""

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from cloudedge.config import Config
from tests import ROOT

DOCS = ROOT / "docs"
PAGES = sorted([*ROOT.glob("*.md"), *DOCS.glob("**/*.md"), *ROOT.glob("examples/**/*.md")])
ENVIRONMENT = os.environ | {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
TRANSLATED = {DOCS / "zh/ctr.md": DOCS / "tutorials/ctr.md", DOCS / "zh/edge.md": DOCS / "tutorials/edge.md"}


def name_of(page):
    return page.relative_to(ROOT).as_posix()


def blocks(page, language):
    return re.findall(rf"```{language}\n(.*?)```", page.read_text(), flags=re.DOTALL)


def without_code(text):
    text = re.sub(r"^( *)```.*?^\1```$", "", text, flags=re.DOTALL | re.MULTILINE)
    return re.sub(r"`[^`\n]*`", "", re.sub(r"^ {4}.*$", "", text, flags=re.MULTILINE))


def anchors(page):
    """The anchors of a page's headings, as the site and code hosts make them."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    headings = re.findall(r"^#+ (.+)$", text, flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parts
def test_the_demo_runs():
    done = subprocess.run(
        [sys.executable, ROOT / "examples/first_bundle/run.py"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "ctr:2 again: sent 0 bytes" in done.stdout


CONSOLES = [page for page in PAGES if blocks(page, "console")]


@pytest.mark.parts
@pytest.mark.parametrize("page", CONSOLES, ids=name_of)
def test_console_blocks_run(page, tmp_path):
    """The console blocks of a page are one session in an empty folder."""
    script = re.sub(r"^\$ ", "", "".join(blocks(page, "console")), flags=re.MULTILINE)
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script],
        cwd=tmp_path,
        env=ENVIRONMENT | {"CLOUDEDGE_HOME": str(tmp_path / "home")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.rules
def test_the_documented_configuration_is_understood():
    (text,) = blocks(DOCS / "reference/configuration.md", "yaml")
    config = Config.model_validate(yaml.safe_load(text))
    assert set(config.hubs) == {"office", "prod", "bucket"}


@pytest.mark.rules
def test_every_setting_is_documented():
    page = (DOCS / "reference/configuration.md").read_text()
    for section in (Config, *(type(getattr(Config(), name)) for name in ("limits",))):
        for name in section.model_fields:
            assert f"`{name}`" in page or f"## {name}" in page, name


@pytest.mark.rules
@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_lead_somewhere(page):
    for target, anchor in re.findall(r"\]\(([^)#\s]*)(?:#([^)\s]*))?\)", without_code(page.read_text())):
        if "://" in target:
            continue
        there = page.parent / target if target else page
        assert there.is_file(), target
        if anchor:
            assert anchor in anchors(there), f"{target}#{anchor}"


@pytest.mark.rules
def test_pages_that_the_code_names_exist():
    """Hints of error messages, comments and examples name pages by their path in the repository."""
    named = {}
    for folder in ("cloudedge", "dockerfiles", "examples", "native", "tests"):
        for path in (ROOT / folder).rglob("*"):
            if path.suffix in {".py", ".hpp", ".cpp", ".yaml", ".sh", ".md", ".Dockerfile"}:
                found = re.findall(r"(?<![\w/.-])docs/[\w/-]+\.md", path.read_text(errors="replace"))
                named.update(dict.fromkeys(found, path))
    assert named
    for page, path in named.items():
        assert (ROOT / page).is_file(), f"{path}: {page}"


def entries(nav):
    for entry in nav:
        value = next(iter(entry.values())) if isinstance(entry, dict) else entry
        yield from entries(value) if isinstance(value, list) else [value]


def site_hook():
    spec = importlib.util.spec_from_file_location("site_hook", DOCS / "_site.py")
    hook = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(hook)
    return hook


@pytest.mark.rules
def test_the_navigation_names_every_page_once():
    """Pages in docs/ by their path there; those that docs/_site.py brings in by their path in the repository."""
    site = yaml.safe_load((ROOT / "mkdocs.yml").read_text())
    assert sorted(entries(site["nav"])) == sorted(site_hook().place(name_of(page)) for page in PAGES)


@pytest.mark.rules
def test_the_site_brings_in_every_page_outside_docs():
    hook = site_hook()
    outside = {name_of(page) for page in PAGES if not page.is_relative_to(DOCS)}
    assert {path.relative_to(ROOT).as_posix() for pattern in hook.OUTSIDE for path in ROOT.glob(pattern)} == outside
    assert hook.moved("../../examples/ctr/README.md", "docs/tutorials/ctr.md") == "../examples/ctr/README.md"
    assert hook.moved("../../docs/tutorials/ctr.md", "examples/ctr/README.md") == "../../tutorials/ctr.md"
    assert hook.moved("README.md", "README.zh.md") == "README.en.md"
    assert hook.moved("https://example.com", "README.zh.md") == "https://example.com"


@pytest.mark.rules
def test_the_api_reference_names_packages_that_exist():
    named = [
        name
        for page in DOCS.glob("reference/api/*.md")
        for name in re.findall(r"^::: (\S+)", page.read_text(), re.MULTILINE)
    ]
    assert len(named) == len(set(named)) >= 13
    for name in named:
        assert importlib.util.find_spec(name), name


@pytest.mark.rules
def test_every_diagram_is_drawn_and_shown():
    drawn = {path.stem for path in DOCS.glob("diagrams/*.svg")}
    assert drawn == {path.stem for path in DOCS.glob("diagrams/*.dot")}
    shown = {name for page in PAGES for name in re.findall(r"diagrams/([\w-]+)\.svg\)", page.read_text())}
    assert drawn == shown


@pytest.mark.rules
def test_the_list_of_decisions_is_whole_and_each_has_status_and_date():
    pages = {path.name for path in DOCS.glob("decisions/*.md")} - {"README.md"}
    index = (DOCS / "decisions/README.md").read_text()
    assert set(re.findall(r"^\| \[.*?\]\(([\w-]+\.md)\)", index, flags=re.MULTILINE)) == pages
    for name in pages:
        head = (DOCS / "decisions" / name).read_text().split("\n\n")[1]
        assert re.fullmatch(
            r"Status: (accepted|superseded by \[.*\]\(.*\)|withdrawn)  \nDate: \d{4}-\d\d-\d\d", head
        ), name


def commands(text):
    """The commands of a page, without the comments behind them."""
    code = re.findall(r"^ {4}\S.*$", text, flags=re.MULTILINE)
    code += re.findall(r"```(?:console|python|sh)\n(.*?)```", text, flags=re.DOTALL)
    return [re.sub(r"\s+#\s.*$", "", line, flags=re.MULTILINE) for line in code]


def figures(text):
    return sorted(re.findall(r"\d[\d,.]*\d|\d", text))


@pytest.mark.rules
def test_both_readmes_say_the_same():
    """The same commands in the same order; tables of the same rows, each with the same code, links and figures."""
    english, chinese = ((ROOT / name).read_text() for name in ("README.md", "README.zh.md"))
    assert commands(chinese) == commands(english)
    rows = [re.findall(r"^\|.*\|$", text, flags=re.MULTILINE) for text in (english, chinese)]
    assert len(rows[0]) == len(rows[1]) > 20
    for ours, theirs in zip(*rows, strict=True):
        assert ours.count("|") == theirs.count("|")
        assert sorted(re.findall(r"`[^`]+`", theirs)) == sorted(re.findall(r"`[^`]+`", ours))
        assert re.findall(r"\]\(([^)]+)\)", theirs) == re.findall(r"\]\(([^)]+)\)", ours)
        assert figures(theirs) == figures(ours)
    assert english.count("\n## ") == chinese.count("\n## ")


@pytest.mark.rules
@pytest.mark.parametrize(("translation", "original"), TRANSLATED.items(), ids=[name_of(page) for page in TRANSLATED])
def test_translated_tutorials_show_the_same_commands(translation, original):
    for language in ("sh", "text"):
        assert blocks(translation, language) == blocks(original, language)
    assert commands(translation.read_text()) == commands(original.read_text())


@pytest.mark.parts
@pytest.mark.timeout(300)
def test_the_site_builds(tmp_path):
    """``make docs``, where its tools are installed; broken links and anchors are errors."""
    mkdocs = shutil.which("mkdocs", path=f"{ROOT / '.venv-docs/bin'}{os.pathsep}{os.environ['PATH']}")
    if not mkdocs:
        pytest.skip("mkdocs is not installed: `make docs` installs it into .venv-docs")
    done = subprocess.run(
        [mkdocs, "build", "--strict", "--site-dir", tmp_path / "site"],
        cwd=ROOT,
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    front = (tmp_path / "site/index.html").read_text()
    assert "https://fonts" not in front
    assert "//cdn" not in front
    assert (tmp_path / "site/search/search_index.json").is_file()
    assert "cloudedge.bundle.Bundle" in (tmp_path / "site/reference/api/bundle/index.html").read_text()
