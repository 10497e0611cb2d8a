"""The report page and its sentence, from records that a test writes down."""

from __future__ import annotations

import re
from html.parser import HTMLParser

import pytest

from slipstream.bench.report.page import html
from slipstream.bench.report.svg import ticks
from slipstream.bench.report.takeaway import takeaway
from slipstream.bench.statistics import NOT_DRAFTED, ONE_REPEAT, estimate, ratio, verdict
from slipstream.bench.table import show, tables, text

PLAIN = [100.0, 101.0, 99.0, 100.5, 99.5]
NOISE = [138.9, 97.0, 128.7, 95.0, 101.0]
VOID = {"area", "base", "br", "col", "hr", "img", "input", "link", "meta"}


def record(speeds, plain=None, engine="native", drafter="eagle", depth=3, drafted=40, workload="code", reference=None):
    """A record as `records` makes it, of speeds that are given."""
    if plain is None:
        drafter, depth, drafted = "none", 0, 0
    found, against = estimate(speeds), ratio(speeds, plain) if plain else None
    other = ratio(speeds, reference) if reference else None
    return {
        "engine": engine, "drafter": drafter, "depth": depth, "rule": "greedy" if plain else "plain", "batch": 1,
        "temperature": 0.0, "workload": workload, "model": "m (float32)", "tokens_per_second": found.value,
        "tokens_per_second_interval": found.bounds, "tokens_per_second_repeats": speeds,
        "end_to_end_tokens_per_second": found.value, "end_to_end_interval": found.bounds,
        "seconds_to_first_token": 0.1, "tau": 2.0 if drafted else 1.0, "acceptance": [0.7, 0.3] if drafted else [],
        "survival": [0.7, 0.3] if drafted else [], "drafted": drafted, "accepted": drafted // 2,
        "seconds_per_pass": 0.01, "ratio_to_plain": against and against.value,
        "ratio_to_plain_interval": against and against.bounds, "ratio_to_plain_end_to_end": against and against.value,
        "ratio_to_plain_end_to_end_interval": against and against.bounds,
        "verdict": verdict(against, drafted > 0) if against else None, "ratio_to_reference": other and other.value,
        "ratio_to_reference_interval": other and other.bounds, "same_answers": 1.0, "share_of_limit": 0.5,
        "operations_per_byte": 2.0, "operations_per_second": 4e9, "joules_per_token": None, "idle_share": None,
        "draft_tokens_per_second": None, "quality": {}, "peak_memory_bytes": 10**9, "repeats": len(speeds),
    }  # fmt: skip


def results(*records):
    made = {
        "records": list(records), "model": "m", "date": "2026-01-01", "command": "slipstream bench -d 'a b'",
        "commit": "c", "load_average": 0.5, "sha256": "0" * 64, "engines": {"native": "1"}, "scaled": None,
        "hardware": {"accelerator": None, "processor": "ARM", "threads": 2, "cores": 2}, "versions": {},
        "limits": {"bandwidth": 4e10, "arithmetic": 7e10, "target_bytes": {"native": 10**8, "llamacpp": 10**8}},
        "settings": {"repeats": 5},
    }  # fmt: skip
    return {"takeaway": takeaway(made)} | made


def times(factor, speeds=PLAIN):
    return [factor * speed for speed in speeds]


