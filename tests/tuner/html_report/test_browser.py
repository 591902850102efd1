"""The report as a browser shows it. Skipped where there is no Chromium or no Playwright."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.tuner.html_report.sim_study import evidence_of, sim_bench
from tuner.html_report.page import page as report_page

playwright = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed")
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")
CHROMIUM = next((found for name in BROWSERS if (found := shutil.which(name))), None)
PATIENCE_MS = 240_000  # a busy machine is not a fault
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed")

Open = Callable[..., Any]


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("report")
    file = folder / "report.html"
    file.write_text(report_page(evidence_of(sim_bench(folder))), encoding="utf-8")
    return file


@pytest.fixture(scope="module")
def opened(report: Path) -> Iterator[Open]:
    """The report, drawn, in a browser without a network: one page for each kind of screen.

    Whatever a page complains of or asks for fails the last test.
    """
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        faults: list[str] = []

        @cache
        def show(width: int = 1200, scheme: str = "light") -> Any:
            viewport = {"width": width, "height": 900}
            page = browser.new_context(viewport=viewport, color_scheme=scheme, offline=True).new_page()
            page.set_default_timeout(PATIENCE_MS)
            page.on("pageerror", lambda error: faults.append(str(error)))
            page.on("console", lambda said: faults.append(said.text))
            page.on(
                "request", lambda asked: faults.append(asked.url) if asked.url != report.as_uri() else None
            )
            page.goto(report.as_uri())
            page.wait_for_selector("body[data-drawn]")
            return page

        yield show
        browser.close()
        assert faults == []


@pytest.mark.parametrize("width", [400, 1200])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_figure_is_drawn_and_nothing_sticks_out(opened: Open, width: int, scheme: str) -> None:
    page = opened(width, scheme)
    assert page.evaluate("document.documentElement.scrollWidth") == width
    drawn = page.locator(".plot .main-svg").evaluate_all(
        "svgs => new Set(svgs.map(svg => svg.closest('.plot').id)).size"
    )
    assert drawn == page.locator(".plot").count() == 7


def test_before_and_after_are_side_by_side_where_there_is_room(opened: Open) -> None:
    for width, side_by_side in ((1200, True), (400, False)):
        page = opened(width)
        before, after = (page.locator(f"#{name}").bounding_box() for name in ("before", "after"))
        assert (before["y"] == after["y"]) is side_by_side


def test_the_freeze_is_red_before_and_gone_after(opened: Open) -> None:
    page = opened()
    bars = page.locator("#before .barlayer .trace").count(), page.locator("#after .barlayer .trace").count()
    assert bars == (2, 1)  # chunks and gaps; chunks alone
    labels = page.locator("#before .barlayer text").all_text_contents()
    assert any("long 1" in label and "1,500" in label for label in labels)


def test_colours_follow_the_scheme_while_the_page_is_open(opened: Open) -> None:
    page = opened()
    colour = "getComputedStyle(document.querySelector('#front .xtick text')).fill"
    light = page.evaluate(colour)
    page.emulate_media(color_scheme="dark")
    page.wait_for_function(f"{colour} !== '{light}'")
    page.emulate_media(color_scheme="light")
    page.wait_for_function(f"{colour} === '{light}'")


def test_the_keyboard_goes_from_mark_to_mark(opened: Open) -> None:
    page = opened()
    page.locator("#front").focus()
    page.keyboard.press("ArrowRight")
    first = page.locator("#said").text_content()
    page.keyboard.press("ArrowRight")
    assert "worst pause" in first
    assert page.locator("#said").text_content() != first
    assert page.locator("#front .hoverlayer .hovertext").count() == 1


def test_the_keyboard_zooms_and_comes_back(opened: Open) -> None:
    page = opened()
    axis = "document.getElementById('after')._fullLayout.xaxis"
    span = f"{axis}.range[1] - {axis}.range[0]"
    whole = page.evaluate(span)
    page.locator("#after").focus()
    page.keyboard.press("+")
    assert page.evaluate(span) < whole
    page.keyboard.press("0")
    assert page.evaluate(span) == whole


def test_everything_that_scrolls_or_is_drawn_has_a_name(opened: Open) -> None:
    page = opened(400)
    named = page.locator("[tabindex='0']:not(pre)")
    assert named.count() > 8
    assert all(named.nth(index).get_attribute("aria-label") for index in range(named.count()))
