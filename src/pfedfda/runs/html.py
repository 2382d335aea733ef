"""Results as a small table in a notebook."""

import html
from collections.abc import Mapping, Sequence

from pfedfda.errors import printable

COLUMNS = {
    "mean_accuracy": "mean accuracy",
    "std_accuracy": "std over clients",
    "weighted_accuracy": "weighted",
    "worst_tenth_accuracy": "worst tenth",
    "mean_balanced_accuracy": "balanced",
    "pooled_ece": "ECE",
}


def results_html(rows: Sequence[tuple[str, Mapping[str, float | None]]], folder: object) -> str:
    """Return a table of results.

    Parameters
    ----------
    rows
        For each run the name of its method and its numbers by name, as far as they are known.
    folder
        Where the files are.
    """
    known = {name: text for name, text in COLUMNS.items() if any(r[1].get(name) for r in rows)}
    head = "".join(f"<th>{text}</th>" for text in ("method", *known.values()))
    body = "".join(
        f"<tr><th>{_escape(method)}</th>"
        + "".join(f"<td>{_number(numbers.get(name))}</td>" for name in known)
        + "</tr>"
        for method, numbers in rows
    )
    return (
        f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
        f"<p><code>{_escape(folder)}</code></p>"
    )


def _escape(text: object) -> str:
    return html.escape(printable(text))


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"
