"""The page holds every figure that applies, says why others do not, and needs nothing else."""

import base64
import re
from html.parser import HTMLParser

from hlformer_jax.figures import registry, report


class _Page(HTMLParser):
    def __init__(self, text):
        super().__init__()
        self.tags, self.said = [], []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))

    def handle_data(self, data):
        self.said.append(data.strip())


def test_the_page_is_whole_in_itself(plain, options, tmp_path, monkeypatch):
    kept = {name: registry.FIGURES[name] for name in ("windows", "weights", "ball")}
    monkeypatch.setattr(registry, "FIGURES", kept)
    lines = []
    path = report.write([plain], options, tmp_path / "out", lines.append)
    text = path.read_text()
    page = _Page(text)
    # Nothing is fetched: pictures are in the page, links lead to the files beside it.
    assert not re.search(r"https?:|<script|<link|@import|url\(", text)
    [picture] = [attributes["src"] for tag, attributes in page.tags if tag == "img"]
    content = base64.b64decode(picture.removeprefix("data:image/png;base64,"))
    assert content == (path.parent / "windows.png").read_bytes()
    links = {attributes["href"] for tag, attributes in page.tags if tag == "a"}
    assert links == {"windows.svg", "windows.csv"}
    assert all((path.parent / link).exists() for link in links)
    assert (
        "meta",
        {"name": "viewport", "content": "width=device-width, initial-scale=1"},
    ) in page.tags
    reasons = [said for said in page.said if "ball" in said or "(weights)" in said]
    assert "GMMFormer embeds videos and captions" in reasons[1]
    assert "fusion 'mean'" in reasons[0]
    assert len(lines) == 3 and lines[1].startswith("weights: not drawn: GMMFormer has the fusion")


def test_what_a_run_says_is_text_and_not_markup(subject, options, tmp_path, monkeypatch):
    monkeypatch.setattr(registry, "FIGURES", {"windows": registry.Listing("<b>", "a & b")})
    text = report.write([subject], options, tmp_path, lambda line: None).read_text()
    assert "&lt;b&gt;" in text and "a &amp; b" in text and "<b>" not in text


def test_the_table_has_what_each_run_recorded(subject, plain):
    page = _Page(report.metrics_table([subject, plain]))
    assert [said for said in page.said if said] == [
        "test split", "R@1", "SumR", "queries", "videos",
        "HLFormer", "12.50", "100.00", "15", "5", "GMMFormer",
    ]  # fmt: skip
    assert "No test metrics" in report.metrics_table([plain])
