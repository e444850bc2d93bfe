"""The house itself: what is imported, what is shipped, what is public, and every error's code."""

from __future__ import annotations

import ast
import gc
import importlib
import importlib.metadata
import importlib.util
import inspect
import os
import pkgutil
import re
import subprocess
import sys
import tomllib
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from types import ModuleType

import pytest

from tests.support.markers import sampled

REPOSITORY = Path(__file__).parents[1]
PACKAGES = ("pate_fed", "protocols", "party", "coordinator")
LIBRARIES = ("pate_fed", "protocols")
ERROR_PAGE = REPOSITORY / "docs" / "reference" / "errors.md"

SOURCES = sorted(
    path.relative_to(REPOSITORY)
    for package in PACKAGES
    for path in (REPOSITORY / package).rglob("*.py")
)
BENCHMARKS = sorted((REPOSITORY / "benchmarks").rglob("*.py"))
INITS = [path for path in SOURCES if path.name == "__init__.py"]


@cache
def tree_of(path: Path) -> ast.Module:
    gc.disable()  # trees stay: to look among them for garbage takes twice as long as to read them
    try:
        return ast.parse((REPOSITORY / path).read_text(encoding="utf-8"))
    finally:
        gc.enable()


@cache
def nodes_of(path: Path) -> tuple[ast.AST, ...]:
    return tuple(ast.walk(tree_of(path)))


@cache
def imported_by(path: Path) -> frozenset[str]:
    """Modules that a file imports, wherever in it."""
    names: set[str] = set()
    for node in nodes_of(path):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names.add(node.module)
            names.update(f"{node.module}.{alias.name}" for alias in node.names)
    return frozenset(names)


def found_in(paths: list[Path], look: Callable[[Path], list[str]]) -> dict[str, list[str]]:
    """What `look` finds, by the file that it is in."""
    return {path.as_posix(): found for path in paths if (found := look(path))}


def is_of(name: str, *packages: str) -> bool:
    return any(name == package or name.startswith(f"{package}.") for package in packages)


def modules() -> Iterator[ModuleType]:
    for package in PACKAGES:
        root = importlib.import_module(package)
        yield root
        for found in pkgutil.walk_packages(root.__path__, f"{package}."):
            if ".migrations" in found.name:  # Alembic reads them
                continue
            yield importlib.import_module(found.name)


