"""Pieces of HTML. Whatever comes from outside goes through `text`."""

from __future__ import annotations

import html
from collections.abc import Sequence

from tuner.html_report.figures import Figure, Table


def text(value: str) -> str:
    """Safe anywhere between tags and in quoted attributes."""
    return html.escape(value, quote=True)


def paragraph(words: str, kind: str = "") -> str:
    attribute = f' class="{kind}"' if kind else ""
    return f"<p{attribute}>{text(words)}</p>" if words else ""


def table(content: Table, kind: str = "") -> str:
    """A table that scrolls by itself where it is too wide for the page."""
    head = "".join(f'<th scope="col">{text(header)}</th>' for header in content.headers)
    body = "".join(f"<tr>{_cells(row)}</tr>" for row in content.rows)
    return (
        f'<div class="scroll {kind}" tabindex="0" role="region" aria-label="{text(content.title)}">'
        f"<table><caption>{text(content.title)}</caption><thead><tr>{head}</tr></thead>"
        f"<tbody>{body}</tbody></table></div>"
    )


def _cells(row: Sequence[str]) -> str:
    """The first is the row's name; after a line break, what is to be said of it."""
    name, _, note = row[0].partition("\n")
    small = f"<small>{text(note)}</small>" if note else ""
    return f'<th scope="row">{text(name)}{small}</th>' + "".join(map(_cell, row[1:]))


def _cell(value: str) -> str:
    if value.startswith("!"):
        return f'<td class="bad">{text(value[1:])}</td>'
    return f'<td class="good">{text(value)}</td>' if value.endswith("✓") else f"<td>{text(value)}</td>"


def details(summary: str, content: str) -> str:
    return f"<details><summary>{text(summary)}</summary>{content}</details>"


def figure(drawn: Figure) -> str:
    """A place for the drawing, its caption, and its numbers."""
    numbers = details("The numbers", table(drawn.table)) if drawn.table and drawn.table.rows else ""
    title = f"<h3>{text(drawn.title)}</h3>" if drawn.title else ""
    return (
        f"<figure>{title}"
        f'<div class="plot" id="{drawn.name}" style="min-height:{drawn.height}px" tabindex="0" role="img" '
        f'aria-label="{text(f"{drawn.title} {drawn.alt}".strip())}" aria-describedby="keys"></div>'
        f"<figcaption>{text(drawn.caption)}</figcaption>{numbers}</figure>"
    )


def pair(drawn: Sequence[Figure]) -> str:
    """Side by side where there is room."""
    return f'<div class="pair">{"".join(map(figure, drawn))}</div>'


def section(name: str, title: str, *content: str) -> str:
    return f'<section id="{name}-section"><h2>{text(title)}</h2>{"".join(content)}</section>'


def commands(lines: Sequence[str]) -> str:
    body = "\n".join(map(text, lines))
    copy = '<button type="button" hidden>Copy</button>'
    return f'<div class="commands">{copy}<pre tabindex="0">{body}</pre></div>'
