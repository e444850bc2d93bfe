"""Parts that a hospital's node and a coordinator share without knowing each other."""

from pate_fed.nodes.checks import (
    FAIL,
    OK,
    WARN,
    Check,
    exit_code,
    lines_of_checks,
    made_check,
    made_checks,
    table_of_checks,
    unlocked_libraries,
)
from pate_fed.nodes.kept_child import KeptChild
from pate_fed.nodes.logs import JsonFormatter, facts, write_logs
from pate_fed.nodes.machine import GIB, check_owner_only, check_room, free_disk
from pate_fed.nodes.owner_files import (
    is_locked,
    read_named,
    take_lock,
    write_file,
    write_named,
)
from pate_fed.nodes.quiet_flower import QUIET_FLOWER
from pate_fed.nodes.settings_file import (
    checked,
    digested_settings,
    meanings,
    read_settings,
    record_of,
    schema_of,
    typed_in,
    with_environment,
)
from pate_fed.nodes.terminal import (
    Format,
    error_line,
    one_line,
    place_of,
    printable,
    wants_json,
)

__all__ = [
    "FAIL",
    "GIB",
    "OK",
    "QUIET_FLOWER",
    "WARN",
    "Check",
    "Format",
    "JsonFormatter",
    "KeptChild",
    "check_owner_only",
    "check_room",
    "checked",
    "digested_settings",
    "error_line",
    "exit_code",
    "facts",
    "free_disk",
    "is_locked",
    "lines_of_checks",
    "made_check",
    "made_checks",
    "meanings",
    "one_line",
    "place_of",
    "printable",
    "read_named",
    "read_settings",
    "record_of",
    "schema_of",
    "table_of_checks",
    "take_lock",
    "typed_in",
    "unlocked_libraries",
    "wants_json",
    "with_environment",
    "write_file",
    "write_logs",
    "write_named",
]
