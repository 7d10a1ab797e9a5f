"""The complete job on the page about Spark is the example, which `tests/test_examples.py` runs."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_the_job_on_the_page_is_the_example() -> None:
    page = (ROOT / "docs" / "how-to" / "spark.md").read_text()
    assert f"```python\n{(ROOT / 'examples' / '05_spark_sink.py').read_text()}```\n" in page
