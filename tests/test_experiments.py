"""Recipes are checked whole, cells have stable names, sweeps go on where they stopped, here and on Ray."""

import json
import re
import shutil
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from studies.paper import published
from voidpad.commands.cli import app
from voidpad.decode.plan import describe
from voidpad.errors import ConfigError, VoidpadError
from voidpad.evaluate.folder import RunFolder, read_run
from voidpad.evaluate.run import evaluate
from voidpad.evaluate.settings import Resources
from voidpad.experiments.cluster import parts_of, store
from voidpad.experiments.sweep import Loader, begin, missing, only, run_local
from voidpad.experiments.sweep_recipe import SweepCell, cells, families, parse, read, with_folders
from voidpad.models import FAMILIES, random_model, save

RECIPES = sorted((Path(__file__).parents[1] / "voidpad" / "recipes" / "sweeps").glob("*.toml"))
COUNTS = {
    "paper-appendix-blocks": 400,
    "paper-canvas": 24,
    "paper-early-rainbow": 48,
    "paper-eos-ban": 3,
    "paper-expansion-block": 12,
    "paper-start": 32,
    "paper-start-base": 24,
    "paper-stress": 12,
    "paper-table1": 72,
    "paper-table3": 20,
    "paper-table4": 12,
    "paper-table5": 72,
    "paper-table6": 96,
    "paper-thresholds": 68,
    "paper-thresholds-base": 68,
    "paper-thresholds-dream": 128,
    "paper-window": 16,
    "tiny-appendix-blocks": 144,
    "tiny-approximations": 116,
    "tiny-canvas": 48,
    "tiny-commits": 52,
    "tiny-demo": 28,
    "tiny-early-rainbow": 32,
    "tiny-eos-ban": 3,
    "tiny-expansion-block": 12,
    "tiny-frontier": 156,
    "tiny-rivals": 104,
    "tiny-seeds": 56,
    "tiny-robustness": 68,
    "tiny-score": 104,
    "tiny-start": 32,
    "tiny-stress": 12,
    "tiny-table1": 64,
    "tiny-table3": 20,
    "tiny-table4": 12,
    "tiny-table5": 96,
    "tiny-table6": 96,
    "tiny-thresholds": 68,
    "tiny-where": 32,
    "tiny-window": 16,
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
    assert len(cells(read(path))) == COUNTS[path.stem]


def test_every_counted_recipe_is_there():
    assert {path.stem for path in RECIPES} == COUNTS.keys()


def test_every_published_score_has_a_cell():
    measured = set()
    for path in (path for path in RECIPES if path.stem.startswith("paper-")):
        for cell in cells(read(path)):
            family = published().models[cell.model].family
            at = describe(cell.settings.plan, defaults=FAMILIES[family].decoding, **cell.settings.fields)[1]
            measured |= {(n.sheet, n.task, n.settings, n.method) for n in published_like(cell, at)}
    wanted = [n for n in published().numbers if n.metric == "score" and n.task != "mean"]
    assert len(wanted) > 400
    assert [n for n in wanted if (n.sheet, n.task, n.settings, n.method) not in measured] == []


def published_like(cell, at):
    return published().find(("score", cell.model, cell.method, cell.task.removesuffix("_974")), at)


def test_cells_are_the_product_of_the_grid_and_the_tasks():
    found = {(cell.task, cell.settings.fields["block"]) for cell in cells(parse(raw(), "r"))}
    assert found == {(task, block) for task in ("gsm8k", "math500") for block in (16, 32)}


def test_a_group_overrides_the_recipe():
    group = {"model": ["a", "b"], "plan": ["void", "original"], "fields": {"canvas": 32}, "tasks": ["gsm8k"]}
    found = cells(parse(raw(grid={"block": [8]}, group=[group]), "r"))
    assert [(c.settings.model, c.settings.plan) for c in found] == [
        ("a", "void"), ("a", "original"), ("b", "void"), ("b", "original"),
    ]  # fmt: skip
    assert all(dict(c.settings.fields) == {"canvas": 32, "block": 8} for c in found)


def test_ids_depend_on_what_decides_the_result_and_on_nothing_else():
    first = cells(parse(raw(), "r"))
    group = {**raw()["group"][0], "method": "another name", "of": "another model"}
    renamed = cells(parse(raw(title="another title", group=[group]), "r"))
    seeded = cells(parse(raw(seed=1), "r"))
    assert [cell.id for cell in first] == [cell.id for cell in renamed]
    assert {cell.id for cell in first}.isdisjoint(cell.id for cell in seeded)
    assert len({cell.id for cell in first}) == 4


def test_a_cache_makes_another_cell_and_none_leaves_the_id():
    group = raw()["group"][0]
    exact, cached = (cells(parse(raw(group=[{**group, "cache": cache}]), "r")) for cache in (None, "dual"))
    assert [cell.id for cell in exact] == [cell.id for cell in cells(parse(raw(), "r"))]
    without = replace(exact[0], settings=replace(exact[0].settings, weights=None))
    assert without.id == "215edc95f297"  # as before there were caches and weights among the settings
    assert {cell.id for cell in exact}.isdisjoint(cell.id for cell in cached)
    assert {(cell.method, cell.settings.cache) for cell in cached} == {("void cache=dual", "dual")}


def test_a_model_on_this_machine_says_its_family(tmp_path):
    save(random_model("dream"), tmp_path / "mine")
    save(random_model("llada"), tmp_path / "other")
    group = {"model": str(tmp_path / "mine"), "plan": "void", "fields": {"top_p": 0.9, "temperature": 1.0}}
    assert families(str(tmp_path / "mine")) == ("dream",)
    assert len(cells(parse(raw(group=[group]), "r"))) == 2
    with pytest.raises(ConfigError, match="has no field top_p"):
        parse(raw(group=[{**group, "model": str(tmp_path / "other")}]), "r")


def test_fields_of_a_model_that_is_not_there_yet_are_checked_against_every_family():
    group = {"model": "runs/not/trained/yet", "plan": "void", "fields": {"top_p": 0.9, "temperature": 1.0}}
    assert set(families(group["model"])) == set(FAMILIES)
    assert len(cells(parse(raw(group=[group]), "r"))) == 2
    with pytest.raises(ConfigError, match="has no field colour"):
        parse(raw(group=[{**group, "fields": {"colour": "red"}}]), "r")


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
    points = {tuple(sorted(cell.settings.fields.items())) for cell in cells(recipe)}
    assert len(points) == 16 + 3 + 3 + 2


@pytest.mark.parametrize(
    ("changes", "parts"),
    [
        ({"titel": "x", "limit": 0}, ["titel: no such setting", "limit: Input should be greater"]),
        ({"tasks": [], "group": []}, ["tasks: List should have at least 1", "group: List should have"]),
        ({"fields": {"canvas": 60}}, ["group 0: canvas=60 is not a multiple of block=16", "block=32"]),
        ({"fields": {"canvs": 64}}, ["plan 'void' has no field canvs (did you mean canvas?);"]),
        ({"tasks": ["gsm9k"]}, ["task 'gsm9k' is unknown"]),
        (
            {"group": [{"model": "m", "plan": "void", "cache": "all"}]},
            ["group.0.cache: String should match pattern"],
        ),
        ({"group": [{"model": "m", "plan": "voit"}]}, ["plan 'voit' is unknown"]),
        ({"table": [{"kind": "chart", "title": "t"}]}, ["table.0: Input tag 'chart'"]),
        (
            {"group": [{"model": "m", "plan": "void"}, {"model": "m", "plan": "void", "method": "x"}]},
            ["'void' and 'x' are the same evaluation"],
        ),
    ],
)
def test_faults_are_named_together(changes, parts):
    with pytest.raises(ConfigError) as caught:
        parse(raw(**changes), "r.toml")
    assert str(caught.value).startswith("recipe r.toml: ")
    assert all(part in str(caught.value) for part in parts), str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_recipe_that_cannot_be_read(tmp_path):
    broken = tmp_path / "broken.toml"
    broken.write_text("title = ")
    with pytest.raises(ConfigError, match="not TOML"):
        read(broken)
    with pytest.raises(ConfigError, match="no such file"):
        read(tmp_path / "absent.toml")


def test_only_takes_prefixes_and_refuses_unknown_ones():
    found = cells(parse(raw(), "r"))
    assert only(found, [found[2].id[:6]]) == [found[2]]
    assert only(found, []) == found
    with pytest.raises(
        ConfigError, match="only=zzz: no such cell; ids belong to one --limit, and --dry-run with"
    ):
        only(found, [found[0].id, "zzz"])
    some = cells(parse(raw(limit=4), "r"))
    with pytest.raises(ConfigError, match=f"only={found[0].id}: no such cell; ids belong to one --limit"):
        only(some, [found[0].id])


def test_cells_of_one_model_run_together(tmp_path):
    groups = [{"model": name, "plan": plan} for plan in ("void", "original") for name in ("a", "b")]
    recipe = parse(raw(tasks=["gsm8k"], group=groups), "r")
    assert [cell.settings.model for cell in missing(cells(recipe), tmp_path)] == ["a", "a", "b", "b"]


@pytest.mark.parametrize(
    ("changes", "count"), [({}, 3), ({"limit": 2}, 2), ({"fewshot": "stream"}, 1)], ids=str
)
def test_shards_are_never_more_than_the_examples(changes, count):
    cell = cells(parse(raw(**changes), "r"))[0]
    parts = parts_of(cell, 3)
    assert [part.settings.shard for part in parts] == (
        [(at, count) for at in range(count)] if count > 1 else [None]
    )


def test_a_stored_folder_replaces_what_was_there(tmp_path):
    store({"progress.jsonl": b"half"}, tmp_path / "cells" / "a")
    store({"results.json": b"{}"}, tmp_path / "cells" / "a")
    assert [path.name for path in (tmp_path / "cells").iterdir()] == ["a"]
    assert [path.name for path in (tmp_path / "cells" / "a").iterdir()] == ["results.json"]


@pytest.fixture(scope="module")
def bench(tmp_path_factory):
    """A real model on disk, a test set of its own, and a recipe of four cells."""
    root = tmp_path_factory.mktemp("bench")
    save(random_model(vocab=96, context=1024), root / "model")
    (root / "data").mkdir()
    items = [{"question": f"What is {i} + 1?", "answer": f"It is $\\boxed{{{i + 1}}}$."} for i in range(7)]
    (root / "data" / "math500.jsonl").write_text("\n".join(map(json.dumps, items)))
    group = {"model": str(root / "model"), "of": "random", "plan": ["original", "void"]}
    recipe = parse(raw(tasks=["math500"], fields={"canvas": 16}, grid={"block": [8, 16]}, group=[group]), "r")
    out = root / "local"
    found = begin(recipe, "trial", out)
    ended = list(run_local(missing(found, out), out, resources=Resources(data=root / "data")))
    assert [one.error for one in ended] == [None] * 4
    return root, recipe, found


def rows(folder: Path) -> list[dict]:
    """The examples of a run, timings aside."""
    return [{k: v for k, v in one.items() if k != "seconds"} for one in read_run(folder).examples]


def test_a_sweep_runs_its_missing_cells_only(bench):
    root, recipe, found = bench
    out = root / "again"
    begin(recipe, "trial", out)
    resources = Resources(data=root / "data")
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
    recipe = parse(raw(tasks=["math500"], fields={"canvas": 16, "block": 16}, limit=2, group=groups), "r")
    out = root / "refused"
    ended = list(run_local(begin(recipe, "trial", out), out, resources=Resources(data=root / "data")))
    assert ended[0].error is not None
    assert "absent" in str(ended[0].error)
    assert ended[1].results is not None
    assert missing([one.cell for one in ended], out) == [ended[0].cell]


def test_a_model_is_loaded_once_for_its_cells(bench):
    _, _, found = bench
    loader = Loader()
    models = [loader(cell.settings, Resources()) for cell in found]
    assert loader.loads == 1
    assert all(model is models[0] for model in models)


def test_the_command_lists_runs_and_goes_on(bench, tmp_path):
    root, _, _ = bench
    recipe = tmp_path / "trial.toml"
    recipe.write_text(
        f'title = "Trial"\ntasks = ["math500"]\nfields = {{canvas = 16}}\ngrid = {{block = [8, 16]}}\n'
        f'[[group]]\nmodel = "{root / "model"}"\nplan = "void"\n'
    )
    command = [
        "sweep",
        str(recipe),
        "--out",
        str(tmp_path / "out"),
        "--data",
        str(root / "data"),
        "--limit",
        "2",
    ]
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
    parts = [(run["wall_seconds"], run["tasks"]["math500"]) for run in runs]
    assert {task["n"] for _, task in parts} == {2}
    hours = sum(seconds * task["test_size"] / 2 for seconds, task in parts) / 3600
    assert again.output.endswith(
        f"Decoding all items of these 2 cells on this device: about {hours:.1f} hours.\n"
    )
    # With --published it also names the published scores that lie outside the intervals.
    numbers = tmp_path / "published.toml"
    numbers.write_text(
        f'[models.mine]\nhub = "{root / "model"}"\nfamily = "llada"\ntitle = "Mine"\n'
        '[[sheet]]\nid = "t"\nsource = "Table"\nmetric = "score"\nmodel = "mine"\nmethod = "void"\n'
        'levels = ["task"]\nacross = "block"\ncolumns = [8, 16]\nsettings = {canvas = 16}\n'
        "cells = {math500 = [99.0, 2.5]}\n"
    )
    compared = CliRunner().invoke(app, [*command, "--published", str(numbers)]).output
    assert {task["score"] for _, task in parts} == {0.0}
    assert compared.splitlines()[-3:-1] == [
        "1 of 2 published scores lie inside our 95 % intervals; outside:",
        "  mine void math500 block=8 canvas=16: 0.00 [0.0, 65.8] against 99 (-99.0)",
    ]


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
    found = [(c.model, c.method, c.settings.model, c.settings.adapter) for c in cells(recipe)]
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


def test_the_command_refuses_shards_without_a_cluster(tmp_path):
    done = CliRunner().invoke(app, ["sweep", str(RECIPES[0]), "--out", str(tmp_path), "--shards", "2"])
    assert isinstance(done.exception, ConfigError)
    assert "add --ray" in str(done.exception)


def test_the_page_on_reproducing_tells_the_truth():
    page = (RECIPES[0].parents[3] / "docs" / "reproduce.md").read_text()
    example = page.split("```toml")[1].split("```")[0]
    assert len(cells(parse(tomllib.loads(example), "docs"))) == 4
    told = {name: int(count) for names, counts in re.findall(r"\| (`paper.*?) \| ([\d, ]+) \|", page)
            for name, count in zip(re.findall("`(.*?)`", names), counts.split(","), strict=True)}  # fmt: skip
    assert told == {name: count for name, count in COUNTS.items() if name.startswith("paper-")}
    assert {name for name in COUNTS if name.startswith("tiny-")} <= set(re.findall("`(tiny-.*?)`", page))


@pytest.mark.parametrize(
    ("device", "cluster", "gpus"),
    [
        ("auto", {"CPU": 8.0}, 0),
        ("auto", {"CPU": 8.0, "GPU": 2.0}, 1),
        ("cpu", {"CPU": 8.0, "GPU": 2.0}, 0),
        ("mps", {"CPU": 8.0}, 0),
        ("cuda", {"CPU": 8.0}, 1),
        ("cuda:1", {"CPU": 8.0, "GPU": 2.0}, 1),
    ],
)
def test_a_task_reserves_a_gpu_where_the_cluster_has_one(device, cluster, gpus):
    from voidpad.models.place import gpus_per_task

    assert gpus_per_task(device, cluster) == gpus


@pytest.mark.slow
def test_a_ray_cluster_that_loses_a_node_gives_the_local_results(bench):
    import ray
    from ray.cluster_utils import Cluster

    from voidpad.experiments.cluster import run_ray

    root, recipe, found = bench
    out = root / "ray"
    begin(recipe, "trial", out)
    resources = Resources(data=root / "data")
    kept = parts_of(found[0], 2)[0]  # a part that an earlier, interrupted sweep has left
    evaluate(kept.settings, kept.folder(out), resources=resources)
    refused = SweepCell("random", "absent", replace(found[0].settings, model=str(root / "absent")))
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    try:
        lost = cluster.add_node(num_cpus=1)
        ray.init(address=cluster.address, log_to_driver=False)
        ended = []
        for one in run_ray([refused, *missing(found, out)], out, resources=resources, shards=2):
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
    assert not (out / "shards").exists()
    assert {one.loads for one in whole} == {1}


def failure(cell: SweepCell, resources: Resources) -> Exception:
    with pytest.raises(VoidpadError) as caught:
        evaluate(cell.settings, Path("never written"), resources=resources)
    return caught.value