class TestImports:
    @pytest.mark.slow
    def test_no_pickle_and_no_casual_randomness_anywhere(self) -> None:
        forbidden = ("pickle", "random", "shelve", "marshal", "joblib", "dill", "numpy.random.rand")

        def look(path: Path) -> list[str]:
            return [name for name in imported_by(path) if is_of(name, *forbidden)]

        assert found_in(SOURCES, look) == {}

    def test_no_global_generator_of_numpy(self) -> None:
        allowed = {"Generator", "default_rng", "SeedSequence", "PCG64"}

        def look(path: Path) -> list[str]:
            return [
                node.attr
                for node in nodes_of(path)
                if isinstance(node, ast.Attribute)
                and isinstance(node.value, ast.Attribute)
                and node.value.attr == "random"
                and node.attr not in allowed
            ]

        assert found_in(SOURCES, look) == {}

    def test_files_are_read_by_one_reader(self) -> None:
        """A device has no end, a pipe never answers: `regular_files` refuses them, and a size."""

        def look(path: Path) -> list[str]:
            calls = [node for node in nodes_of(path) if isinstance(node, ast.Call)]
            named = [(one.func.attr, one) for one in calls if isinstance(one.func, ast.Attribute)]
            return [
                f"{name} in line {one.lineno}"
                for name, one in named
                if name in ("read_text", "read_bytes") or _opens_to_read(name, one)
            ]

        others = {
            "pate_fed/regular_files.py",
            "protocols/transcript_verifier.py",  # runs alone; it checks the file itself
            "party/doctor/probes.py",  # the kernel's own word
            "party/page/pages_app.py",  # files of the package
            "pate_fed/nodes/checks.py",  # the same
            "coordinator/console/rendering.py",  # the same
        }
        shipped = [path for path in SOURCES if path.as_posix() not in others]
        assert found_in(shipped, look) == {}

    def test_nobody_swallows_what_nobody_understood(self) -> None:
        def look(path: Path) -> list[str]:
            return [
                f"line {node.lineno}"
                for node in nodes_of(path)
                if isinstance(node, ast.ExceptHandler)
                and len(node.body) == 1
                and isinstance(node.body[0], ast.Pass)
            ]

        assert found_in(SOURCES, look) == {}

    def test_nodes_do_not_know_each_other_but_for_a_simulation(self) -> None:
        for path in SOURCES:
            names = imported_by(path)
            if path.parts[0] == "party":
                assert not any(is_of(name, "coordinator") for name in names), path
            elif path.parts[:2] != ("coordinator", "simulation"):
                assert not any(is_of(name, "party") for name in names), path

    def test_libraries_know_neither_nodes_nor_each_other(self) -> None:
        for path in SOURCES:
            if path.parts[0] in LIBRARIES and path.parts[:2] != ("pate_fed", "nodes"):
                others = {*PACKAGES} - {path.parts[0]}
                assert not any(is_of(name, *others) for name in imported_by(path)), path

    def test_flower_is_met_where_it_may_be(self) -> None:
        met = {path.as_posix() for path in SOURCES if "flwr" in str(imported_by(path))}
        assert met == {
            "party/flower/client_app.py",
            "party/flower/executor.py",
            "party/flower/supernode.py",
            "coordinator/flower/server_app.py",
            "coordinator/flower/superlink_client.py",
            "coordinator/flower/superlink.py",
            "coordinator/flower/local_grid.py",
            "coordinator/simulation/engines.py",
        }

    def test_tests_are_not_imported_by_what_is_shipped(self) -> None:
        for path in SOURCES:
            assert not any(is_of(name, "tests", "benchmarks") for name in imported_by(path)), path


def _opens_to_read(name: str, call: ast.Call) -> bool:
    """Tell whether a call opens a path for reading: other methods `open` have no mode, no text."""
    modes = [one.value for one in call.args if isinstance(one, ast.Constant)]
    is_text = {"encoding", "newline"} & {one.arg for one in call.keywords}
    if name == "load" and "allow_pickle" in {one.arg for one in call.keywords}:
        return not isinstance(call.args[0], ast.Name) or call.args[0].id != "file"
    return name == "open" and any(
        str(mode).startswith("r") for mode in modes or ["r"] * bool(is_text)
    )


def _imports_late(node: ast.stmt) -> bool:
    """Tell whether a statement offers a name without importing it: what learns takes a second."""
    if isinstance(node, ast.If):
        return ast.dump(node.test) == "Name(id='TYPE_CHECKING', ctx=Load())"
    return isinstance(node, ast.FunctionDef) and node.name == "__getattr__"


FACES = (
    *("coordinator/cli", "coordinator/console", "party/cli", "party/page"),
    *("coordinator/doctor", "party/doctor", "pate_fed/lab/experiments"),
)
"""Packages that show or check a thing: their modules bear its name, which a user types, too."""

SHARED_NAMES = {
    "__init__": "Python's",
    "__main__": "Python's",
    "errors": "each package has its own, in one tree",
    "at_coordinator": "the coordinator's end of each phase of `protocols.rounds`",
    "at_party": "a party's end of each phase",
    "service": "the program of each node, as its command and its unit call it",
}
"""Names of several modules, each with the reason."""


@pytest.mark.parametrize(
    ("listing", "kind", "key"),
    [
        ("equivalent_mutants.toml", "mutant", "before"),
        ("hidden_rules.toml", "exception", "line"),
    ],
)
def test_what_a_list_of_exceptions_excuses_stands_in_the_code(
    listing: str, kind: str, key: str
) -> None:
    entries = tomllib.loads(Path("tests", listing).read_text("utf-8")).get(kind, [])
    stale = [entry for entry in entries if entry[key] not in Path(entry["path"]).read_text("utf-8")]
    assert stale == []


