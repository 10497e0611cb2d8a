"""The page in a real browser: chat, race, stop, errors, narrow screens, keyboard."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from live import served

from slipstream.serve.config import ServerConfig, ServerLimits

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


def test_the_page_and_its_parts_have_a_strict_policy():
    with served() as address:
        page = httpx.get(address)
        assert page.headers["content-type"].startswith("text/html")
        assert "default-src 'none'" in page.headers["content-security-policy"]
        assert "http" not in page.text.replace("http-equiv", ""), "nothing from elsewhere"
        for name in ("main.js", "style.css", "icon.svg"):
            assert httpx.get(f"{address}/{name}").status_code == 200
        for name in ("nothing.js", "..%2fapp.py", "app.py"):
            assert httpx.get(f"{address}/{name}").status_code == 404


@pytest.fixture(scope="module")
def browser() -> Iterator:
    playwright = pytest.importorskip("playwright.sync_api", reason="needs Playwright (pip install playwright)")
    if CHROMIUM is None:
        pytest.skip("needs Chromium")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with served() as here:
        yield here


@pytest.fixture
def page(browser, address) -> Iterator:
    context = browser.new_context(viewport={"width": 1200, "height": 800})
    page, faults = context.new_page(), []
    page.on("console", lambda message: faults.append(message.text) if message.type == "error" else None)
    page.on("pageerror", lambda error: faults.append(str(error)))
    page.goto(address)
    shows(page, "#status", "ready")
    yield page
    context.close()
    assert faults == []


def shows(page, place: str, text: str) -> None:
    page.locator(place, has_text=text).wait_for(timeout=60000)


def shot(page, name: str) -> None:
    """Keep a picture where a folder for it is named."""
    if folder := os.environ.get("SLIPSTREAM_SCREENSHOTS"):
        page.screenshot(path=Path(folder) / f"{name}.png", full_page=True)


def test_an_answer_streams_in_colours(page):
    page.fill("#chat-prompt", "abcabcabc")
    page.select_option("#mode", "depth")
    page.check("#details")
    page.fill("#max-tokens", "40")
    page.click("text=Send")
    page.wait_for_selector("#chat-stop:disabled")
    assert page.locator("#messages li.user").inner_text() == "abcabcabc"
    assert page.locator("#messages li.assistant span").count() > 3
    assert page.locator("#messages .accepted, #messages .recovered, #messages .bonus").count() > 0
    page.locator("#messages li.assistant span").first.hover()
    assert "probability" in page.locator("#tip").inner_text()
    page.locator("#messages li.assistant .accepted").first.hover()
    assert "candidate 1 of 1 in the draft" in page.locator("#tip").inner_text()
    assert page.locator("#draft-tree rect.accepted").count() > 0
    assert "accepted" in page.locator("#tree-caption").inner_text()
    for chart in ("speed", "tau", "queue"):
        assert page.locator(f"#{chart}-chart polygon").count() > 0
    assert "the most was" in page.locator("#speed-chart").get_attribute("aria-label")
    assert "tau" in page.locator("#figures").inner_text()
    assert page.locator("#cycles-chart rect").count() > 1
    shot(page, "chat")


def test_the_arrow_keys_walk_through_the_tokens(page):
    page.fill("#max-tokens", "9")
    page.locator("#examples button").first.click()
    page.wait_for_selector("#messages li.assistant span")
    page.wait_for_selector("#chat-stop:disabled")
    assert not page.locator("#examples").is_visible()
    page.locator("#messages li.assistant").focus()
    places = []
    for key in ("ArrowRight", "ArrowRight", "ArrowLeft"):
        page.keyboard.press(key)
        assert "probability" in page.locator("#tip").inner_text()
        places.append(
            page.evaluate("[...document.activeElement.parentElement.children].indexOf(document.activeElement)")
        )
    assert places == [0, 1, 0]
    page.click("#chat-clear")
    assert page.locator("#examples").is_visible()


def test_the_tree_of_a_cycle_is_drawn(page):
    page.select_option("#mode", "tree")
    page.fill("#chat-prompt", "abcabcabc")
    page.fill("#max-tokens", "30")
    page.click("text=Send")
    page.wait_for_selector("#chat-stop:disabled")
    page.locator("#messages [data-cycle='0']").first.hover()
    assert page.locator("#tree-caption").inner_text().startswith("Draft of cycle 1: ")
    assert page.locator("#draft-tree rect.node").count() >= 2
    assert "accepted" in page.locator("#draft-tree").get_attribute("aria-label")
    shot(page, "tree")


def test_speculation_off_is_plain(page):
    page.select_option("#mode", "off")
    page.fill("#max-tokens", "30")
    page.fill("#chat-prompt", "abc")
    page.keyboard.press("Enter")
    page.wait_for_selector("#messages .plain")
    page.wait_for_selector("#chat-stop:disabled")
    assert page.locator("#messages .accepted").count() == 0


def test_the_race_ends_with_equal_texts(page):
    page.click("#show-race")
    page.select_option("#mode", "depth")
    page.fill("#race-prompt", "abcabcabc")
    page.fill("#max-tokens", "60")
    page.click("text=Start")
    shows(page, "#race-verdict", "Target passes")
    assert page.locator("#race-verdict").inner_text().startswith("The texts are equal.")
    assert page.locator("#race-on").inner_text() == page.locator("#race-off").inner_text()
    shot(page, "race")


def test_an_answer_can_be_stopped(page):
    page.fill("#max-tokens", "150")
    page.fill("#chat-prompt", "abc")
    page.click("text=Send")
    page.wait_for_selector("#chat-stop:not(:disabled)")
    page.keyboard.press("Escape")
    page.wait_for_selector("#chat-stop:disabled")
    page.click("#chat-clear")
    assert page.locator("#messages li").count() == 0


def test_text_is_escaped(page):
    page.fill("#chat-prompt", "<img src=x onerror=alert(1)>")
    page.fill("#max-tokens", "2")
    page.click("text=Send")
    page.wait_for_selector("#chat-stop:disabled")
    assert page.locator("#messages img").count() == 0


def test_a_narrow_screen_has_one_column(page):
    page.set_viewport_size({"width": 360, "height": 740})
    assert page.evaluate("document.documentElement.scrollWidth <= 360")
    chat, aside = page.locator("#chat").bounding_box(), page.locator("aside").bounding_box()
    assert aside["y"] >= chat["y"] + chat["height"]
    shot(page, "narrow")


def test_the_keyboard_is_enough(page):
    page.keyboard.press("Tab")
    seen = []
    for _ in range(30):
        seen.append(page.evaluate("document.activeElement.id || document.activeElement.textContent.trim()"))
        page.keyboard.press("Tab")
    assert {"show-chat", "show-race", "chat-prompt", "Send", "mode", "temperature", "seed"} <= set(seen)


def test_a_dark_page(browser, address):
    context = browser.new_context(color_scheme="dark")
    page = context.new_page()
    page.goto(address)
    red, green, blue = page.evaluate("getComputedStyle(document.body).backgroundColor.match(/\\d+/g).map(Number)")
    assert max(red, green, blue) < 60
    shot(page, "dark")
    context.close()


def test_errors_are_shown_and_the_page_recovers(browser):
    limits = ServerLimits(max_samples=1)
    with served(ServerConfig(models=("letters",), limits=limits)) as address:
        port = int(address.rsplit(":", 1)[1])
        page = browser.new_page()
        page.goto(address)
        shows(page, "#status", "ready")
        page.fill("#max-tokens", "2000")
        page.fill("#chat-prompt", "abc")
        page.click("text=Send")
        shows(page, "#messages li.error", "max_tokens is 2000; the prompt has 5 tokens")
    shows(page, "#status", "the server does not answer")
    page.fill("#chat-prompt", "abc")
    page.click("text=Send")
    page.wait_for_selector("#messages li.error")
    with served(port=port):
        shows(page, "#status", "ready")
        page.fill("#max-tokens", "3")
        page.fill("#chat-prompt", "abc")
        page.click("text=Send")
        page.wait_for_selector("#messages li.assistant span")
        assert page.locator("#messages li.error").count() >= 1, "of the request that nobody answered"
    page.close()
