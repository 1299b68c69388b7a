"""Recipes are checked whole, cells have stable names, sweeps go on where they stopped, here and on Ray."""

import re
import shutil
import tomllib
from pathlib import Path

import pytest
from typer.testing import CliRunner

from studies.paper import published
from voidpad.commands.cli import app
from voidpad.decode.presets import describe
from voidpad.errors import ConfigError, VoidpadError
from voidpad.evaluate.config import Resources
from voidpad.evaluate.folder import RunFolder, read_run
from voidpad.evaluate.run import evaluate
from voidpad.experiments.sweep import Loader, begin, missing, only, run_local, run_ray
from voidpad.experiments.sweep_recipe import SweepCell, cells, parse, read, with_folders
from voidpad.models import FAMILIES, random_model, save
from voidpad.models.device import gpus_per_task

ROOT = Path(__file__).parents[1]
RECIPES = sorted((ROOT / "voidpad" / "recipes" / "sweeps").glob("*.toml"))
PAGE = (
    ROOT / "docs" / "reproduce.md"
).read_text()  # it lists the paper's recipes with their numbers of cells
COUNTS = {
    name: int(count)
    for names, counts in re.findall(r"\| (`paper.*?) \| ([\d, ]+) \|", PAGE)
    for name, count in zip(re.findall("`(.*?)`", names), counts.split(","), strict=True)
}


def raw(**changes):
    group = {"model": "tiny-void", "plan": "void", "grid": {"block": [16, 32]}}
    return {
        "title": "t",
        "tasks": ["gsm8k", "math500"],
        "fields": {"canvas": 64},
        "group": [group],
        **changes,
    }


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_every_recipe_parses_and_has_its_cells(path):
    count = len({cell.id for cell in cells(read(path))})
    assert count == COUNTS.get(path.stem, count) > 1


def test_every_published_score_has_a_cell():
    measured = set()
    for path in (path for path in RECIPES if path.stem.startswith("paper-")):
        for cell in cells(read(path)):
            family = published().models[cell.model].family
            at = describe(cell.config.plan, cell.config.fields, defaults=FAMILIES[family].decoding)[1]
            measured |= {(n.sheet, n.task, n.settings, n.method) for n in published_like(cell, at)}
    wanted = [n for n in published().numbers if n.metric == "score" and n.task != "mean"]
    assert len(wanted) > 400
    assert [n for n in wanted if (n.sheet, n.task, n.settings, n.method) not in measured] == []


def published_like(cell, at):
    return published().find(("score", cell.model, cell.method, cell.task.removesuffix("_974")), at)


def test_cells_are_the_product_of_the_grid_and_the_tasks_and_a_group_overrides_the_recipe():
    found = {(cell.task, cell.config.fields["block"]) for cell in cells(parse(raw(), "r"))}
    assert found == {(task, block) for task in ("gsm8k", "math500") for block in (16, 32)}
    group = {"model": ["a", "b"], "plan": ["void", "original"], "fields": {"canvas": 32}, "tasks": ["gsm8k"]}
    found = cells(parse(raw(grid={"block": [8]}, group=[group]), "r"))
    assert [(c.config.model, c.config.plan) for c in found] == [
        ("a", "void"), ("a", "original"), ("b", "void"), ("b", "original"),
    ]  # fmt: skip
    assert all(dict(c.config.fields) == {"canvas": 32, "block": 8} for c in found)


def test_ids_depend_on_what_decides_the_result_and_on_nothing_else():
    group = raw()["group"][0]
    first = {cell.id for cell in cells(parse(raw(), "r"))}
    named = {**group, "method": "another name", "of": "another model", "cache": None}
    assert len(first) == 4
    assert first == {cell.id for cell in cells(parse(raw(title="another title", group=[named]), "r"))}
    for changed in (raw(seed=1), raw(group=[{**group, "cache": "dual"}])):
        assert first.isdisjoint(cell.id for cell in cells(parse(changed, "r")))


def test_fields_are_checked_against_the_models_family_or_against_every_one(tmp_path):
    save(random_model("dream"), tmp_path / "mine")
    save(random_model("llada"), tmp_path / "other")
    group = {"plan": "void", "fields": {"top_p": 0.9, "temperature": 1.0}}
    for model in (str(tmp_path / "mine"), "runs/not/trained/yet"):
        assert len(cells(parse(raw(group=[{**group, "model": model}]), "r"))) == 2
    for wrong in ({"model": str(tmp_path / "other")}, {"model": "absent", "fields": {"colour": "red"}}):
        with pytest.raises(ConfigError, match="has no field"):
            parse(raw(group=[{**group, **wrong}]), "r")


def test_other_weights_under_the_same_name_make_other_cells(tmp_path):
    """A retrained model must not show up as "0 to run"."""
    group = {"model": str(tmp_path / "model"), "plan": "void", "grid": {"block": [8]}}
    recipe = parse(raw(tasks=["tiny_steps"], limit=1, fields={"canvas": 16}, group=[group]), "r")
    out, ids = tmp_path / "out", []
    for seed in (0, 1):
        shutil.rmtree(tmp_path / "model", ignore_errors=True)
        save(random_model(vocab=96, context=1024, seed=seed), tmp_path / "model")
        left = missing(begin(recipe, "trial", out), out)
        assert len(left) == 1
        assert [one.error for one in run_local(left, out, resources=Resources())] == [None]
        assert missing(begin(recipe, "trial", out), out) == []
        ids.append(left[0].id)
    assert ids[0] != ids[1]


