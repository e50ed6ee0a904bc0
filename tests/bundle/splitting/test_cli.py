"""``cloudedge bundle split`` on a saved model."""

import json

import pytest
from typer.testing import CliRunner

from cloudedge.cli import app

pytestmark = pytest.mark.parts

networks = pytest.importorskip("tests.bundle.splitting.networks", reason="needs paddlepaddle")


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return networks.save(networks.SharedTable, tmp_path_factory.mktemp("saved"))


def run(*arguments):
    done = CliRunner().invoke(app, ["bundle", "split", *map(str, arguments)], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done


def test_it_says_what_it_would_do(whole, tmp_path):
    report = json.loads(run(whole.parent, "--output", tmp_path / "out", "--dry-run", "--json").stdout)
    ((name, table),) = report["tables"].items()
    assert (table["rows"], table["dim"], table["parameter"]) == (50, 8, name)
    assert not (tmp_path / "out").exists()


def test_it_splits_and_packs(whole, tmp_path):
    local = tmp_path / "hub"
    ((parameter, _),) = json.loads(
        run(whole, "--output", tmp_path / "x", "--dry-run", "--json").stdout
    )["tables"].items()  # fmt: skip
    done = run(
        whole, "--output", tmp_path / "out", "--table", f"{parameter}=items", "--fetch-alias", "fetch_name_0=ctr",
        "--pack", "ctr", "--local", local, "--json",
    )  # fmt: skip
    made = json.loads(done.stdout)
    assert made["split"]["max_abs_difference"] < 1e-5
    assert made["bundle"]["version"] == "1"
    assert set(made["bundle"]["tables"]) == {"items"}
    assert made["bundle"]["signature"]["fetch"][0]["alias"] == "ctr"
    assert {lookup["table"] for lookup in made["bundle"]["signature"]["lookups"]} == {"items"}
