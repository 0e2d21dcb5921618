"""The HTML page: its figures are the summary's, and no name in them acts in a browser."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from dataclasses import replace
from html.parser import HTMLParser

import numpy as np
import pytest
from support import summaries
from support.charts import charts, large

from trainprof.analysis.summary.code import FunctionTimes, LineProfile, LineTime, Source
from trainprof.analysis.summary.run import Exit, Hung, Outlier, Stood
from trainprof.report.html import page
from trainprof.report.text.step_bars import step_rows
from trainprof.report.text.units import seconds

RUNS = {
    "slow loader": summaries.slow_loader,
    "several findings": summaries.several_findings,
    "healthy": summaries.healthy,
    "killed": summaries.killed_for_memory,
    "accelerator": summaries.accelerator,
    "gpus": summaries.mixed_gpus,
    "cut off": summaries.cut_off,
    "sparse": summaries.sparse,
    "hostile": summaries.hostile,
}
PAYLOADS = {
    "tags": "<script>alert(1)</script></script></style></title><img src=x onerror=alert(1)>",
    "quotes": '"\' onmouseover="alert(1)" x=\'',
    "comments": "]]> <!-- --!> <![CDATA[ {{ 7 * 7 }} {% raw %} &lt; &#60;",
    "separators": "\u2028\u2029\r\n\x00\x07\x1b[31m\x85 \udc80",
    "direction": "\u202egnp.exe\u202c\u200b",
    "length": "x" * 10_000,
}
VOID = {"meta", "img", "br", "link", "input"}
TILES = '<dt>{}</dt><dd class="value">{}'


class Elements(HTMLParser):
    """Elements with their attributes, the texts, and the contents of scripts and styles."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.texts: list[str] = []
        self.contents: dict[str, list[str]] = {"script": [], "style": []}
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] in self.contents:
            self.contents[self.open[-1]].append(data)
        elif data.strip():
            self.texts.append(" ".join(data.split()))

    @property
    def shape(self):
        return [(tag, sorted(attributes)) for tag, attributes in self.elements]


def profile(text="step()"):
    rows = (LineTime(2, 20, 3 * 10**9),)
    source = Source(("def train():\n", f"    {text}\n"))
    return LineProfile((FunctionTimes("/x/train.py", 1, f"train {text}", text, source, rows),))


def rendered(summary, drawn=None, lines=None):
    text = page.render(summary, drawn, lines)
    text.encode("utf-8")
    return text


@pytest.mark.parametrize("payload", PAYLOADS.values(), ids=PAYLOADS)
@pytest.mark.parametrize("name", RUNS)
def test_no_string_of_a_run_acts(name, payload):
    def shape(word):
        summary = summaries.with_every_string(RUNS[name](), lambda text: f"{word} {text}")
        summary = replace(
            summary,
            not_observed={word: word},
            run=replace(summary.run, versions={word: word}),
            ledger=replace(summary.ledger, other_by_place={word: 1.0}),
        )
        drawn = summaries.with_every_string(charts(), lambda text: f"{word} {text}")
        drawn = replace(drawn, machine=replace(drawn.machine, cores={word: np.uint8([5])}))
        text = rendered(summary, drawn, profile(word))
        return Elements(text), text

    (harmless, _), (hostile, text) = shape("word"), shape(payload)
    assert hostile.shape == harmless.shape
    assert hostile.contents["script"][-1] == harmless.contents["script"][-1]
    assert set(json.loads(hostile.contents["script"][0])) >= {"steps", "labels"}
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e]", text)


@pytest.mark.parametrize("name", RUNS)
def test_only_the_pages_own_script_and_style_work_and_nothing_is_loaded(name):
    parsed = Elements(rendered(RUNS[name](), charts(), profile()))
    (policy,) = (x["content"] for tag, x in parsed.elements if "http-equiv" in x)
    assert policy.startswith("default-src 'none'; ")
    for kind in ("script", "style"):
        digest = hashlib.sha256(parsed.contents[kind][-1].encode()).digest()
        allowed = re.search(rf"{kind}-src ([^;]*)", policy)[1]
        assert allowed == f"'sha256-{base64.b64encode(digest).decode()}'"
    assert "@import" not in (style := parsed.contents["style"][0])
    assert "url(" not in style
    for _, attributes in parsed.elements:
        assert not [x for x in attributes if x == "style" or x.startswith("on")]
        loading = {"src", "srcset", "href", "action", "data", "poster"} & attributes.keys()
        assert all((attributes[x] or "").startswith("#") for x in loading)
    ids = [x["id"] for _, x in parsed.elements if "id" in x]
    assert len(ids) == len(set(ids))
    links = {x["href"].removeprefix("#") for tag, x in parsed.elements if tag == "a"}
    assert links <= set(ids)


def test_the_figures_are_the_summarys():
    summary = summaries.several_findings()
    text = rendered(summary)
    step, numbers = summary.training.step_s, text.replace("</dd>", "")
    value, unit = seconds(step.p50).split()
    assert TILES.format("median step", f'{value} <span class="unit">{unit}') in numbers
    rows = step_rows(summary).rows
    waiting = next(row for row in rows if row.label == "waiting for data")
    value, unit = waiting.percent.split()
    assert TILES.format("waiting for data", f'{value} <span class="unit">{unit}') in numbers
    parsed = Elements(text)
    for row in rows:
        at = parsed.texts.index(row.time)
        assert parsed.texts[at - 1 : at + 2] == [row.label, row.time, row.percent]
    widths = [
        float(x["width"]) / 1000
        for tag, x in parsed.elements
        if tag == "rect" and x.get("height") == "30" and "class" not in x
    ]
    assert widths == pytest.approx([row.share for row in rows], abs=1e-3)
    for finding in summary.findings:
        assert finding.advice.lower() in text.lower()
        assert finding.site is None or finding.site in parsed.texts
    for key, spent_s in summary.ledger.seconds.items():
        assert spent_s < 10 or f"{spent_s:.1f}" in parsed.texts, key


