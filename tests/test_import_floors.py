"""The import contract: rooms import from their own and lower floors, libraries keep their homes."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import seer

PACKAGE = Path(seer.__file__).parent

FLOORS = {
    "errors": 0,
    "units": 0,
    "memo": 0,
    "processes": 0,
    "graph": 1,
    "layers": 1,
    "model": 1,
    "spec": 1,
    "cluster": 1,
    "fabric": 1,
    "placement": 1,
    "calibration": 2,
    "timeline": 2,
    "play": 3,
    "_kernels": 3,
    "fluid": 3,
    "cost": 3,
    "workload": 3,
    "fit": 3,
    "readers": 3,
    "clocks": 4,
    "forecast": 4,
    "hosts": 4,
    "caveats": 4,
    "interval": 4,
    "choose": 4,
    "plans": 4,
    "graph_forecast": 4,
    "replay": 4,
    "validate": 5,
    "score": 5,
    "explain": 5,
    "compare": 5,
    "whatif": 5,
    "measure": 5,
    "reports": 5,
    "api": 6,
    "cli": 6,
    "__main__": 7,
}
HOMES = {
    "numba": {"_kernels"},
    "pydantic": {"readers", "cli"},
    "pydantic_core": {"readers", "cli"},
    "ruamel": {"readers"},
    "msgspec": {"readers", "reports"},
    "scipy": {"fit"},
    "torch": {"measure"},
    "networkx": {"fabric"},
    "typer": {"cli"},
    "rich": {"cli", "reports"},
    "matplotlib": {"reports"},
    "distributed": {"whatif"},
    "dask": {"whatif"},
    "ray": {"whatif"},
    "pyarrow": {"reports"},
    "pandas": {"reports", "api"},
    "polars": {"reports", "api"},
}
SPEAKERS = {"cli", "readers", "reports", "__main__"}
MODULES = sorted(PACKAGE.rglob("*.py"))


def room_of(name: str) -> str:
    parts = name.split(".")
    return parts[1] if len(parts) > 1 else ""


def module_name(path: Path) -> str:
    parts = ["seer", *path.relative_to(PACKAGE).with_suffix("").parts]
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports_of(tree: ast.Module) -> list[str]:
    """Full names of everything a module imports, wherever the statement stands."""
    found: list[str] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative imports hide the room they come from"
            found += [f"{node.module}.{alias.name}" for alias in node.names]
    return found


def parse(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


@pytest.mark.parametrize("path", MODULES, ids=module_name)
def test_a_room_imports_only_from_its_own_and_lower_floors(path: Path) -> None:
    room = room_of(module_name(path))
    if not room:
        return
    assert room in FLOORS, f"the room '{room}' has no floor"
    for name in imports_of(parse(path)):
        other = room_of(name) if name.startswith("seer.") else ""
        if other in FLOORS and other != room:
            assert FLOORS[other] <= FLOORS[room], f"{module_name(path)} reaches up to {name}"


def test_rooms_do_not_import_each_other_in_a_circle() -> None:
    needs: dict[str, set[str]] = {room: set() for room in FLOORS}
    for path in MODULES:
        room = room_of(module_name(path))
        if room:
            names = (n for n in imports_of(parse(path)) if n.startswith("seer."))
            needs[room] |= {room_of(name) for name in names} & FLOORS.keys() - {room}
    left = dict(needs)
    while free := [room for room, others in left.items() if not others & left.keys()]:
        for room in free:
            del left[room]
    assert not left, f"rooms in a circle: {sorted(left)}"


@pytest.mark.parametrize("path", MODULES, ids=module_name)
def test_a_library_is_imported_only_in_its_room(path: Path) -> None:
    room = room_of(module_name(path))
    for name in imports_of(parse(path)):
        homes = HOMES.get(name.split(".")[0])
        assert homes is None or room in homes, f"{module_name(path)} imports {name}"


@pytest.mark.parametrize("path", MODULES, ids=module_name)
def test_only_the_rooms_at_the_door_print_open_and_exit(path: Path) -> None:
    if room_of(module_name(path)) in SPEAKERS:
        return
    for node in ast.walk(parse(path)):
        if isinstance(node, ast.Call):
            called = ast.unparse(node.func)
            assert called not in ("print", "open", "sys.exit", "exit"), (
                f"{module_name(path)}, line {node.lineno}: {called}()"
            )


@pytest.mark.parametrize("path", MODULES, ids=module_name)
def test_a_command_imports_nothing_heavy_before_it_runs(path: Path) -> None:
    if room_of(module_name(path)) != "cli":
        return
    allowed = ("seer.cli", "seer.errors")
    for node in parse(path).body:
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            for name in imports_of(ast.Module(body=[node], type_ignores=[])):
                if name.startswith("seer."):
                    assert name.startswith(allowed), f"{module_name(path)} imports {name} at once"
                assert name.split(".")[0] not in ("numpy", "scipy", "numba", "pydantic", "rich")
