"""Bugs that somebody could plant in verified votes, each with a test that fails with it.

Not in the table: "votes of a hospital from its report". A report has no such number, and
`test_verified_reports.TestPlantedBugs` shows what it would do. Nor "masks or noise from a weak
source": that is an argument of every function here.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
HERE = "tests/test_protocols/test_verified_"


@dataclass(frozen=True)
class Bug:
    """A change of a module below `protocols`, and the test that notices it."""

    module: str
    changes: tuple[tuple[str, str], ...]
    test: str


def bug(module: str, before: str, after: str, test: str) -> Bug:
    return Bug(module, ((before, after),), test)


END = "verified/checking_end.py"
TALLY, COORDINATOR = "verified/checking_tally.py", "verified/checking_coordinator.py"
SIDE, PROOF, SUM = "verified/vote_side.py", "verified/vote_proof.py", "verified/vote_sum.py"
OTHER = "machines.py::TestTheOtherEnd::"
LIST_TEST = OTHER + "test_a_list_must_hold_each_hospital_once_with_its_own_header"
HEARD = OTHER + "test_only_the_pinned_other_end_is_heard"
SMALLER = OTHER + "test_a_smaller_set_that_would_single_a_hospital_out_does_not_open"
STOPPED = OTHER + "test_other_accepted_reports_stop_the_batch"
BUGS: dict[str, Bug] = {
    "one mask": bug(
        PROOF,
        "    seed, blind = random_bytes(KEY_BYTES), random_bytes(BLIND_BYTES)\n",
        "    masks[1] = 0\n    seed, blind = random_bytes(KEY_BYTES), random_bytes(BLIND_BYTES)\n",
        "votes.py::TestLies::test_a_hospital_draws_two_masks_for_each_column",
    ),
    "point in the prime field": bug(
        PROOF,
        "[imaginary[imaginary > 0][0]]",
        "[imaginary[0] * 0]",
        "votes.py::TestWhatIsSeen::test_no_coin_gives_a_point_in_the_prime_field",
    ),
    "point in the prime field is not refused": bug(
        PROOF,
        "if not place[1, 0]:",
        "if False:",
        "votes.py::TestWhatIsSeen::test_a_point_in_the_prime_field_is_refused",
    ),
    "weights of the coordinator's part alone": bug(
        PROOF,
        '_hash(b"r", context, coordinator_binding, tally_binding)',
        '_hash(b"r", context, coordinator_binding)',
        "votes.py::TestLies::test_a_changed_share_is_refused[tally-binding]",
    ),
    "weights of the tally's part alone": bug(
        PROOF,
        '_hash(b"r", context, coordinator_binding, tally_binding)',
        '_hash(b"r", context, tally_binding)',
        "votes.py::TestLies::test_a_changed_share_is_refused[coordinator-binding]",
    ),
    "no blind": Bug(
        PROOF,
        (
            (
                '_bind(b"A", context, witness + payload[-BLIND_BYTES:])',
                '_bind(b"A", context, witness)',
            ),
            ('_bind(b"A", context, sent + blind)', '_bind(b"A", context, sent)'),
        ),
        "votes.py::TestWhatIsSeen::test_the_tally_cannot_try_all_votes_against_the_coordinators_binding",
    ),
    "row sums unchecked": bug(
        PROOF,
        "return not differences.any() and np.array_equal(left, right)",
        "return np.array_equal(left, right)",
        "run.py::TestLiars::test_five_liars_of_ten_change_nothing",
    ),
    "digits unchecked": bug(
        PROOF,
        "return not differences.any() and np.array_equal(left, right)",
        "return not differences.any()",
        "run.py::TestLiars::test_five_liars_of_ten_change_nothing",
    ),
    "one repetition": bug(
        "verified/vote_layout.py",
        "repetitions: int = 4",
        "repetitions: int = 1",
        "votes.py::TestSoundness::test_of_a_layout_is_what_its_plan_says",
    ),
    "elements by reduction": bug(
        "verified/prime_field.py",
        "drawn = drawn[drawn != self.prime]",
        "drawn = drawn % np.uint64(self.prime)",
        "votes.py::TestField::test_drawn_elements_are_uniform",
    ),
    "context without the number of votes": bug(
        "verified/vote_report.py",
        "numbers = list(self.layout_of(hospital).numbers)",
        "numbers = [self.queries, self.columns]",
        "reports.py::TestHospital::test_a_context_is_of_one_hospital_and_its_number_of_votes",
    ),
    "sealed for no hospital": Bug(
        "verified/vote_report.py",
        (
            ("ends = [hospital, self", "ends = [bytes(32), self"),
            ("            sender=hospital,\n", "            sender=bytes(32),\n"),
            ("        sender=header.sender,\n", "        sender=bytes(32),\n"),
        ),
        "run.py::TestReports::test_a_copied_report_does_not_count_its_victims_votes_twice",
    ),
    "binding unchecked": bug(
        "verified/vote_report.py",
        "if share.binding != (header.tally_binding if is_tally else header.coordinator_binding):",
        "if False:",
        "reports.py::test_a_part_that_its_hospital_did_not_bind_is_refused",
    ),
    "part's digest unchecked": bug(
        "verified/vote_report.py",
        "if not is_tally and _digest_of_part(context, part) != header.coordinator_part:",
        "if False:",
        "audit.py::TestMaterial::test_parts_are_those_that_hospitals_signed[coordinator]",
    ),
    "envelope's digest unchecked": bug(
        "verified/vote_report.py",
        "if _digest_of_envelope(sealed) != header.tally_envelope:",
        "if False:",
        "reports.py::test_a_spoiled_report_is_refused[tally's envelope of another report]",
    ),
    "header's signature unchecked": bug(
        "verified/vote_report.py",
        "    signed.verify(identity)\n",
        "",
        "reports.py::test_a_spoiled_report_is_refused[signed by another hospital]",
    ),
    "coin without the list": bug(
        SUM,
        "said = [plan_digest, list(headers), coordinator_nonce, tally_nonce]",
        "said = [plan_digest, coordinator_nonce, tally_nonce]",
        "sums.py::TestCoin::test_it_depends_on_the_plan_the_list_and_both_nonces",
    ),
    "coin of one nonce": bug(
        SUM,
        "said = [plan_digest, list(headers), coordinator_nonce, tally_nonce]",
        "said = [plan_digest, list(headers), coordinator_nonce]",
        "sums.py::TestCoin::test_it_depends_on_the_plan_the_list_and_both_nonces",
    ),
    "noise that its end can choose": bug(
        SUM,
        "[plan_digest, aggregator, coin, seed]",
        "[plan_digest, aggregator, seed]",
        "sums.py::TestNoise::test_it_follows_from_seed_plan_aggregator_and_coin[coin]",
    ),
    "noise that the other end knows": bug(
        SUM,
        "[plan_digest, aggregator, coin, seed]",
        "[plan_digest, aggregator, coin]",
        "sums.py::TestNoise::test_it_follows_from_seed_plan_aggregator_and_coin[seed]",
    ),
    "share without noise": bug(
        SIDE,
        "share = noisy_share(self._shares_of(reports, accepted), noise)",
        "share = noisy_share(self._shares_of(reports, accepted), 0 * noise)",
        "machines.py::TestHonest::test_the_sum_is_that_of_the_whole_protocol_in_one_function",
    ),
    "message left before it was noted": bug(
        END,
        "        self._note(step)\n        return step.sent\n",
        "        self._history.apply(step)\n        return step.sent\n",
        "machines.py::TestCrashes::test_what_left_an_end_is_in_its_journal_before",
    ),
    "message noted after it could leave": bug(
        END,
        "self._journal.append(step)\n        self._history.apply(step)\n\n    def _exchange",
        "self._history.apply(step)\n        self._journal.append(step)\n\n    def _exchange",
        "machines.py::TestCrashes::test_a_step_that_the_disk_refuses_changes_nothing",
    ),
    "secrets drawn anew after a crash": bug(
        END,
        "self._note(SecretsDrawn(",
        "self._history.apply(SecretsDrawn(",
        "machines.py::TestOrder::test_a_message_again_gets_the_same_bytes[restarted]",
    ),
    "opened without a charge": bug(
        END,
        "self._journal.append_charged(step, accepted=decision.accepted)",
        "self._journal.append(step)",
        "machines.py::TestLedger::test_nothing_opens_that_is_not_charged",
    ),
    "second message is answered": bug(
        END,
        "if wire.digest_of(before) != signed.digest:",
        "if False:",
        "machines.py::TestOrder::test_a_second_message_in_the_place_of_an_answered_one_stops_the_batch",
    ),
    "stop forgotten by a restart": bug(
        END,
        "self._note(CheckStopped(error.code.encode(), frame))",
        "self._history.apply(CheckStopped(error.code.encode(), frame))",
        STOPPED,
    ),
    "error without a stop": bug(
        END, "        self._note(CheckStopped(error.code.encode(), frame))\n", "", STOPPED
    ),
    "answer made anew": bug(
        END,
        "            return answer\n",
        "",
        "machines.py::TestOrder::test_a_message_again_gets_the_same_bytes[running]",
    ),
    "anybody is heard": bug(END, "        signed.verify(self._other)\n", "", HEARD),
    "message of another plan": bug(
        END, "        self._history.require_ours(message)\n        if", "        if", HEARD
    ),
    "message of another sender": bug(
        END,
        'if getattr(message, "sender", self._other.fingerprint) != self._other.fingerprint:',
        "if False:",
        HEARD,
    ),
    "coordinator's nonce after the tally's": bug(
        TALLY,
        "if commitment_to_nonce(self.batch, theirs.nonce) != told.nonce_commitment:",
        "if False:",
        "machines.py::TestTheOtherEnd::test_a_nonce_was_fixed_before_the_other_one_was_told[tally]",
    ),
    "tally's second nonce": bug(
        COORDINATOR,
        "if theirs.nonce != self._other_nonce:",
        "if False:",
        "machines.py::TestTheOtherEnd::test_a_nonce_was_fixed_before_the_other_one_was_told[coordinator]",
    ),
    "receipt of another list": bug(
        COORDINATOR,
        "if receipt.list_digest != ",
        "if False and receipt.list_digest != ",
        "machines.py::TestTheOtherEnd::test_a_receipt_of_another_list_is_refused",
    ),
    "list of too few": bug(SIDE, "    if len(senders) < least:", "    if False:", LIST_TEST),
    "list in any order": bug(SIDE, "if senders != sorted(set(senders)) or ", "if ", LIST_TEST),
    "sum of too few at the tally": bug(
        TALLY, "                self._require_enough(self._decided())\n", "", SMALLER + "[tally]"
    ),
    "sum of too few at the coordinator": bug(
        COORDINATOR,
        "        self._require_enough(decision)\n",
        "",
        SMALLER + "[coordinator]",
    ),
    "two decisions, found by the tally": bug(
        TALLY,
        "                self._require_equal(message, signed.frame)\n",
        "",
        STOPPED + "[tally]",
    ),
    "two decisions, found by the coordinator": bug(
        COORDINATOR,
        "                self._require_equal(message, signed.frame)\n",
        "",
        STOPPED + "[coordinator]",
    ),
    "answer that follows from the other one": bug(
        TALLY,
        "self._side.answers(self._history.listed, coin))",
        "theirs.__class__(theirs.plan_digest, self.batch.tally.fingerprint, "
        "self._side.secrets.nonce, tuple(a if b else b'' for a, b in zip("
        "self._side.answers(self._history.listed, coin).answers, theirs.answers))))",
        "machines.py::TestTheOtherEnd::test_an_end_that_says_nothing_of_a_report_leaves_it_out[tally]",
    ),
    "report after the list": bug(
        COORDINATOR,
        "        if self.state is not CheckState.COLLECTING:\n            raise",
        "        if False:\n            raise",
        "machines.py::TestReports::test_no_report_enters_a_closed_list",
    ),
    "second report of a hospital": bug(
        COORDINATOR,
        "if self._history.reports.get(hospital, report) != report:",
        "if False:",
        "machines.py::TestReports::test_the_same_report_again_changes_nothing_and_another_one_is_refused",
    ),
    "audit that takes any seed": bug(
        "verified/side_audit.py",
        "    wrong = said.wrong_of([first], (type(first),), by_tally=is_tally)\n",
        "    wrong: tuple[str, ...] = ()\n",
        "audit.py::TestLies::test_a_seed_of_another_noise_is_not_the_committed_one",
    ),
    "audit that takes any list": bug(
        "verified/side_audit.py",
        "if {report.frame for report in listed} != set(came):",
        "if False:",
        "audit.py::TestCoordinator::test_a_report_that_it_left_out_is_found",
    ),
    "audit that takes any envelope handed on": bug(
        "verified/side_audit.py",
        "        require_handed_on(report.header, report.sealed)\n",
        "        pass\n",
        "audit.py::TestCoordinator::test_a_part_that_it_handed_on_changed_is_found",
    ),
    "audit that asks for no part": bug(
        "verified/side_audit.py",
        "unopened = tuple(each for each in senders if each not in material.parts)",
        "unopened: tuple[bytes, ...] = ()",
        "audit.py::TestLies::test_who_shows_no_part_of_a_report_that_it_left_out_is_no_liar_and_is_named",
    ),
    "audit of a sum without its noise": bug(
        "verified/side_audit.py",
        "expected.append(side.sum_share(reports, decision, coin))",
        "expected += said._messages.get((SumShare, is_tally), [])",
        "audit.py::TestLies::test_wrong_noise_is_found",
    ),
}


@pytest.mark.parametrize("name", BUGS)
def test_a_planted_bug_is_of_todays_code(name: str) -> None:
    planted = BUGS[name]
    source = (ROOT / "protocols" / planted.module).read_text("utf-8")
    for before, after in planted.changes:
        assert source.count(before) == 1
        assert before != after
    file, *inside = planted.test.partition("[")[0].split("::")
    text = (ROOT / f"{HERE}{file}").read_text("utf-8")
    assert all(f"def {one}(" in text or f"class {one}:" in text for one in inside)


RUN = (
    "import sys; sys.path.insert(0, {tree!r}); import protocols; import pytest; "
    "sys.exit(pytest.main(['-q', '-x', '-p', 'no:cacheprovider', {test!r}]))"
)
FAILED = 1
"""pytest's code where tests ran and some failed: not where none was found, or none could run."""


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", BUGS)
def test_a_planted_bug_fails_its_test(name: str, tmp_path: Path) -> None:
    planted = BUGS[name]
    shutil.copytree(ROOT / "protocols", tmp_path / "protocols")
    module = tmp_path / "protocols" / planted.module
    source = module.read_text("utf-8")
    for before, after in planted.changes:
        source = source.replace(before, after)
    module.write_text(source, "utf-8")
    code = RUN.format(tree=str(tmp_path), test=HERE + planted.test)
    ran = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, check=False)
    assert ran.returncode == FAILED, ran.stdout.decode()[-2000:]