def test_a_cell_of_two_groups_is_run_once():
    recipe = read(next(path for path in RECIPES if path.stem == "paper-table6"))
    found = cells(recipe)
    points = {tuple(sorted(cell.config.fields.items())) for cell in found}
    assert len(points) == 16 + 3 + 3 + 2
    assert len(missing(found, Path("nowhere"))) == 4 * len(points)
    base = [cell for cell in found if cell.id == missing(found, Path("nowhere"))[0].id]
    assert len({cell.labels["factor"] for cell in base}) == len(base)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"titel": "x"}, "titel"),
        ({"tasks": []}, "tasks"),
        ({"fields": {"canvas": 60}}, "group 0: canvas=60"),
        ({"fields": {"canvs": 64}}, "canvs"),
        ({"tasks": ["gsm9k"]}, "gsm9k"),
        ({"group": [{"model": "m", "plan": "voit"}]}, "voit"),
        ({"table": [{"kind": "chart", "title": "t"}]}, r"table\.0\.kind"),
    ],
)
def test_a_fault_is_named_with_the_recipe(changes, named, tmp_path):
    with pytest.raises(ConfigError, match=rf"recipe r\.toml: .*{named}"):
        parse(raw(**changes), "r.toml")


def test_a_recipe_that_cannot_be_read(tmp_path):
    broken = tmp_path / "broken.toml"
    broken.write_text("title = ")
    for path in (broken, tmp_path / "absent.toml"):
        with pytest.raises(ConfigError, match=path.name):
            read(path)


def test_cells_are_chosen_by_prefixes_and_those_of_one_model_run_together(tmp_path):
    found = cells(parse(raw(), "r"))
    assert only(found, [found[2].id[:6]]) == [found[2]]
    assert only(found, []) == found
    with pytest.raises(ConfigError, match="only=zzz: "):
        only(found, [found[0].id, "zzz"])
    groups = [{"model": name, "plan": plan} for plan in ("void", "original") for name in ("a", "b")]
    recipe = parse(raw(tasks=["gsm8k"], group=groups), "r")
    assert [cell.config.model for cell in missing(cells(recipe), tmp_path)] == ["a", "a", "b", "b"]


@pytest.fixture(scope="module")
def bench(tmp_path_factory):
    """A real model on disk, and a recipe of four cells."""
    root = tmp_path_factory.mktemp("bench")
    save(random_model(vocab=96, context=1024), root / "model")
    group = {"model": str(root / "model"), "of": "random", "plan": ["original", "void"]}
    grid = {"block": [8, 16]}
    recipe = parse(raw(tasks=["tiny_steps"], limit=3, fields={"canvas": 16}, grid=grid, group=[group]), "r")
    out = root / "local"
    found = begin(recipe, "trial", out)
    ended = list(run_local(missing(found, out), out, resources=Resources()))
    assert [one.error for one in ended] == [None] * 4
    return root, recipe, found


def rows(folder: Path) -> list[dict]:
    """The examples of a run, timings aside."""
    return [{k: v for k, v in one.items() if k != "seconds"} for one in read_run(folder).examples]


def test_a_sweep_runs_its_missing_cells_only(bench):
    root, recipe, found = bench
    out = root / "again"
    begin(recipe, "trial", out)
    resources = Resources()
    first = list(run_local(found[1:2], out, resources=resources))
    before = (out / found[1].folder / "results.json").stat().st_mtime_ns
    rest = list(run_local(missing(found, out), out, resources=resources))
    assert [one.cell.id for one in first + rest] == [found[1].id, found[0].id, found[2].id, found[3].id]
    assert missing(found, out) == []
    assert (out / found[1].folder / "results.json").stat().st_mtime_ns == before
    assert all(rows(out / cell.folder) == rows(root / "local" / cell.folder) for cell in found)


def test_a_cell_that_is_refused_does_not_stop_the_others(bench):
    root, _, _ = bench
    groups = [
        {"model": str(root / "absent"), "plan": "original"},
        {"model": str(root / "model"), "plan": "original"},
    ]
    recipe = parse(raw(tasks=["tiny_steps"], fields={"canvas": 16, "block": 16}, limit=2, group=groups), "r")
    out = root / "refused"
    ended = list(run_local(begin(recipe, "trial", out), out, resources=Resources()))
    assert ended[0].error is not None
    assert "absent" in str(ended[0].error)
    assert ended[1].results is not None
    assert missing([one.cell for one in ended], out) == [ended[0].cell]


def test_a_model_is_loaded_once_for_its_cells(bench):
    _, _, found = bench
    loader = Loader()
    assert len({id(loader(cell.config, Resources())) for cell in found}) == 1


