"""The API against strangers, and programs that ask for more than their token carries."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from coordinator.console.access import ACCESS
from coordinator.console.api import ENDPOINTS, PREFIX
from coordinator.database.federation_schema import ApiTokenRow
from coordinator.errors import PersonError
from coordinator.operator import Coordinator
from coordinator.people.api_tokens import Scope
from coordinator.people.people import Role
from coordinator.runs.queue import RunState
from tests.support.command import Command, pate_fed
from tests.support.console import (
    add_entries,
    add_hospitals,
    add_runs,
    browser,
    form_token,
    newest_acts,
    opened,
    seeded,
)

__all__ = ["pate_fed"]

ORDERS = ("pause", "resume", "stop")


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Coordinator]:
    """A federation with something everywhere."""
    with opened(tmp_path_factory.mktemp("api") / "federation") as coordinator:
        seeded(coordinator)
        for role in Role:
            coordinator.people.add(role.value, role)
        yield coordinator


@pytest.fixture
def fresh(tmp_path: Path) -> Iterator[Coordinator]:
    with opened(tmp_path / "federation") as coordinator:
        add_hospitals(coordinator, "North", "South", "West")
        add_runs(coordinator, "first", hospitals=("North",), state=RunState.RUNNING)
        coordinator.people.add("Anna", Role.OPERATOR)
        yield coordinator


def program(coordinator: Coordinator, token: str = "") -> TestClient:
    """A program with a token."""
    client = browser(coordinator)
    client.base_url = client.base_url.join(f"{PREFIX}/")
    client.headers["Authorization"] = f"Bearer {token}"
    return client


def filled(path: str) -> str:
    return path.replace("{run}", "is-done").replace("{file:path}", "labels.csv").lstrip("/")


class TestWhoMayDoIt:
    def test_every_endpoint_opens_to_its_scope_and_its_pages_roles_alone(
        self, federation: Coordinator
    ) -> None:
        for role in Role:
            whole = federation.tokens.make(
                f"all of {role.value}", person=role.value, scopes=list(Scope)
            )
            for (method, path), (scope, page) in ENDPOINTS.items():
                others = set(Scope) - {scope}
                name = f"no {scope.name} {role.name}"
                known = {one.name for one in federation.tokens.all()}
                if name in known:
                    federation.tokens.revoke(name)
                less = federation.tokens.make(name, person=role.value, scopes=others)
                refused = program(federation, less).request(method, filled(path))
                case = f"{method} {path} as {role}"
                assert (refused.status_code, refused.json()["code"]) == (403, "PF-435"), case
                answer = program(federation, whole).request(method, filled(path))
                may = role in (ACCESS[page] or ())
                assert (answer.status_code != 403) is may, case
                assert answer.status_code in ((200, 400) if may else (403,)), case

    @pytest.mark.parametrize(
        "header", ["", "Bearer", "Bearer ", "Bearer pate_fed_00", "Basic YTpi", "Bearer \x00é"]
    )
    def test_a_stranger_gets_nothing(self, federation: Coordinator, header: str) -> None:
        client = program(federation)
        sent = [(b"authorization", header.encode("latin-1"))]
        del client.headers["Authorization"]
        for method, path in ENDPOINTS:
            answer = client.request(method, filled(path), headers=sent)
            assert (answer.status_code, answer.json()["code"]) == (401, "PF-435")
            assert answer.headers["www-authenticate"] == "Bearer"

    def test_a_signed_in_browser_is_a_stranger_here(self, federation: Coordinator) -> None:
        client = browser(federation, Role.ADMINISTRATOR)
        assert client.get("/runs").status_code == 200
        assert client.get(f"{PREFIX}/runs").status_code == 401
        assert client.post(f"{PREFIX}/runs/is-running/stop").status_code == 401
        assert federation.queue.find("is-running").state is RunState.RUNNING

    def test_a_token_opens_no_page(self, federation: Coordinator) -> None:
        whole = federation.tokens.make("pages", person="administrator", scopes=list(Scope))
        client = program(federation, whole)
        for (method, path), roles in ACCESS.items():
            if method == "GET" and roles is not None:
                where = str(client.base_url).replace(f"{PREFIX}/", "") + "/" + filled(path)
                answer = client.get(where)
                assert (answer.status_code, answer.headers["location"]) == (303, "/sign-in")


class TestTheEndOfAToken:
    def made(self, coordinator: Coordinator) -> TestClient:
        text = coordinator.tokens.make("grafana", person="Anna", scopes=list(Scope))
        client = program(coordinator, text)
        assert client.get("runs").status_code == 200
        return client

    def test_it_ends_by_revocation_reset_removal_and_time(self, fresh: Coordinator) -> None:
        client = self.made(fresh)
        fresh.tokens.revoke("grafana")
        assert client.get("runs").status_code == 401
        client = self.made(fresh)
        fresh.people.reset("Anna")
        assert client.get("runs").status_code == 401
        client = self.made(fresh)
        fresh.people.remove("Anna") if fresh.people.add("Bert", Role.ADMINISTRATOR) else None
        assert client.get("runs").status_code == 401
        fresh.people.add("Anna", Role.OPERATOR)
        assert client.get("runs").status_code == 401  # another Anna
        client = self.made(fresh)
        [token] = fresh.tokens.all()
        fresh.tokens._clock = lambda: token.ends_at - timedelta(seconds=1)
        assert fresh.tokens.find(client.headers["Authorization"][7:]) is not None
        fresh.tokens._clock = lambda: token.ends_at
        assert fresh.tokens.find(client.headers["Authorization"][7:]) is None

    def test_a_role_that_was_taken_away_holds_no_more(self, fresh: Coordinator) -> None:
        client = self.made(fresh)
        fresh.people.give_role("Anna", Role.AUDITOR)
        assert client.post("runs/first/pause").status_code == 403
        assert fresh.queue.find("first").wanted == ""

    def test_its_text_is_stored_nowhere_and_each_use_is_counted(
        self, fresh: Coordinator, tmp_path: Path
    ) -> None:
        client = self.made(fresh)
        client.get("audit")
        client.post("people")
        [token] = fresh.tokens.all()
        assert (token.used, token.person, token.used_at is not None) == (2, "Anna", True)
        secret = client.headers["Authorization"].removeprefix("Bearer pate_fed_").encode()
        files = [one.read_bytes() for one in tmp_path.rglob("*") if one.is_file()]
        assert files
        assert not any(secret in one or bytes.fromhex(secret.decode()) in one for one in files)
        with fresh._database.session() as session:
            assert len(session.query(ApiTokenRow).one().digest) == 32


class TestMaking:
    @pytest.mark.parametrize(
        "change",
        [
            {"name": ""},
            {"name": "a\nb"},
            {"name": "x" * 65},
            {"person": "Nobody"},
            {"scopes": []},
            {"days": 0},
            {"days": -1},
            {"days": 367},
            {"days": float("nan")},
            {"days": float("inf")},
        ],
        ids=str,
    )
    def test_a_wrong_token_is_not_made(self, fresh: Coordinator, change: dict[str, object]) -> None:
        asked = {"name": "grafana", "person": "Anna", "scopes": [Scope.READ_RUNS], "days": 9.0}
        asked |= change
        before = fresh.audit_log.end
        with pytest.raises(PersonError) as caught:
            fresh.tokens.make(asked.pop("name"), **asked)  # type: ignore[arg-type]
        assert (caught.value.code, fresh.tokens.all(), fresh.audit_log.end) == (
            "PF-434",
            [],
            before,
        )

    def test_the_console_makes_shows_once_and_revokes(self, fresh: Coordinator) -> None:
        client = browser(fresh, Role.ADMINISTRATOR)
        sent = {"form_token": form_token(client, "/people"), "name": "grafana", "person": "Anna"}
        wanted = sent | {"days": "9", "runs:read": "yes", "privacy:read": "yes"}
        page = client.post("/people/token", data=wanted).text
        text = page.split("pate_fed_")[1][:64]
        assert text not in client.get("/people").text
        [token] = fresh.tokens.all()
        assert token.scopes == {Scope.READ_RUNS, Scope.READ_PRIVACY}
        assert program(fresh, f"pate_fed_{text}").get("privacy").json()["budget"] is None
        assert client.post("/people/token", data=wanted).status_code == 400  # its name is taken
        assert client.post("/people/token/revoke", data=sent).status_code == 303
        assert fresh.tokens.all() == []
        acts = [(one["act"], one["subject"], one["by"]) for one in newest_acts(fresh)]
        assert ("token made", "grafana", "Some administrator") in acts
        assert ("token revoked", "grafana", "Some administrator") in acts

    def test_the_command_line_does_so_too(self, fresh: Coordinator, pate_fed: Command) -> None:
        home = ("--home", fresh.home.folder, "--format", "json")
        asked = ("--person", "Anna", "--scope", "runs:read", "--scope", "runs:stop")
        text = pate_fed("tokens", "add", "cron", *asked, *home).json["token"]
        assert program(fresh, text).get("runs/first").json()["state"] == "running"
        [shown] = pate_fed("tokens", "list", *home).json["tokens"]
        assert (shown["scopes"], shown["used"]) == (["runs:read", "runs:stop"], 1)
        assert text not in str(shown)
        assert pate_fed("tokens", "revoke", "cron", *home).code == 0
        assert program(fresh, text).get("runs/first").status_code == 401
        refused = pate_fed("tokens", "add", "x", "--person", "Anna", "--scope", "all", *home)
        assert refused.code == 2


class TestReading:
    @pytest.fixture
    def client(self, federation: Coordinator) -> Iterator[TestClient]:
        name = "reader"
        text = federation.tokens.make(name, person="auditor", scopes=list(Scope))
        yield program(federation, text)
        federation.tokens.revoke(name)

    def test_it_says_what_the_database_says(
        self, federation: Coordinator, client: TestClient
    ) -> None:
        runs = client.get("runs").json()["runs"]
        assert [one["name"] for one in runs] == [one.name for one in federation.queue.page()]
        one = client.get("runs/is-waiting").json()
        assert len(one["hospitals"]) == 3
        assert client.get("runs", params={"state": "done"}).json()["runs"][0]["name"] == "is-done"
        spent = client.get("privacy").json()["spent"]
        known = federation.spending.by_hospital()
        assert [(one["hospital"], one["epsilon"]) for one in spent] == [
            (one.hospital, one.epsilon) for one in known
        ]
        assert {one["name"] for one in client.get("hospitals").json()} == {
            one.name for one in federation.enrollment.parties()
        }
        assert client.get("health").json() == {"parts": None}

    def test_results_hold_what_epsilon_covers_or_their_page_shows(
        self, federation: Coordinator, client: TestClient
    ) -> None:
        found = client.get("runs/is-done/results").json()
        record, files = federation.finished.read("is-done")
        assert found["epsilon"] == record.privacy.views.public.epsilon
        assert found.keys() == {
            *("name", "asked", "answered", "epsilon", "delta", "unit", "student", "warnings"),
            "files",
        }
        assert [one["path"] for one in found["files"]] == [one.path for one in files]
        before = federation.audit_log.end[0]
        content = client.get("runs/is-done/results/labels.csv").content
        assert content == federation.finished.content("is-done", "labels.csv")
        [entry] = newest_acts(federation, most=1)
        assert federation.audit_log.end[0] == before + 1
        assert (entry["by"], entry["from"]) == ("auditor", "API token reader")

    @pytest.mark.parametrize(
        ("path", "status"),
        [
            ("runs/none", 404),
            ("runs/none/results", 404),
            ("runs/is-running/results", 404),
            ("runs/is-done/results/../../federation.toml", 404),
            ("runs/is-done/results/%2e%2e/%2e%2e/federation.toml", 404),
            ("runs/is-done/results/none.csv", 404),
            ("runs?state=asleep", 400),
            ("runs?before=-1", 400),
            ("audit?before=1e9", 400),
            ("audit?before=99999999999999999999", 400),
            ("nothing", 404),
            ("people", 404),
            ("docs", 404),
        ],
    )
    def test_a_wrong_address_gets_a_code(self, client: TestClient, path: str, status: int) -> None:
        answer = client.get(path)
        assert (answer.status_code, answer.json()["code"]) == (status, "PF-435")

    def test_pages_go_on_until_the_last(self, fresh: Coordinator) -> None:
        add_runs(fresh, *(f"run-{number}" for number in range(120)), hospitals=("North",))
        add_entries(fresh, 120)
        text = fresh.tokens.make("reader", person="Anna", scopes=list(Scope))
        client, names, after = program(fresh, text), list[str](), None
        for _ in range(3):
            page = client.get("runs", params={} if after is None else {"before": after}).json()
            names += [one["name"] for one in page["runs"]]
            after = page["next"]
        assert (after, len(names), len(set(names))) == (None, 121, 121)
        first = client.get("audit").json()
        older = client.get("audit", params={"before": first["next"]}).json()
        assert len(first["entries"]) == len(older["entries"]) == 50
        numbers = [one["number"] for one in first["entries"] + older["entries"]]
        assert numbers == sorted(set(numbers), reverse=True)

    def test_openapi_describes_every_endpoint(self, federation: Coordinator) -> None:
        answer = browser(federation).get(f"{PREFIX}/openapi.json")
        said = answer.json()
        described = {
            (method.upper(), path) for path, one in said["paths"].items() for method in one
        }
        known = {(method, path.replace(":path", "")) for method, path in ENDPOINTS}
        assert described == known
        for path in said["paths"].values():
            for one in path.values():
                assert one["security"] == [{"HTTPBearer": []}]
                assert one["summary"]
        assert said["servers"] == [{"url": PREFIX}]
        assert "lung study" not in answer.text


class TestActing:
    def test_orders_are_the_persons_and_name_the_token(self, fresh: Coordinator) -> None:
        text = fresh.tokens.make("cron", person="Anna", scopes=[Scope.STOP_RUNS, Scope.START_RUNS])
        client = program(fresh, text)
        assert client.post("runs/first/pause").json()["wanted"] == "pause"
        assert client.post("runs/first/resume").json()["wanted"] == ""
        assert client.post("runs/first/stop").json()["state"] == "stopping"
        again = client.post("runs/first/pause")
        assert (again.status_code, again.json()["code"]) == (400, "PF-446")
        told = newest_acts(fresh, most=3)
        assert [one["act"] for one in told] == ["run stopped", "run resumed", "run paused"]
        assert {(one["by"], one["from"]) for one in told} == {("Anna", "API token cron")}
        for order in ORDERS:
            assert client.post(f"runs/none/{order}").status_code == 404

    @pytest.mark.slow
    def test_a_run_is_asked_only_at_the_cost_that_was_seen(
        self, fresh: Coordinator, tmp_path: Path
    ) -> None:
        text = fresh.tokens.make("cron", person="Anna", scopes=[Scope.START_RUNS])
        client, table = program(fresh, text), tmp_path / "public.csv"
        rows = [f"{n % 7},{n % 11},{n * 37 % 101}" for n in range(60)]
        table.write_text("\n".join(["a,b,c", *rows, ""]))
        form = {"name": "second", "label": "sick", "classes": "no,yes", "select": "medoids"}
        form |= {"patience": "24", "ask": "12", "epsilon": "8", "delta": "1e-5"}

        def send(path: str, **more: str) -> tuple[int, dict[str, object]]:
            with table.open("rb") as file:
                answer = client.post(path, data=form | more, files={"file": ("public.csv", file)})
            return answer.status_code, answer.json()

        status, cost = send("runs/cost")
        assert (status, cost["name"], cost["new_queries"]) == (200, "second", 12)
        assert 0 < float(str(cost["epsilon"])) <= 8
        assert list(cost["hospitals"]) == ["North", "South", "West"]  # type: ignore[call-overload]
        mistyped = send("runs/cost", querys="12")
        assert (mistyped[0], mistyped[1]["got"]) == (400, "querys")
        assert send("runs")[0] == send("runs", seen="0" * 64)[0] == 400
        changed = send("runs", seen=str(cost["seen"]), epsilon="9")
        assert (changed[0], changed[1]["code"], len(fresh.queue.all())) == (400, "PF-435", 1)
        status, queued = send("runs", seen=str(cost["seen"]))
        assert (status, queued["state"]) == (201, "queued")
        [told] = newest_acts(fresh, most=1)
        assert (told["act"], told["by"], told["from"]) == ("run asked", "Anna", "API token cron")
        fresh.budget.change(0.001)
        over, _ = send("runs/cost", name="third")
        _, third = send("runs/cost", name="third")
        refused = send("runs", name="third", seen=str(third["seen"]))
        assert (over, refused[0], refused[1]["code"]) == (200, 400, "PF-437")

    def test_no_token_raises_a_budget(self, fresh: Coordinator) -> None:
        fresh.people.add("Bert", Role.ADMINISTRATOR)
        text = fresh.tokens.make("cron", person="Bert", scopes=list(Scope))
        fresh.budget.change(2.0)
        assert program(fresh, text).post("budget", data={"epsilon": "9"}).status_code == 404
        assert fresh.budget.epsilon() == 2.0
