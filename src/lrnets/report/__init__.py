"""A page that a person opens after training: one HTML file, with nothing to fetch and nothing to run.

The way of the data: a run's folder, in whatever state (found) -> the result in a glance (verdict), curves (curves), the
layers (layers), where it came from (reproduce), its files (files), several seeds (seeds) -> pictures that fit a page
(inline) -> the page (page, with page.html and style.css). `lrnets report` is write.write_report.
"""

from lrnets.report.write import write_report

__all__ = ["write_report"]