def test_the_command_lists_runs_and_goes_on(bench, tmp_path):
    root, _, _ = bench
    recipe = tmp_path / "trial.toml"
    recipe.write_text(
        f'title = "Trial"\ntasks = ["tiny_steps"]\nfields = {{canvas = 16}}\ngrid = {{block = [8, 16]}}\n'
        f'[[group]]\nmodel = "{root / "model"}"\nplan = "void"\n'
    )
    command = ["sweep", str(recipe), "--out", str(tmp_path / "out"), "--limit", "2"]
    listed = CliRunner().invoke(app, [*command, "--dry-run"])
    assert listed.output.startswith("Trial: 2 cells, 2 to run.")
    assert not (tmp_path / "out").exists()
    first = listed.output.splitlines()[1].split()[0]
    assert CliRunner().invoke(app, [*command, "--only", first]).exit_code == 0
    again = CliRunner().invoke(app, command)
    assert "Trial: 2 cells, 1 to run." in again.output
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["cells", "trial.sweep.json"]
    # With --limit the command ends with what all items would take, by the items it decoded.
    runs = [RunFolder(path).results for path in (tmp_path / "out" / "cells").iterdir()]
    parts = [(run["wall_seconds"], run["tasks"]["tiny_steps"]) for run in runs]
    assert {task["n"] for _, task in parts} == {2}
    hours = sum(seconds * task["test_size"] / 2 for seconds, task in parts) / 3600
    assert again.output.endswith(
        f"Decoding all items of these 2 cells on this device: about {hours:.1f} hours.\n"
    )


def test_a_recipe_runs_on_weights_that_lie_elsewhere(bench, tmp_path):
    root, _, _ = bench
    raw = {
        "title": "T",
        "tasks": ["gsm8k"],
        "fields": {"canvas": 16, "block": 8},
        "group": [
            {"model": ["org/one", "org/two"], "plan": "void"},
            {"model": "org/one", "adapter": "runs/a", "of": "mine", "plan": "void", "method": "tuned"},
        ],
    }
    recipe = with_folders(parse(raw, "r"), {"org/one": str(root / "model"), "runs/a": "elsewhere"})
    found = [(c.model, c.method, c.config.model, c.config.adapter) for c in cells(recipe)]
    here = str(root / "model")
    assert found == [
        ("org/one", "void", here, None),
        ("org/two", "void", "org/two", None),
        ("mine", "tuned", here, "elsewhere"),
    ]
    with pytest.raises(ConfigError, match="use=other: the recipe names org/one, org/two, runs/a"):
        with_folders(parse(raw, "r"), {"other": "x"})
    command = ["sweep", "tiny-table1", "--out", str(tmp_path / "o"), "--dry-run", "--use", "tiny-void"]
    assert "write NAME=FOLDER" in str(CliRunner().invoke(app, command).exception)


def test_the_page_on_reproducing_names_every_recipe_of_the_paper():
    example = PAGE.split("```toml")[1].split("```")[0]
    assert len(cells(parse(tomllib.loads(example), "docs"))) == 4
    names = {path.stem for path in RECIPES if path.stem.startswith("paper-")}
    assert names == COUNTS.keys()
    assert set(re.findall(r"(?m)^voidpad sweep (paper-[\w-]+) ", PAGE)) == names


def test_a_task_reserves_a_gpu_where_the_cluster_has_one():
    with_gpus = {"CPU": 8.0, "GPU": 2.0}
    assert [gpus_per_task(device, with_gpus) for device in ("auto", "cuda:1", "cpu")] == [1, 1, 0]
    assert gpus_per_task("auto", {"CPU": 8.0}) == 0


@pytest.mark.slow
def test_a_ray_cluster_that_loses_a_node_gives_the_local_results(bench):
    import ray
    from ray.cluster_utils import Cluster

    root, recipe, found = bench
    out = root / "ray"
    begin(recipe, "trial", out)
    resources = Resources()
    refused = SweepCell("random", "absent", found[0].config.updated(model=str(root / "absent")))
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    try:
        lost = cluster.add_node(num_cpus=1)
        ray.init(address=cluster.address, log_to_driver=False)
        ended = []
        for one in run_ray([refused, *missing(found, out)], out, resources=resources):
            ended.append(one)
            if sum(one.error is None for one in ended) == 1 and lost in cluster.list_all_nodes():
                cluster.remove_node(lost, allow_graceful=False)
        assert cluster.list_all_nodes() == [cluster.head_node]
    finally:
        ray.shutdown()
        cluster.shutdown()
    assert {str(one.error) for one in ended if one.cell is refused} == {str(failure(refused, resources))}
    whole = [one for one in ended if one.cell is not refused]
    assert sorted(one.cell.id for one in whole) == sorted(cell.id for cell in found)
    assert all(rows(out / cell.folder) == rows(root / "local" / cell.folder) for cell in found)


def failure(cell: SweepCell, resources: Resources) -> Exception:
    with pytest.raises(VoidpadError) as caught:
        evaluate(cell.config, Path("never written"), resources=resources)
    return caught.value
