"""The results of a run for people and programs: its directory, its report, its summary."""

from pate_fed.report.annexes import render_annexes
from pate_fed.report.editions import public_record
from pate_fed.report.html import plain_page, render_report
from pate_fed.report.model_card import render_model_card
from pate_fed.report.public_edition import write_public_edition
from pate_fed.report.run_directory import (
    FinishedRun,
    RunDirectory,
    keep_audit,
    read_run,
    replace_report,
)
from pate_fed.report.summary import render_summary

__all__ = [
    "FinishedRun",
    "RunDirectory",
    "keep_audit",
    "plain_page",
    "public_record",
    "read_run",
    "render_annexes",
    "render_model_card",
    "render_report",
    "render_summary",
    "replace_report",
    "write_public_edition",
]
