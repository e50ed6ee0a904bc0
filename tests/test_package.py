"""The package as a whole: what importing it costs, what it exposes, and that its errors travel."""

import ast
import importlib
import pickle
import pkgutil
import re
import subprocess
import sys
from pathlib import Path

import pytest

import cloudedge
from cloudedge import errors
from cloudedge._renamed_arguments import renamed_arguments


def fresh(code):
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.strip()


@pytest.mark.parts
def test_importing_is_light():
    loaded = fresh("import sys; had = {*sys.modules}; import cloudedge; print(*{*sys.modules} - had)").split()
    heavy = {"paddle", "kubernetes", "docker", "boto3", "baidubce", "numpy", "pydantic", "requests", "typer", "typing"}
    assert heavy.isdisjoint(loaded)
    assert {name for name in loaded if name.startswith("cloudedge")} == {"cloudedge", "cloudedge._lazy"}


@pytest.mark.parts
def test_importing_takes_less_than_300_ms():
    code = "import time; t = time.perf_counter(); import cloudedge; print(time.perf_counter() - t)"
    assert min(float(fresh(code)) for _ in range(3)) < 0.3


@pytest.mark.parts
@pytest.mark.parametrize("name", ["cloudedge.cli.app", "cloudedge.bundle.Bundle", "cloudedge.hub.open_hub"])
def test_no_module_pulls_in_what_it_does_not_need(name):
    module, _, wanted = name.rpartition(".")
    loaded = fresh(f"import sys; from {module} import {wanted}; print(' '.join(sys.modules))").split()
    assert {"paddle", "kubernetes", "docker", "boto3", "baidubce"}.isdisjoint(loaded)


@pytest.mark.parts
@pytest.mark.parametrize("asked", ["cube", "status", "hub"])
def test_a_command_loads_no_more_of_the_command_line_than_itself(asked):
    told = "import atexit; atexit.register(lambda: print('loaded:', *sys.modules))"
    code = f"import sys; sys.argv[1:] = [{asked!r}, '--help']; {told}; from cloudedge import cli; cli.main()"
    loaded = set(fresh(code).rpartition("loaded:")[2].split())
    others = {"cloudedge.cli.bie", "cloudedge.cli.train", "cloudedge.cli.serve", "cloudedge.cli.dataset"}
    assert others.isdisjoint(loaded)
    assert f"cloudedge.cli.{'release' if asked == 'status' else asked}" in loaded


@pytest.mark.parts
def test_help_loads_no_package_but_the_command_line():
    told = "import atexit; atexit.register(lambda: print('loaded:', *sys.modules))"
    code = f"import sys; sys.argv[1:] = ['--help']; {told}; from cloudedge import cli; cli.main()"
    loaded = set(fresh(code).rpartition("loaded:")[2].split())
    assert {"pydantic", "yaml", "numpy", "ctypes"}.isdisjoint(loaded)
    rooms = {".".join(name.split(".")[:2]) for name in loaded if name.startswith("cloudedge.")}
    assert rooms == {"cloudedge._lazy", "cloudedge.cli", "cloudedge.clock", "cloudedge.errors"}


@pytest.mark.parts
def test_a_command_is_the_same_alone_and_among_all():
    for name in ("cube", "release"):
        alone = fresh(f"import sys; sys.argv[1:] = [{name!r}, '--help']; from cloudedge import cli; cli.main()")
        among = fresh(f"from cloudedge.cli import app; app([{name!r}, '--help'], prog_name='cloudedge')")
        assert alone.replace("-c ", "cloudedge ").split() == among.split()


def modules():
    found = [info.name for info in pkgutil.walk_packages(cloudedge.__path__, "cloudedge.")]
    return ["cloudedge", *(name for name in found if not name.endswith(("_core", "__main__")))]


@pytest.mark.rules
@pytest.mark.parametrize("name", modules())
def test_all_is_sorted_and_true(name):
    module = importlib.import_module(name)
    exposed = getattr(module, "__all__", None)
    assert exposed is not None, f"{name} does not say what it exposes"
    assert all(hasattr(module, each) for each in exposed)
    assert len(set(exposed)) == len(exposed)
    assert list(exposed) == sorted(exposed, key=_as_ruff_sorts)