class TestNames:
    def test_no_class_name_stands_twice(self) -> None:
        places: dict[str, list[str]] = {}
        for path in SOURCES:
            for node in nodes_of(path):
                if isinstance(node, ast.ClassDef):
                    places.setdefault(node.name, []).append(path.as_posix())
        assert {name: where for name, where in places.items() if len(where) > 1} == {}

    def test_no_module_name_stands_twice(self) -> None:
        places: dict[str, list[str]] = {}
        for path in SOURCES:
            if (
                not any(path.is_relative_to(face) for face in FACES)
                and path.stem not in SHARED_NAMES
            ):
                places.setdefault(path.stem, []).append(path.as_posix())
        assert {name: where for name, where in places.items() if len(where) > 1} == {}

    def test_no_face_has_two_modules_of_a_name_and_each_shared_name_is_shared(self) -> None:
        for face in FACES:
            names = Counter(path.stem for path in SOURCES if path.is_relative_to(face))
            assert {name for name, count in names.items() if count > 1} <= {"__init__"}, face
        everywhere = Counter(path.stem for path in SOURCES)
        assert all(everywhere[name] > 1 for name in SHARED_NAMES)


class TestModules:
    def test_a_module_says_what_it_is_in_its_first_line(self) -> None:
        def look(path: Path) -> list[str]:
            said = (ast.get_docstring(tree_of(path)) or "").split("\n")[0]
            return [] if len(said) > 10 else [f"says {said!r}"]

        assert found_in(SOURCES, look) == {}

    def test_an_init_lists_its_public_names_and_does_nothing_else(self) -> None:
        def look(path: Path) -> list[str]:
            return [
                ast.dump(node)
                for node in tree_of(path).body
                if not isinstance(node, ast.Assign | ast.AnnAssign | ast.ImportFrom)
                and not _imports_late(node)
                and not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant))
            ]

        assert found_in(INITS, look) == {}

    def test_public_names_exist_and_are_sorted_into_one_list(self) -> None:
        for module in modules():
            names = getattr(module, "__all__", None)
            if names is None:
                assert not module.__file__ or not module.__file__.endswith("__init__.py"), module
                continue
            assert len(set(names)) == len(names), module
            for name in names:
                assert hasattr(module, name), f"{module.__name__}.{name}"

    @pytest.mark.parametrize("path", BENCHMARKS, ids=lambda path: path.stem)
    def test_what_a_benchmark_takes_from_our_modules_is_there(self, path: Path) -> None:
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if not isinstance(node, ast.ImportFrom) or node.module is None:
                continue
            if node.module.split(".")[0] not in (*PACKAGES, "benchmarks"):
                continue
            taken = importlib.import_module(node.module)
            for name in node.names:
                has = hasattr(taken, name.name)
                assert has or importlib.util.find_spec(f"{node.module}.{name.name}"), name.name

    def test_no_module_is_called_utils(self) -> None:
        vague = {"utils", "util", "helpers", "common", "misc"}
        assert not {path.stem for path in SOURCES} & vague


MOST_METHODS, MOST_LINES = 24, 600


def methods_of(kind: ast.ClassDef) -> int:
    """Public and private ones, properties and dunder names included."""
    return sum(isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) for node in kind.body)


class TestSizes:
    """Large things are split at a noun, not hidden."""

    def test_no_class_has_25_methods(self) -> None:
        larger = {
            node.name: methods_of(node)
            for path in SOURCES
            for node in nodes_of(path)
            if isinstance(node, ast.ClassDef) and methods_of(node) > MOST_METHODS
        }
        assert larger == {}

    def test_no_file_has_more_than_600_lines(self) -> None:
        lines = {path: (REPOSITORY / path).read_text("utf-8").count("\n") for path in SOURCES}
        assert {path: count for path, count in lines.items() if count > MOST_LINES} == {}


