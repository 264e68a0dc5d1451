"""Links between pages lead somewhere, the index is whole, and the settings page is up to date."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from docs import settings_page

ROOT = Path(__file__).parents[3]
INDEX = ROOT / "docs" / "README.md"
PAGES = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), ROOT / "tests" / "README.md"]


def text_of(page: Path) -> str:
    """A page without its code blocks."""
    return re.sub(r"(?ms)^```.*?^```", "", page.read_text(encoding="utf-8"))


def links(page: Path) -> list[tuple[str, str]]:
    """Path and anchor, either of which may be empty, of each link that stays in the project."""
    targets = re.findall(r"\]\(([^)\s]+)\)", text_of(page))
    return [
        (path, anchor)
        for path, _, anchor in (target.partition("#") for target in targets)
        if ":" not in path
    ]


def anchors(page: Path) -> set[str]:
    """Anchors that GitHub gives the headings of a page."""
    headings = re.findall(r"(?m)^#+ (.+)$", text_of(page))
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_every_link_leads_to_a_file_and_a_heading(page: Path) -> None:
    dead = []
    for path, anchor in links(page):
        target = page.parent / path if path else page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            dead.append(f"{path}#{anchor}")
    assert dead == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_every_import_in_an_example_works(page: Path) -> None:
    blocks = re.findall(r"(?ms)^```python\n(.*?)^```", page.read_text(encoding="utf-8"))
    for line in re.findall(r"(?m)^from \S+ import .+$", "\n".join(blocks)):
        exec(line, {})


def test_every_page_is_in_the_index() -> None:
    listed = {(INDEX.parent / path).resolve() for path, _ in links(INDEX)}
    pages = {page.resolve() for page in INDEX.parent.rglob("*.md")} - {INDEX.resolve()}
    assert pages - listed == set()


def test_the_settings_page_is_what_make_docs_writes() -> None:
    assert settings_page.PAGE.read_text(encoding="utf-8") == settings_page.page()


def test_every_setting_has_a_meaning() -> None:
    rows = [line for line in settings_page.page().splitlines() if line.startswith("| `")]
    assert len(rows) > 100
    assert [row for row in rows if row.endswith("|  |")] == []


def test_the_messages_of_the_troubleshooting_page_are_those_of_the_code() -> None:
    page = (INDEX.parent / "troubleshooting.md").read_text(encoding="utf-8")
    shown = re.findall(r"(?m)^\| `([^`]+)`", page)
    said = "\n".join(messages())
    patterns = {text: ".*".join(re.escape(part) for part in text.split("…")) for text in shown}
    assert len(shown) > 25
    assert [text for text, pattern in patterns.items() if not re.search(pattern, said)] == []


def messages() -> Iterator[str]:
    """Texts in the code, one a line; `…` stands for what is filled in."""
    for package in ("rl_service", "custom_models"):
        for path in (ROOT / package).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                match node:
                    case ast.Constant(value=str(text)):
                        yield text.replace("\n", " ")
                    case ast.JoinedStr(values=parts):
                        yield "".join(
                            str(part.value) if isinstance(part, ast.Constant) else "…"
                            for part in parts
                        )