class Tags(HTMLParser):
    """Checks that tags are closed in order."""

    def __init__(self, page):
        super().__init__()
        self.open, self.seen = [], set()
        self.feed(page)

    def handle_starttag(self, tag, attributes):
        self.seen.add(tag)
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.seen.add(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def test_a_gain_is_named_with_its_interval():
    said = takeaway(results(record(PLAIN), record(times(1.4), PLAIN)))
    assert said.startswith(
        "Native with eagle (depth 3) decodes code 1.40 times as fast as plain decoding (95 % interval"
    )
    assert said.endswith("native decodes plainly at 100 tokens per second on ARM (2 threads).")


def test_noise_is_no_gain_anywhere(capsys):
    noisy = results(record(PLAIN), record(NOISE, PLAIN))
    assert noisy["records"][1]["ratio_to_plain"] > 1.1
    assert noisy["takeaway"].startswith("Drafting with eagle (depth 3) does not make native measurably faster")
    show(noisy)
    page = html(noisy)
    assert noisy["records"][1]["ratio_to_plain_end_to_end"] > 1.1
    (whole,) = (row[7] for row in tables(noisy)[0].rows[1:])
    assert re.fullmatch(r"0\.\d\d to 1\.\d\d", whole)  # the interval alone
    for shown in (capsys.readouterr().out, page):
        assert "no clear difference" in shown
        assert not re.search(r"\d times as fast", shown)
    assert 'class="verdict faster"' not in page


def test_a_drafter_that_drafted_nothing():
    quiet = results(record(PLAIN), record(times(1.2), PLAIN, drafted=0))
    assert quiet["takeaway"].startswith("Nothing was drafted: no difference to measure;")
    assert NOT_DRAFTED in text(tables(quiet)[0])
    assert "1.20" not in text(tables(quiet)[0])
    assert NOT_DRAFTED in html(quiet)
    costly = results(record(PLAIN), record(times(0.9), PLAIN, drafted=0))
    assert "slower, though nothing was drafted" in html(costly)


def test_one_repeat_claims_nothing():
    once = results(record([100.0]), record([138.9], [100.0]))
    assert once["takeaway"].endswith("one repeat has no interval, so no ratio is claimed.")
    assert ONE_REPEAT in text(tables(once)[0])
    page = html(once)
    assert ONE_REPEAT in page
    assert "1.39" not in page


def test_engines_are_compared_and_keep_their_colours():
    others = record(times(0.4), engine="llamacpp", reference=PLAIN), record(times(0.5), times(0.4), engine="llamacpp")
    both = results(record(PLAIN), *others)
    assert both["takeaway"].endswith("2.50 times as fast as the llamacpp wheel (95 % interval 2.50 to 2.50).")
    page = html(both)
    assert "built for any processor of its family" in page
    assert "built for any processor of its family" not in html(results(record(PLAIN)))
    for engine, number in (("native", 0), ("llamacpp", 1)):
        colours = set(re.findall(rf'class="key" style="--c: var\(--engine-(\d)\)">{engine}<', page))
        assert colours == {str(number)}
    slow = results(record(times(0.5)), record(PLAIN, engine="llamacpp"))
    assert "slower than the llamacpp wheel" in slow["takeaway"]


def test_llamacpp_built_for_the_machine_is_not_called_a_wheel():
    native = record(times(0.4), engine="llamacpp") | {"model": "m (Q4_1, llama.cpp, native build)"}
    both = results(record(PLAIN), native)
    assert both["takeaway"].endswith(
        "2.50 times as fast as llamacpp built for the machine (95 % interval 2.50 to 2.50)."
    )
    assert "built for any processor of its family" not in html(both)


def test_no_tokens_at_all():
    assert takeaway(results(record([0.0, 0.0]))) == "No tokens were generated, so there is no speed to compare."
    assert "No tokens were generated" in html(results(record([0.0, 0.0])))


@pytest.mark.parametrize("depths", [[3], ["auto"], [1, 2, "auto"], [1, "auto"]], ids=str)
def test_the_page_is_well_formed(depths):
    records = [record(times(1.4), PLAIN, drafter="a<b>/draft & co", depth=depth) for depth in depths]
    page = html(results(record(PLAIN), *records))
    tags = Tags(page)
    assert not tags.open
    assert tags.seen >= {"svg", "table", "details", "h1"}
    assert "<b>/draft" not in page
    assert ("How deep" in page) == (len(depths) > 1)
    for need in ("prefers-color-scheme: dark", "width=device-width", "max-width: 52rem"):
        assert need in page


def test_every_cell_of_a_table_has_its_column_for_narrow_screens():
    page = html(results(record(PLAIN), record(times(1.4), PLAIN)))
    body = "".join(re.findall(r"<tbody>(.*?)</tbody>", page))
    cells = re.findall(r"<td ([^>]*)>", body)
    assert len(cells) > 10
    assert all('data-name="' in cell or 'class="left"' in cell for cell in cells)


def test_ticks_are_round_numbers():
    assert ticks(0, 100) == [0, 25, 50, 75, 100]
    assert ticks(0, 3.4) == [0, 1, 2, 3]
    assert ticks(0, 0) == [0]
