"""What a hospital's node and a coordinator share without knowing each other."""

from pate_fed.nodes.checks import (
    FAIL,
    OK,
    WARN,
    Check,
    exit_code,
    lines_of_checks,
    made_check,
    table_of_checks,
)
from pate_fed.nodes.console import (
    CodedError,
    Format,
    error_line,
    one_line,
    place_of,
    printable,
    wants_json,
)
from pate_fed.nodes.kept_child import KeptChild
from pate_fed.nodes.logs import JsonFormatter, facts, log_line, pass_on, write_logs_as_json
from pate_fed.nodes.owner_files import write_file
from pate_fed.nodes.quiet_flower import QUIET_FLOWER
from pate_fed.nodes.settings_file import VERSION_KEY, digested_settings, of_kind, read_settings

__all__ = [
    "FAIL",
    "OK",
    "QUIET_FLOWER",
    "VERSION_KEY",
    "WARN",
    "Check",
    "CodedError",
    "Format",
    "JsonFormatter",
    "KeptChild",
    "digested_settings",
    "error_line",
    "exit_code",
    "facts",
    "lines_of_checks",
    "log_line",
    "made_check",
    "of_kind",
    "one_line",
    "pass_on",
    "place_of",
    "printable",
    "read_settings",
    "table_of_checks",
    "wants_json",
    "write_file",
    "write_logs_as_json",
]
