"""README's charts: drawn anew from the results they are the ones that are kept."""

from __future__ import annotations

import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def drawn():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT / "benchmarks"))
        import images

        yield images.images()
        sys.modules.pop("images")


def test_the_charts_are_those_of_the_results(drawn):
    assert drawn == {path.name: path.read_text() for path in (ROOT / "docs" / "images").glob("*.svg")}


def test_charts_are_well_formed_and_their_words_stay_inside(drawn):
    for name, text in drawn.items():
        root = ElementTree.fromstring(text)
        width = float(root.attrib["width"])
        for element in root.iter("{http://www.w3.org/2000/svg}text"):
            start, size = float(element.attrib["x"]), float(element.attrib["font-size"])
            if element.attrib["text-anchor"] == "start":
                assert start + 0.56 * size * len(element.text) < width, (name, element.text)


def test_an_interval_that_holds_one_shows_no_ratio(drawn):
    said = drawn["drafting-light.svg"]
    assert "automatic depth 0.94 to 1.02" in said
    assert "automatic depth 1.15 times" in said
