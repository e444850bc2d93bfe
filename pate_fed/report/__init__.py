"""The results of a run for people and programs: its directory, its report, its summary."""

from pate_fed.report.html import render_report
from pate_fed.report.model_card import render_model_card
from pate_fed.report.run_directory import (
    EARLIER,
    SEAL,
    TRANSCRIPT,
    RunDirectory,
    RunRecord,
    forget_unfinished,
    read_run,
    refuse_existing,
    replace_report,
)
from pate_fed.report.summary import render_summary

__all__ = [
    "EARLIER",
    "SEAL",
    "TRANSCRIPT",
    "RunDirectory",
    "RunRecord",
    "forget_unfinished",
    "read_run",
    "refuse_existing",
    "render_model_card",
    "render_report",
    "render_summary",
    "replace_report",
]
