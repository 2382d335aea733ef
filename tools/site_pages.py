"""Pages of the site that no file of docs holds, as a hook of mkdocs.

The changelog, the guide for contributors and the security policy lie at the root of the repository,
where people and hosts look for them. The reference of the API follows the table of names in
docs/python.md, which a test holds against what the package exports.
"""

import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parent.parent
PAGES = {
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
}
LINK = re.compile(r"\[([^\]]+)\]\(([\w/.-]+)(#[\w-]+)?\)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages."""
    contents = {name: from_root((ROOT / source).read_text()) for source, name in PAGES.items()}
    contents["api.md"] = api((ROOT / "docs" / "python.md").read_text())
    for name, content in contents.items():
        files.append(File.generated(config, name, content=content))
    return files


def from_root(page: str) -> str:
    """Return a page of the root with its links as the site needs them.

    What the site does not have, such as a test, is named without a link.
    """

    def link(match: re.Match[str]) -> str:
        text, target, anchor = match.groups()
        if target.startswith("docs/"):
            return f"[{text}]({target.removeprefix('docs/')}{anchor or ''})"
        return f"[{text}]({PAGES[target]}{anchor or ''})" if target in PAGES else f"`{text}`"

    return LINK.sub(link, page)


def api(page: str) -> str:
    """Return the page of the API: a section for each row of the table of names."""
    table = page[page.index("| for | names |") :].split("\n\n")[0]
    lines = ["# API", "", "Everything here is imported from `pfedfda` itself.", ""]
    for row in table.splitlines()[2:]:
        _, title, names, _ = (cell.strip() for cell in row.split("|"))
        lines += [f"## {title[0].upper()}{title[1:]}", ""]
        for name in re.findall(r"`(\w+)`", names):
            lines += [f"::: pfedfda.{name}", ""]
    return "\n".join(lines)