@pytest.mark.parametrize("number", [float("nan"), float("inf"), -1.0, 0.0, 1e300])
@pytest.mark.parametrize("name", RUNS)
def test_figures_that_no_run_has_are_no_fault(name, number):
    text = rendered(summaries.with_every_float(RUNS[name](), number), charts())
    outside = re.sub(r"<(script|style).*?</\1>", "", text, flags=re.DOTALL)
    assert not re.search(r"\b(nan|inf|None)\b", outside.lower().replace("none found", ""))


def test_a_run_without_findings_says_that_it_was_searched():
    text = rendered(summaries.healthy())
    assert "<article" not in text
    assert 'class="verdict good"' in text
    assert "causes checked" in text


def test_a_run_that_hung_shows_where_each_process_stood():
    stood = Stood("main", "train.py:7", "main", "Queue.get", None, None, 30.0, 0.1)
    run = replace(summaries.healthy().run, exit=Exit(None, None, "limit", "--max-time"))
    training = replace(summaries.healthy().training, steps=0)
    summary = replace(
        summaries.healthy(), run=run, training=training, findings=[], hung=Hung(60.0, [stood])
    )
    parsed = Elements(rendered(summary))
    assert {"train.py:7", "training thread"} <= set(parsed.texts)


def test_each_rank_has_a_bar_of_its_ledger():
    def rank(number, **seconds):
        return {"rank": number, "host": "node", "steps": 9, "ledger": {"seconds": seconds}}

    ranks = [rank(0, data_wait=1.0, forward=3.0), rank(1, data_wait=6.0, forward=2.0)]
    late = {"rank": 1, "phase": "data_wait", "share_of_steps": 0.7, "seconds": 4.0}
    summary = replace(summaries.slow_loader(), ranks=ranks, stragglers=[late])
    section = rendered(summary).partition('<section id="ranks"')[2].partition("</section>")[0]
    parsed = Elements(section)
    bars = [x for tag, x in parsed.elements if tag == "rect" and x["height"] == "10"]
    assert [(x["x"], x["width"], x["fill"]) for x in bars] == [
        ("0", "125.0", "var(--key-data_wait)"),
        ("125.0", "375.0", "var(--key-forward)"),
        ("0", "750.0", "var(--key-data_wait)"),
        ("750.0", "250.0", "var(--key-forward)"),
    ]
    assert {"rank 0", "25 %", "rank 1", "75 %"} <= set(parsed.texts)
    assert any(text.startswith("rank 1 was last") for text in parsed.texts)


def test_what_was_sampled_in_few_outliers_has_no_column():
    sampled = [{"host_cpu_percent": 71.0, "iowait_share": 0.43}, {"host_cpu_percent": 72.0}, None]
    outliers = [
        Outlier(step, 0, 1.0, 0.5, "data_wait", 0.4, None, samples)
        for step, samples in enumerate([*sampled, None])
    ]
    summary = replace(summaries.slow_loader(), outliers=outliers)
    texts = Elements(rendered(summary)).texts
    assert {"CPU of the host", "71 %", "72 %"} <= set(texts)
    assert not {"I/O wait", "43 %", "not measured"} & set(texts)


def test_rows_of_nothing_are_one_and_the_missing_gpu_is_at_the_end():
    summary = summaries.slow_loader()
    spent = summary.ledger.seconds | {"zero_grad": 1e-4, "loader_end": 0.0, "gc": 2e-4}
    per_step = summary.training.per_step_s | dict.fromkeys(("zero_grad", "gc"), 1e-7)
    missing = replace(summary.system, gpus=[], gpus_not_observed="no NVML here")
    summary = replace(
        summary,
        ledger=replace(summary.ledger, seconds=spent),
        training=replace(summary.training, per_step_s=per_step),
        system=missing,
    )
    text = rendered(summary)
    (tiny,) = (x for x in Elements(text).texts if "zero grad" in x and "loader end" not in x)
    assert "garbage collection" in tiny
    assert 'id="devices"' not in text
    assert "no NVML here" in text.partition('id="limits"')[2]


def test_the_payload_is_the_charts_number_for_number():
    drawn = replace(charts(), wall_s=float("nan"))
    text = Elements(rendered(summaries.slow_loader(), drawn)).contents["script"][0]
    payload = json.loads(text)
    assert payload["wall_s"] is None
    assert payload["labels"]["data_wait"] == "waiting for data"
    for name, kind in (("total_s", "f8"), ("p50_s", "f4"), ("first", "i4")):
        data = base64.b64decode(payload["steps"][name][kind])
        assert np.array_equal(np.frombuffer(data, f"<{kind}"), getattr(drawn.steps, name))
    assert payload["stacks"]["stacks"] == [["training", "forward", 7, [0, 1], 0.07]]


def test_a_page_of_the_longest_run_is_small():
    text = rendered(summaries.slow_loader(), large(), profile())
    assert len(text.encode()) <= 3_000_000


def test_every_script_and_style_of_the_page_exists():
    environment = page.environment()
    for name in (*page.SCRIPTS, *page.STYLES):
        if name != "bars.css":  # of the pages of compare and tune
            assert page.file_text(name)
    assert "</script" not in environment.globals["script"].lower()
    assert "</style" not in environment.globals["style"].lower()