def _as_ruff_sorts(name):
    """Constants, classes, the rest; numbers in names by their value: rule RUF022."""
    group = 0 if len(name) > 1 and name.isupper() else 1 if name[0].isupper() else 2
    return group, [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", name)]


@pytest.mark.rules
def test_public_names_resolve():
    for name in cloudedge.__all__:
        assert getattr(cloudedge, name) is not None
    assert dir(cloudedge) == sorted(cloudedge.__all__)
    with pytest.raises(AttributeError):
        _ = cloudedge.nonsense


@renamed_arguments(before="now")
def double(now: int) -> int:
    """Return twice the number."""
    return 2 * now


@pytest.mark.rules
def test_an_old_keyword_works_and_warns_where_it_is_used():
    assert (double(1), double(now=2), double.__doc__) == (2, 4, "Return twice the number.")
    with pytest.deprecated_call(match="double: before is now now") as warned:
        assert double(before=3) == 6
    assert warned[0].filename == __file__
    with pytest.deprecated_call(), pytest.raises(TypeError, match="multiple values"):
        double(1, before=3)


def lazy_packages():
    return [
        path for path in Path(cloudedge.__file__).parent.rglob("__init__.py") if "= lazy_names(" in path.read_text()
    ]


@pytest.mark.rules
@pytest.mark.parametrize("path", lazy_packages(), ids=lambda path: path.parent.name)
def test_lazy_names_are_those_that_type_checkers_see(path):
    """A lazy name that one of the three lists lacks is found by users only."""
    tree = ast.parse(path.read_text())
    call = next(
        each for each in ast.walk(tree) if isinstance(each, ast.Call) and ast.unparse(each.func) == "lazy_names"
    )
    homes = ast.literal_eval(call.args[1])
    lazy = {name for home, names in homes.items() for name in names or (home,)}
    (block,) = (each for each in tree.body if isinstance(each, ast.If) and ast.unparse(each.test) == "TYPE_CHECKING")
    typed = {alias.name for each in ast.walk(block) if isinstance(each, ast.ImportFrom) for alias in each.names}
    module = importlib.import_module(
        path.parent.relative_to(Path(cloudedge.__file__).parents[1]).as_posix().replace("/", ".")
    )
    assert lazy == typed
    assert lazy <= set(module.__all__)


@pytest.mark.rules
@pytest.mark.parametrize(
    ("package", "old", "new"),
    [
        ("cloudedge.cube", "Store", "PartStore"),
        ("cloudedge.hub", "storage_errors", "storage_errors"),
        ("cloudedge.hub", "who", "who"),
        ("cloudedge.cube.transfer", "Workshop", "ArtifactCache"),
        ("cloudedge.pipeline", "Step", "PipelineStep"),
        ("cloudedge.training", "Policy", "LifecyclePolicy"),
        ("cloudedge.release", "Ground", "ReleaseContext"),
        ("cloudedge.testing", "World", "SimulatedWorld"),
    ],
)
def test_an_old_name_works_and_names_the_new_one(package, old, new):
    module = importlib.import_module(package)
    with pytest.warns(DeprecationWarning, match=rf"{old} is now [\w.]+\.{new}"):
        assert getattr(module, old).__name__ == new
    assert old not in dir(module) or package == "cloudedge.cube.transfer"


def tree():
    return [getattr(errors, name) for name in errors.__all__]


@pytest.mark.rules
@pytest.mark.parametrize("kind", tree())
def test_errors_survive_pickling_and_carry_facts(kind):
    error = kind("could not do it", hint="do this", digest="sha256:x")
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is kind
    assert (again.message, again.hint, again.digest) == ("could not do it", "do this", "sha256:x")
    assert str(again) == "could not do it\n  do this"
    with pytest.raises(AttributeError):
        _ = again.nonsense


@pytest.mark.rules
def test_the_drawn_tree_is_the_real_one():
    drawn = {}
    stack = []
    for line in errors.__doc__.splitlines():
        name = line.strip().split(" ")[0]
        if not hasattr(errors, name):
            continue
        depth = len(line) - len(line.lstrip())
        stack = [(d, n) for d, n in stack if d < depth]
        drawn[name] = (stack[-1][1] if stack else "Exception", "[retry]" in line)
        stack.append((depth, name))
    assert drawn == {kind.__name__: (kind.__base__.__name__, kind.retry_helps) for kind in tree()}
