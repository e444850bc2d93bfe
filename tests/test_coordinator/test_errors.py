"""From an error to an exit code that scripts can rely on."""

from __future__ import annotations

import pytest

from coordinator.cli.terminal import LINE
from coordinator.errors import (
    BrokenTranscriptError,
    CoordinatorError,
    InternalError,
    PartyFailedError,
    PartyRefusedError,
    SetupError,
    SpoiledBatchError,
    UsageError,
    VoidBatchError,
)
from pate_fed import errors as pate_fed_errors
from pate_fed.errors import InvalidSettingError
from protocols import errors as protocol_errors

FAILED = PartyFailedError("every party must answer", "none", party="hospital-1", cause="PF-221")


@pytest.mark.parametrize(
    ("error", "exit_code"),
    [
        (UsageError("must", "got"), 2),
        (InvalidSettingError("must", "got"), 2),
        (pate_fed_errors.RunDirectoryError("must", "got"), 2),
        (pate_fed_errors.MissingExtraError("must", "got"), 2),
        (pate_fed_errors.InvalidParameterError("must", "got"), 2),
        (pate_fed_errors.BudgetExhaustedError(requested=6.0, budget=5.0), 3),
        (protocol_errors.TooFewPartiesError(received=2, threshold=3), 3),
        (PartyRefusedError("must", "got", party="hospital-1", cause="PF-318"), 3),
        (SetupError("must", "got"), 4),
        (VoidBatchError("must", "got", reservation="forfeited"), 4),
        (SpoiledBatchError("must", "got", reservation="forfeited", named=()), 4),
        (FAILED, 4),
        (protocol_errors.HistoryError("must", "got"), 4),
        (protocol_errors.ProtocolError("must", "got"), 4),
        (BrokenTranscriptError("must", "got", line=3, kind="plan"), 5),
        (pate_fed_errors.UnreadableFileError("must", "got"), 5),
        (pate_fed_errors.MissingColumnError("must", "got"), 5),
        (pate_fed_errors.TooFewRecordsError("must", "got"), 5),
        (pate_fed_errors.RareClassError("must", "got"), 5),
        (pate_fed_errors.InvalidCellError("must", "got"), 5),
        (pate_fed_errors.DisjointnessError("must", "got"), 5),
        (InternalError("must", "got"), 1),
        (pate_fed_errors.LedgerError("must", "got"), 1),
        (pate_fed_errors.UnsupportedEventError("must", "got"), 1),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else "",
)
def test_kind_of_error_decides_the_exit_code(error: Exception, exit_code: int) -> None:
    assert LINE.exit_code_of(error) == exit_code


def test_message_says_what_must_hold_what_came_and_from_whom() -> None:
    assert FAILED.got == "none from hospital-1 [PF-221]"
    assert isinstance(FAILED, CoordinatorError)


@pytest.mark.parametrize(("may_ask_again", "said"), [(False, "may not "), (True, "may ")])
@pytest.mark.parametrize("reservation", ["forfeited", "cancelled"])
def test_void_batch_says_what_became_of_its_budget_and_queries(
    reservation: str, may_ask_again: bool, said: str
) -> None:
    error = VoidBatchError("must", "got", reservation=reservation, may_ask_again=may_ask_again)
    assert (reservation in error.got, said in error.got) == (True, True)
    assert ("may not " in error.got) is not may_ask_again
    assert (error.reservation, error.may_ask_again) == (reservation, may_ask_again)