class TestRule:
    """A rule's numbers travel whole: `pate_fed.rule`."""

    @pytest.mark.parametrize("name", ["sigma1", "sigma2"])
    def test_a_noise_is_a_field_of_its_rule_its_event_and_its_record_alone(self, name: str) -> None:
        holders = {
            kind.name
            for path in SOURCES
            for kind in nodes_of(path)
            if isinstance(kind, ast.ClassDef)
            for node in kind.body
            if isinstance(node, ast.AnnAssign) and getattr(node.target, "id", "") == name
        }
        assert holders == {"Rule", "ConfidentGaussianMaxEvent", "Parameters"}

    def test_no_function_takes_sigma1_beside_sigma2(self) -> None:
        takers = {
            path.as_posix()
            for path in SOURCES
            for node in nodes_of(path)
            if isinstance(node, ast.FunctionDef)
            and {"sigma1", "sigma2"}
            <= {one.arg for one in (*node.args.args, *node.args.kwonlyargs)}
        }
        assert not takers


ERROR_MODULES = {name: importlib.import_module(f"{name}.errors") for name in PACKAGES}
RANGES = {"pate_fed": "PF-1", "protocols": "PF-2", "party": "PF-3", "coordinator": "PF-4"}
WITHOUT_CODE = ("RefusalError", "CodedError")
"""A refusal has the code of its `Reason`; a base of packages has none."""


def errors_of(package: str) -> list[type[Exception]]:
    module = ERROR_MODULES[package]
    return [
        kind
        for _, kind in inspect.getmembers(module, inspect.isclass)
        if issubclass(kind, Exception)
        and kind.__module__ == module.__name__
        and kind.__name__ not in WITHOUT_CODE
        and not kind.__name__.startswith("_")
    ]


ERRORS = [(package, kind) for package in PACKAGES for kind in errors_of(package)]
ERROR_IDS = [f"{package}.{kind.__name__}" for package, kind in ERRORS]


def code_of(kind: type[Exception]) -> str:
    code: str = kind.code  # type: ignore[attr-defined]
    return code


class TestErrors:
    @sampled()
    @pytest.mark.parametrize(("package", "kind"), ERRORS, ids=ERROR_IDS)
    def test_every_error_has_a_code_of_its_package(
        self, package: str, kind: type[Exception]
    ) -> None:
        assert re.fullmatch(r"PF-[1-4]\d\d", code_of(kind))
        assert code_of(kind).startswith(RANGES[package])

    def test_every_error_is_explained_to_people(self) -> None:
        page = ERROR_PAGE.read_text(encoding="utf-8")
        assert [kind.__name__ for _, kind in ERRORS if code_of(kind) not in page] == []

    def test_no_code_is_used_twice(self) -> None:
        reasons = [str(reason) for reason in ERROR_MODULES["party"].Reason]
        used = Counter([*(code_of(kind) for _, kind in ERRORS), *reasons])
        assert [code for code, times in used.items() if times > 1] == []

    def test_reasons_of_a_refusal_are_explained_to_people(self) -> None:
        page = ERROR_PAGE.read_text(encoding="utf-8")
        assert [str(r) for r in ERROR_MODULES["party"].Reason if str(r) not in page] == []

    def test_page_explains_no_code_that_does_not_exist(self) -> None:
        known = {code_of(kind) for _, kind in ERRORS}
        known |= {str(reason) for reason in ERROR_MODULES["party"].Reason}
        page = set(re.findall(r"PF-\d{3}", ERROR_PAGE.read_text(encoding="utf-8")))
        assert page - known == set()

    def test_no_public_error_is_defined_elsewhere(self) -> None:
        elsewhere = {
            f"{module.__name__}.{kind.__name__}"
            for module in modules()
            for _, kind in inspect.getmembers(module, inspect.isclass)
            if issubclass(kind, BaseException)
            and kind.__module__ == module.__name__
            and kind.__module__.startswith(PACKAGES)
            and not kind.__module__.endswith(".errors")
            and not kind.__name__.startswith("_")
        }
        assert elsewhere <= {"coordinator.runs.labeling.messenger.SilenceError"}


def built_wheel(folder: Path) -> Path:
    """Let hatchling build the wheel of this tree."""
    from hatchling.builders.wheel import WheelBuilder  # noqa: PLC0415

    [built] = WheelBuilder(str(REPOSITORY)).build(directory=str(folder), versions=["standard"])
    return Path(built)


