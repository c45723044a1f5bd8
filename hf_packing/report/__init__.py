"""Reports: what padding costs and what packing saves, as text, JSON and a page."""

from .bill import PaddingReport, padding_report
from .layout import Layout
from .table import text_table


__all__ = ["Layout", "PaddingReport", "padding_report", "text_table"]
