"""Rehearses a table of the paper end to end without its weights, to find out what breaks before GPU time is paid for.

    python -m studies.paper.rehearse paper-table3 paper-table4 --data DATA --out runs/rehearsal

The models are random networks of two layers in the released layout: the released config.json with smaller sizes, the
released tensor names, Dream's own tokenizer. LLaDA's tokenizer.json is not among the test data, so a small one is
learnt from GSM8K's training texts; its special tokens and chat template are the released ones. Random adapters stand
for those that the recipes expect. Recipes, benchmark files, graders, sandbox and published numbers are the real ones.
Scores mean nothing; that every step runs, and that the command says which scores differ, is the point.

DATA holds `benchmarks/` and `hub/` (`make test-data`).
"""

import argparse
import json
import shutil
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from voidpad.commands.cli import app
from voidpad.experiments.sweep_recipe import SweepRecipe, read
from voidpad.models import DREAM, LLADA, Family, load, save
from voidpad.models.fresh import random_net
from voidpad.models.save import TOKENIZER_FILES
from voidpad.models.text import read_tokenizer
from voidpad.recipes import find_recipe
from voidpad.roles import resolve

# Sizes of the random networks, by the released names of the fields.
SMALL_LLADA = {"d_model": 16, "n_layers": 2, "n_heads": 2, "n_kv_heads": 2, "mlp_hidden_size": 32}
SMALL_DREAM = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "intermediate_size": 32,
}
PIECES = 1024  # entries of the small tokenizer, special ones aside
EMPHASIS = (
    8.0  # on the head's rows of EOS and VOID: random answers end, and canvases grow, at various lengths
)


def random_release(family: Family, data: Path, folder: Path, *, seed: int = 0) -> Path:
    """A folder like the family's release, a few layers deep and narrow."""
    released = data / "hub" / {"llada": "llada-8b-instruct", "dream": "dream-7b-instruct"}[family.name]
    folder.mkdir(parents=True)
    config = json.loads((released / "config.json").read_text(encoding="utf-8"))
    if family is DREAM:
        config |= SMALL_DREAM
        for path in (path for pattern in TOKENIZER_FILES for path in released.glob(pattern)):
            shutil.copyfile(path, folder / path.name)
    else:
        tokenizer = _small_tokenizer(released, data / "benchmarks" / "gsm8k_train.jsonl")
        tokenizer.save_pretrained(str(folder))
        ids = {
            "mask_token_id": "<|mdm_mask|>",
            "eos_token_id": "<|endoftext|>",
            "pad_token_id": "<|endoftext|>",
        }
        config |= SMALL_LLADA | {name: tokenizer.convert_tokens_to_ids(token) for name, token in ids.items()}
        config |= {"vocab_size": len(tokenizer), "embedding_size": len(tokenizer)}
    (folder / "config.json").write_text(json.dumps(config, indent=2), encoding="utf-8")
    wanted = family.read_config(config, where=str(folder))
    wanted.initializer_range = wanted.hidden_size**-0.5
    tensors = random_net(wanted, seed=seed, dtype=torch.bfloat16).state_dict()
    tokenizer = read_tokenizer(folder, family.tokenizer_class)
    roles = resolve(tokenizer, config, rows=wanted.vocab_size, names=family.role_names)
    tensors["lm_head.weight"][[roles.eos, roles.rainbow[0]]] *= EMPHASIS
    save_file(
        {family.released_name(name): t.clone() for name, t in tensors.items()}, folder / "model.safetensors"
    )
    return folder


def _small_tokenizer(released: Path, texts: Path) -> PreTrainedTokenizerFast:
    """Byte-level BPE learnt from a file, with the special tokens and the chat template of the release."""
    given = json.loads((released / "tokenizer_config.json").read_text(encoding="utf-8"))
    special = [entry["content"] for entry in given["added_tokens_decoder"].values()]
    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=PIECES, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    with texts.open(encoding="utf-8") as lines:
        core.train_from_iterator(list(lines)[:1000], trainer)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=core,
        eos_token=given["eos_token"],
        bos_token=given["bos_token"],
        pad_token=given["pad_token"],
        clean_up_tokenization_spaces=False,
        chat_template=given["chat_template"],
    )
    tokenizer.add_tokens([token for token in special if token], special_tokens=True)
    return tokenizer


def random_adapter(base: Path, folder: Path, *, seed: int) -> Path:
    """An adapter on the modules that the paper trained, as training saves it."""
    model = load(base)
    config = LoraConfig(
        r=2, target_modules=list(model.family.lora_targets), base_model_name_or_path=str(base)
    )
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model.net = get_peft_model(model.net, config)
        for name, tensor in model.net.named_parameters():
            if "lora_B" in name:
                torch.nn.init.normal_(tensor, std=0.1)
    save(model, folder)
    return folder


def stand_ins(recipes: Sequence[SweepRecipe], data: Path, folder: Path) -> dict[str, Path]:
    """A random folder for every model and adapter that the recipes name; what is there already is used again."""
    made: dict[str, Path] = {}
    for recipe in recipes:
        for group in recipe.groups:
            for model in group.model:
                family = DREAM if "dream" in model.lower() else LLADA
                made.setdefault(model, folder / model.replace("/", "--"))
                if not made[model].is_dir():
                    random_release(family, data, made[model], seed=len(made))
                adapter = group.config.get("adapter")
                if adapter and adapter not in made:
                    made[adapter] = folder / adapter.replace("/", "--")
                    if not made[adapter].is_dir():
                        random_adapter(made[model], made[adapter], seed=len(made))
    return made


def commands(
    name: str, recipe: SweepRecipe, places: Mapping[str, Path], out: Path, *options: str
) -> tuple[list[str], list[str]]:
    """The two commands of the documentation, with the stand-ins in the place of the weights."""
    groups = recipe.groups
    named = {model for group in groups for model in group.model}
    named |= {g.config["adapter"] for g in groups if g.config.get("adapter")}
    use = [word for one in sorted(named) for word in ("--use", f"{one}={places[one]}")]
    sweep = ["sweep", name, "--out", str(out), *use, "--allow-code-execution", *options]
    return sweep, ["report", str(out / f"{name}.sweep.json"), "--out", str(out / f"{name}-report")]


def rehearse(names: Sequence[str], data: Path, out: Path, *options: str) -> dict[str, float]:
    """Run the tables' commands one after the other; the seconds that each table took."""
    recipes = [read(find_recipe(name, "sweep")) for name in names]
    places = stand_ins(recipes, data, out / "weights")
    seconds: dict[str, float] = {}
    for name, recipe in zip(names, recipes, strict=True):
        start = time.perf_counter()
        benchmarks = ["--data", str(data / "benchmarks")]
        for command in commands(name, recipe, places, out, *benchmarks, *options):
            print("voidpad", *command, flush=True)
            app(command, standalone_mode=False)
        seconds[name] = time.perf_counter() - start
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("recipes", nargs="+", help="sweep recipes of the paper")
    parser.add_argument("--data", type=Path, required=True, help="folder with benchmarks/ and hub/")
    parser.add_argument("--out", type=Path, required=True, help="folder of weights, cells and reports")
    parser.add_argument("--limit", type=int, default=1, help="items of each task")
    given = parser.parse_args()
    seconds = rehearse(given.recipes, given.data, given.out, "--limit", str(given.limit), "--device", "cpu")
    for name, took in seconds.items():
        print(f"{name}: {took:.0f} s")


if __name__ == "__main__":
    main()