@pytest.fixture(scope="module")
def wheel_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built_wheel(tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def wheel(wheel_file: Path) -> list[str]:
    """Names in the wheel."""
    with zipfile.ZipFile(wheel_file) as archive:
        return archive.namelist()


class TestDistribution:
    def test_wheel_holds_the_four_packages_and_nothing_else(self, wheel: list[str]) -> None:
        tops = {name.split("/")[0] for name in wheel}
        [metadata] = [top for top in tops if top.endswith(".dist-info")]
        assert tops - {metadata} == set(PACKAGES)
        assert not [name for name in wheel if "__pycache__" in name or name.endswith(".pyc")]

    def test_wheel_holds_every_source_the_template_and_the_type_markers(
        self, wheel: list[str]
    ) -> None:
        for path in SOURCES:
            assert path.as_posix() in wheel
        assert "pate_fed/report/templates/report.html.j2" in wheel
        assert {"party/page/templates/base.html.j2", "party/page/templates/style.css"} <= {*wheel}
        for package in PACKAGES:
            assert f"{package}/py.typed" in wheel

    def test_both_commands_are_installed(self, wheel: list[str]) -> None:
        assert [name for name in wheel if name.endswith(".dist-info/entry_points.txt")]
        with (REPOSITORY / "pyproject.toml").open("rb") as file:
            scripts = tomllib.load(file)["project"]["scripts"]
        assert set(scripts) == {"pate-fed", "pate-party"}
        for target in scripts.values():
            module, function = target.split(":")
            assert callable(getattr(importlib.import_module(module), function))

    def test_two_builds_are_one_file(self, wheel_file: Path, tmp_path: Path) -> None:
        assert built_wheel(tmp_path).read_bytes() == wheel_file.read_bytes()

    @pytest.mark.slow
    def test_it_runs_away_from_the_checkout(self, wheel_file: Path, tmp_path: Path) -> None:
        installed, out = tmp_path / "installed", tmp_path / "run"
        with zipfile.ZipFile(wheel_file) as archive:
            archive.extractall(installed)
        start = (
            "import sys, coordinator, coordinator.cli; print(coordinator.__file__); "
            f"sys.argv = ['pate-fed', 'simulate', '--parties', '20', '--out', {str(out)!r}]; "
            "coordinator.cli.main()"
        )
        said = subprocess.run(
            [sys.executable, "-P", "-c", start],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(installed)},
            capture_output=True,
            text=True,
            check=True,
            timeout=600,
        ).stdout
        assert said.startswith(str(installed))
        assert (out / "report.html").is_file()

    def test_version_of_the_package_is_the_distributions(self) -> None:
        with (REPOSITORY / "pyproject.toml").open("rb") as file:
            version = tomllib.load(file)["project"]["version"]
        assert importlib.import_module("pate_fed").__version__ == version

    def test_what_is_imported_is_declared_and_what_is_declared_is_imported(self) -> None:
        """A dependency's dependency may leave it any day."""
        with (REPOSITORY / "pyproject.toml").open("rb") as file:
            project = tomllib.load(file)["project"]
        extras = project["optional-dependencies"]
        declared = {
            re.split(r"[\[<>=~! ]", line)[0]
            for line in [
                *project["dependencies"],
                *extras["dicom"],
                *extras["oidc"],
                *extras["onnx"],
                *extras["postgres"],
                *extras["ray"],
                *extras["tables"],
            ]
        }
        tops = {name.partition(".")[0] for path in SOURCES for name in imported_by(path)}
        homes = importlib.metadata.packages_distributions()
        imported = {
            re.sub(r"[-_.]+", "-", home).lower()
            for top in tops - {*sys.stdlib_module_names} - {*PACKAGES}
            for home in homes.get(top, [top])
        }
        by_url = {"psycopg"}  # SQLAlchemy loads the driver of a database
        assert imported ^ declared == by_url

    @pytest.mark.parametrize("package", PACKAGES)
    def test_packages_say_that_they_are_typed(self, package: str) -> None:
        assert (REPOSITORY / package / "py.typed").is_file()
