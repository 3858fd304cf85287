"""The report's page in a real browser. Skipped where there is none: see 'make test-browser'."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from compacter.report import write_report
from compacter.report.cells import MINUS, MISSING
from made_runs import make_study

playwright = pytest.importorskip("playwright.sync_api", reason="needs the extra 'browser'")

BROWSER = os.environ.get("BROWSER_PATH") or shutil.which("chromium") or shutil.which("chrome")

pytestmark = pytest.mark.skipif(BROWSER is None, reason="needs chromium")


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_report(make_study(tmp_path_factory.mktemp("study")))[0].as_uri()


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright.sync_playwright() as driver:
        started = driver.chromium.launch(executable_path=BROWSER, args=["--no-sandbox"])
        yield started
        started.close()


class Opened:
    """A page, with every request that it made and every error."""

    def __init__(self, browser: Any, address: str, **settings: Any) -> None:
        self.context = browser.new_context(**settings)
        self.page = self.context.new_page()
        self.requests: list[str] = []
        self.errors: list[str] = []
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.on("console", lambda message: self.errors.append(message.text))
        self.page.on("dialog", lambda dialog: self.errors.append(f"dialog {dialog.message}"))
        self.page.goto(address)


@pytest.fixture
def opened(browser: Any, address: str, request: pytest.FixtureRequest) -> Iterator[Opened]:
    settings = getattr(request, "param", {"viewport": {"width": 1280, "height": 900}})
    made = Opened(browser, address, **settings)
    yield made
    assert made.errors == []
    assert [url for url in made.requests if url != address and not url.startswith("data:")] == []
    made.context.close()


PHONE = {"viewport": {"width": 360, "height": 740}, "has_touch": True, "is_mobile": True}
SCORES = "#glue-t5-base-scores"


def column(page: Any, table: str, place: int) -> list[str]:
    """The texts of a column of the rows that can be seen."""
    found: list[str] = page.eval_on_selector_all(
        f"{table} tbody tr:not([hidden])",
        f"rows => rows.map(row => row.cells[{place}].firstChild.textContent.trim())",
    )
    return found


def test_tables_sort(opened: Opened) -> None:
    page = opened.page
    heading = page.locator(f"{SCORES} thead th").nth(2)
    heading.get_by_role("button").click()
    values = [float(text) for text in column(page, SCORES, 2)]
    assert len(values) == 12
    assert values == sorted(values, reverse=True)
    assert heading.get_attribute("aria-sort") == "descending"
    heading.get_by_role("button").press("Enter")
    assert [float(text) for text in column(page, SCORES, 2)] == sorted(values)
    page.locator(f"{SCORES} thead button").first.click()
    assert column(page, SCORES, 0) == sorted(column(page, SCORES, 0), key=str.lower)
    assert heading.get_attribute("aria-sort") is None


def test_numbers_with_commas_and_signs_sort_as_numbers(opened: Opened) -> None:
    page, table = opened.page, "#glue-t5-base-efficiency"
    for place in (1, 5):
        page.locator(f"{table} thead button").nth(place).click()
        texts = column(page, table, place)
        assert place == 1 or texts[-1] == MISSING  # what is missing is last
        plain = [t.replace(",", "").replace(MINUS, "-") for t in texts if t != MISSING]
        numbers = [float(text) for text in plain]
        assert numbers == sorted(numbers, reverse=True)


def test_tables_filter(opened: Opened) -> None:
    page = opened.page
    before = column(page, SCORES, 0)
    field = page.locator(f"{SCORES} input")
    field.fill("compacter N=4")
    assert column(page, SCORES, 0) == ["Compacter (n=4)", "Compacter++ (n=4)"]
    field.fill("no such method")
    assert column(page, SCORES, 0) == []
    field.fill("")
    assert column(page, SCORES, 0) == before


def test_points_tell_their_values(opened: Opened) -> None:
    page, tip = opened.page, opened.page.locator("#tip")
    assert tip.is_hidden()
    point = page.locator("#builtin-builtin-minilm-figure-1 .point").first
    point.hover()
    assert tip.is_visible()
    assert "% trained" in tip.inner_text()
    assert "MB" in tip.inner_text()
    page.mouse.move(0, 0)
    assert tip.is_hidden()
    point.focus()
    assert tip.inner_text() == point.get_attribute("aria-label")
    page.locator("#glue-builtin-minilm-rows-0 .point").nth(1).hover()
    assert "500 rows" in tip.inner_text()
    page.locator("#builtin-builtin-minilm-curve-0 .point").first.hover()
    assert "step 20" in tip.inner_text()


def test_a_run_opens_its_recipe_and_curves(opened: Opened) -> None:
    page = opened.page
    page.locator("details.runs > summary").click()
    button = page.locator("#runs tbody th button", has_text="full-builtin-tone")
    page.locator("#runs thead button").nth(1).click()  # in another order than that of the data
    button.click()
    detail = page.locator("#runs tr.detail")
    text = detail.inner_text()
    assert 'method: "full"' in text
    assert 'task: "builtin/tone"' in text
    assert "epochs: 3" in text
    assert "step 40 was tested" in text
    assert detail.locator("svg").count() == 2
    assert button.get_attribute("aria-expanded") == "true"
    button.click()
    assert detail.count() == 0
    button.click()
    page.locator("#runs thead button").nth(1).click()
    assert (detail.count(), button.get_attribute("aria-expanded")) == (0, "false")


def test_user_text_is_text(opened: Opened) -> None:
    assert opened.page.locator("#failed").get_by_text("<img src=x onerror=alert(1)>").is_visible()
    assert opened.page.locator("img").count() == 0


def luminance(page: Any, selector: str, what: str) -> float:
    """Of a colour, as WCAG has it: 0 is black, 1 is white."""
    colour: str = page.eval_on_selector(selector, f"e => getComputedStyle(e).{what}")
    parts = [float(x) / 255 for x in colour[colour.index("(") + 1 : -1].split(",")[:3]]
    linear = [x / 12.92 if x <= 0.04045 else ((x + 0.055) / 1.055) ** 2.4 for x in parts]
    return sum(w * x for w, x in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def contrast(a: float, b: float) -> float:
    return (max(a, b) + 0.05) / (min(a, b) + 0.05)


@pytest.mark.parametrize(
    "opened", [{"color_scheme": "light"}, {"color_scheme": "dark"}], indirect=True
)
def test_both_schemes_have_contrast(opened: Opened) -> None:
    """Text 4.5 to 1, what is drawn 3 to 1."""
    page = opened.page
    dark = page.evaluate("matchMedia('(prefers-color-scheme: dark)').matches")
    paper, ink = luminance(page, "body", "backgroundColor"), luminance(page, "body", "color")
    assert (paper < ink) == dark
    for selector, what in (("body", "color"), ("figcaption p", "color"), (".tick", "fill")):
        assert contrast(luminance(page, selector, what), paper) >= 4.5, selector
    for i in range(12):
        selector = f"#glue-t5-base-figure-1 .point.m{i}:not(.paper) circle"
        assert contrast(luminance(page, selector, "fill"), paper) >= 3, selector


@pytest.mark.parametrize("opened", [PHONE], indirect=True)
def test_a_phone_does_not_scroll_sideways(opened: Opened) -> None:
    page = opened.page
    page.locator("details.runs > summary").click()
    page.locator("#runs tbody th button").first.click()
    wide, seen = page.evaluate("[document.documentElement.scrollWidth, innerWidth]")
    assert wide <= seen == 360
    assert page.locator(f"{SCORES} .scroll").evaluate("e => e.scrollWidth > e.clientWidth")
    letters = page.locator("#builtin-builtin-minilm-figure-1 .tick").first
    assert letters.bounding_box()["height"] >= 9


def test_the_page_prints_whole_tables_and_no_controls(opened: Opened, tmp_path: Path) -> None:
    page = opened.page
    page.emulate_media(media="print")
    page.set_viewport_size({"width": 703, "height": 1000})  # A4 less the margins
    assert page.locator(f"{SCORES} input").is_hidden()
    assert page.locator("nav").is_hidden()
    for box in page.locator("main > section > figure .scroll").all():
        assert box.evaluate("e => e.scrollWidth <= e.clientWidth + 1"), box.inner_text()[:40]
    assert luminance(page, "body", "backgroundColor") == pytest.approx(1.0)
    file = tmp_path / "page.pdf"
    page.pdf(path=file, format="A4", prefer_css_page_size=True)
    assert file.read_bytes().startswith(b"%PDF")


def test_the_page_reads_without_script(browser: Any, address: str) -> None:
    opened = Opened(browser, address, java_script_enabled=False)
    assert opened.page.locator(f"{SCORES} tbody tr").count() == 12
    assert opened.page.locator("svg.figure").count() > 10
    opened.context.close()
