"""transformers.Trainer with voidpad's loss, batches and clock, and checkpoints that are complete or absent."""

from __future__ import annotations

import os
import shutil
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from peft import PeftModel, set_peft_model_state_dict
from safetensors.torch import load_file
from torch import Tensor
from torch.utils.data import DataLoader
from transformers import Trainer, TrainerCallback, TrainingArguments
from transformers.trainer import TRAINER_STATE_NAME
from transformers.trainer_utils import SaveStrategy

from voidpad import models
from voidpad.errors import ConfigError
from voidpad.models.card import README
from voidpad.training import checkpoint
from voidpad.training.losses import SlotLoss
from voidpad.training.optim import optimiser, rate_factor
from voidpad.training.passes import UpdatePasses
from voidpad.training.recipe import TrainingRecipe
from voidpad.training.watch import LossMeter, TrainingClock


class VoidTrainer(Trainer):
    """One training implementation for every size: only the recipe differs."""

    model: Any  # a SlotLoss, sharded or not
    optimizer: Any
    lr_scheduler: Any

    def __init__(
        self,
        model: models.Model,
        recipe: TrainingRecipe,
        batches: UpdatePasses,
        *,
        held_out: UpdatePasses | None = None,
        arguments: TrainingArguments,
        callbacks: list[TrainerCallback],
    ) -> None:
        self.subject, self.recipe, self.batches, self.held_out = model, recipe, batches, held_out
        self.clock = TrainingClock()
        self.staging: Path | None = None
        self.checkpointed = 0  # layers that are computed again in the backward pass
        self.compiled = False
        self._logged = (0, 0.0)
        super().__init__(
            model=SlotLoss(model.net, residual=getattr(torch, recipe.run.residual)),
            args=arguments,
            train_dataset=batches,
            eval_dataset=held_out,
            callbacks=callbacks,
        )
        self.meter = LossMeter(self.args.device)
        batches.length = arguments.max_steps

    # Passes and loss

    def get_train_dataloader(self) -> DataLoader[Any]:
        """Finished passes on the device: accelerate has nothing to divide among processes or to move."""
        return DataLoader(self.batches, batch_size=1, collate_fn=lambda items: items[0], num_workers=0)

    def training_step(self, model: Any, inputs: Any, num_items_in_batch: Any = None) -> Tensor:
        """All passes of an update, forward and backward; Trainer then makes the optimiser's step.

        When a pass does not fit into memory, the update begins again in smaller ones. Its gradients stay the same.
        """
        model.train()
        while True:
            tokens, sums = self.clock.uncounted, self.meter.sums.clone()
            try:
                return self._update(model, inputs)
            except torch.OutOfMemoryError as error:
                self._smaller_passes(inputs, error)
            self.clock.uncounted, self.meter.sums = tokens, sums
            model.zero_grad()
            if torch.cuda.is_available():
                torch.cuda.empty_cache()
            inputs = self.batches[self.state.global_step]

    def _update(self, model: Any, passes: list[dict[str, Any]]) -> Tensor:
        # Sharded weights reduce their gradients in every pass. Otherwise the processes meet once, after the last one:
        # each may make as many passes as it needs.
        apart = self.args.world_size > 1 and not self.recipe.run.fsdp
        loss = torch.zeros((), device=self.args.device)
        with self.accelerator.no_sync(model) if apart else nullcontext():
            for inputs in passes:
                with self.compute_loss_context_manager():
                    part = self.compute_loss(model, dict(inputs))
                self.accelerator.backward(part)
                loss += part.detach()
        if apart:
            _average_gradients([p.grad for p in model.parameters() if p.grad is not None])
        return loss

    def _smaller_passes(self, passes: list[dict[str, Any]], error: torch.OutOfMemoryError) -> None:
        """Halve the passes, or checkpoint every layer where a pass is one row already."""
        limit, sharded = self.batches.limit, self.recipe.run.fsdp and self.args.world_size > 1
        if len(passes) < len(self.batches.share.rows()) and not sharded:
            limit.tokens = max(inputs["ids"].numel() for inputs in passes) // 2
            return
        if self.recipe.run.checkpointing == "auto" and not sharded and self.checkpoint_layers():
            return
        advice = "set run.pass_tokens lower or run.checkpointing = true" if sharded else "shorten the rows"
        raise ConfigError(f"out of memory in a pass of {limit.tokens:,} tokens; {advice}.") from error

    def checkpoint_layers(self, count: int | None = None) -> bool:
        """Recompute the last `count` layers, or all, in the backward pass. False: they were recomputed already."""
        layers = self.subject.net.get_decoder().layers
        count = len(layers) if count is None else count
        if count <= self.checkpointed:
            return False
        self.subject.net.gradient_checkpointing_enable({"use_reentrant": False})
        for number, layer in enumerate(layers):
            layer.gradient_checkpointing = number >= len(layers) - count
        self.checkpointed = count
        return True

    def compute_loss(
        self,
        model: Any,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: Any = None,
    ) -> Any:
        weight, kind = inputs.pop("weight"), inputs.pop("kind")
        self.clock.uncounted += inputs.pop("tokens")
        entropy = model(**inputs)
        self.meter.add(entropy.detach(), kind)
        loss = (entropy * weight).sum()
        return (loss, entropy) if return_outputs else loss

    def evaluate(self, *args: Any, **kwargs: Any) -> dict[str, float]:
        """The loss on the held-out examples, with the same noise every time. Processes share the passes."""
        assert self.held_out is not None
        self._agree()
        count, processes, mine = self.held_out.rows.count, self.args.world_size, self.args.process_index
        meter, total = LossMeter(self.args.device), torch.zeros((), device=self.args.device)
        self.model.eval()
        with torch.no_grad():
            for position in torch.arange(count).split(self.held_out.share.global_batch):
                passes = self.held_out.passes(0, position)
                for first in range(0, len(passes), processes):
                    # Every process makes the same number of passes, because sharded weights are gathered in each.
                    turn = passes[first : first + processes]
                    inputs = dict(turn[mine] if mine < len(turn) else turn[0])
                    weight, kind = inputs.pop("weight"), inputs.pop("kind")
                    del inputs["tokens"]
                    entropy = self.model_wrapped(**inputs)
                    if mine < len(turn):
                        total += (entropy * weight).sum() * len(position)
                        meter.add(entropy, kind)
        self.model.train()
        loss = float(self.accelerator.reduce(total, "sum")) / count
        parts = meter.read(lambda sums: self.accelerator.reduce(sums, "sum"))
        metrics = {"eval_loss": loss} | {f"eval_{name}": value for name, value in parts.items()}
        self.log(dict(metrics))
        self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, metrics)
        return metrics

    def _agree(self) -> None:
        """Take the smallest passes of all processes, so that all divide the same rows alike."""
        if self.args.world_size > 1:
            tokens = torch.tensor(self.batches.limit.tokens, device=self.args.device)
            torch.distributed.all_reduce(tokens, torch.distributed.ReduceOp.MIN)
            self.batches.limit.tokens = int(tokens)

    # Optimiser and schedule

    def create_optimizer(self, model: Any = None) -> torch.optim.Optimizer:
        if self.optimizer is None:
            self.optimizer = optimiser(self.model if model is None else model, self.recipe.optim)
        made: torch.optim.Optimizer = self.optimizer
        return made

    def create_scheduler(self, num_training_steps: int, optimizer: Any = None) -> Any:
        if self.lr_scheduler is None:
            self.lr_scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer or self.optimizer, self._factor)
            self._created_lr_scheduler = True
        return self.lr_scheduler

    def _factor(self, update: int) -> float:
        part, seconds = self.recipe.optim, self.recipe.run.seconds
        if seconds:
            return rate_factor(part, max(self.clock.total / seconds, 1e-3 * part.warmup))
        return rate_factor(part, (update + 0.5) / self.args.max_steps)

    # Logs

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        if "loss" in logs:
            logs |= self.meter.read(lambda sums: self.accelerator.reduce(sums, "sum"))
            self.clock.count(self._over_processes)
            tokens, seconds = self._logged
            self._logged = (self.clock.tokens, self.clock.total)
            if self.clock.total > seconds and tokens:
                logs["tokens_per_second"] = round((self.clock.tokens - tokens) / (self.clock.total - seconds))
            logs |= {"seconds": round(self.clock.total, 3), "tokens": self.clock.tokens}
            logs |= {"pass_tokens": self.batches.limit.tokens}
            self.state.epoch = self.state.global_step / self.batches.updates_per_epoch
        super().log(logs, start_time)

    def _over_processes(self, count: int) -> int:
        if self.args.world_size == 1:
            return count
        return int(self.accelerator.reduce(torch.tensor(count, device=self.args.device), "sum"))

    # Checkpoints

    def _get_output_dir(self, trial: Any) -> str:
        return str(self.staging) if self.staging else super()._get_output_dir(trial)

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        output, step = Path(self.recipe.run.output), self.state.global_step
        self.clock.count(self._over_processes)
        with checkpoint.explained(output, step), self._staged(output) as staging:
            super()._save_checkpoint(model, trial)
            self.accelerator.wait_for_everyone()
            if self.args.should_save:
                staged = staging / f"checkpoint-{step}"
                # Trainer notes the best checkpoint by its folder, here a staged one that is about to be renamed, and
                # would miss it when the run is resumed. We go by `best_global_step`.
                self.state.best_model_checkpoint = None
                self.state.save_to_json(str(staged / TRAINER_STATE_NAME))
                self.clock.write(staged)
                # Last, because without its card a full checkpoint does not load.
                self.subject.card.write(staged)
                checkpoint.publish(staged, output / staged.name)
                checkpoint.rotate(output, self.recipe.run.keep, best=self.state.best_global_step)
            self.accelerator.wait_for_everyone()

    @contextmanager
    def _staged(self, output: Path) -> Any:
        self.staging = output / checkpoint.STAGING
        if self.args.should_save:
            shutil.rmtree(self.staging, ignore_errors=True)
            self.staging.mkdir(parents=True)
        self.accelerator.wait_for_everyone()
        try:
            yield self.staging
        finally:
            self.staging = None
            if self.args.should_save:
                shutil.rmtree(output / checkpoint.STAGING, ignore_errors=True)

    def _save(self, output_dir: str | None = None, state_dict: dict[str, Tensor] | None = None) -> None:
        folder = Path(output_dir or self.recipe.run.output)
        folder.mkdir(parents=True, exist_ok=True)
        state = (
            None if state_dict is None else {name.removeprefix("net."): t for name, t in state_dict.items()}
        )
        net = self.subject.net
        if isinstance(net, PeftModel):
            net.save_pretrained(str(folder), state_dict=state, save_embedding_layers=False)
            # PEFT writes a form to be filled in. The finished model gets a README of ours.
            (folder / README).unlink(missing_ok=True)
            return
        net.save_pretrained(folder, state_dict=state, save_original_format=False)
        self.subject.tokenizer.save_pretrained(folder)

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None:
        folder = Path(resume_from_checkpoint)
        if self.is_fsdp_enabled:
            super()._load_from_checkpoint(resume_from_checkpoint, model)
            return
        if self.subject.adapted:
            set_peft_model_state_dict(self.subject.net, load_file(folder / "adapter_model.safetensors"))
            return
        tensors = {
            name: t
            for file in sorted(folder.glob("model*.safetensors"))
            for name, t in load_file(file).items()
        }
        missing, surplus = self.subject.net.load_state_dict(tensors, strict=False)
        tied = set(self.subject.net.all_tied_weights_keys)
        assert not surplus, surplus
        assert set(missing) <= tied, missing


def _average_gradients(gradients: list[Tensor], piece: int = 1 << 24) -> None:
    """The mean over all processes, in messages of about `piece` numbers."""
    waiting: list[Tensor] = []
    for number, gradient in enumerate(gradients):
        waiting.append(gradient)
        if sum(map(Tensor.numel, waiting)) < piece and number + 1 < len(gradients):
            continue
        flat = torch.cat([part.flatten() for part in waiting])
        torch.distributed.all_reduce(flat)
        flat /= torch.distributed.get_world_size()
        for part, mean in zip(waiting, flat.split([part.numel() for part in waiting]), strict=True):
            part.copy_(mean.view_as(part))
        waiting = []


def arguments(recipe: TrainingRecipe, *, updates: int, layer: str) -> TrainingArguments:
    """The recipe as Trainer's arguments. Trainer's rotation, progress bars and reports are off: ours replace them."""
    run, cuda = recipe.run, torch.cuda.is_available()
    processes = int(os.environ.get("WORLD_SIZE", 1))
    # A single process that no launcher started has nothing to shard over.
    sharded = run.fsdp and cuda and "RANK" in os.environ
    held_out = bool(recipe.data.held_out)
    shards = {"transformer_layer_cls_to_wrap": [layer], "version": 2, "state_dict_type": "FULL_STATE_DICT"}
    return TrainingArguments(
        output_dir=run.output,
        max_steps=updates,
        per_device_train_batch_size=run.micro_batch,
        learning_rate=recipe.optim.lr,
        max_grad_norm=recipe.optim.clip,
        seed=run.seed,
        bf16=run.computes_in_bfloat16(cuda=cuda),
        use_cpu=not cuda,
        logging_steps=run.log_every,
        logging_nan_inf_filter=False,  # the filter would wait for the device at every step
        save_strategy=SaveStrategy.STEPS,
        save_steps=run.save_every,
        save_total_limit=None,
        eval_strategy="steps" if held_out else "no",
        eval_steps=run.save_every if held_out else None,
        metric_for_best_model="eval_loss" if held_out else None,
        greater_is_better=False if held_out else None,
        report_to="none",
        disable_tqdm=True,
        remove_unused_columns=False,
        ddp_find_unused_parameters=False,
        ddp_backend="gloo" if not cuda and processes > 1 else None,
        average_tokens_across_devices=False,
        fsdp=True if sharded else None,  # type: ignore[arg-type]
        fsdp_config=shards if sharded else None,
    )


def export(model: models.Model, folder: Path, dtype: str | None) -> None:
    """Write the final weights as a folder that `load` reads."""
    if dtype:
        model = replace(model, net=model.net.to(getattr(torch, dtype)))
    replaced = folder.with_name(f".{folder.name}.old")
    if folder.exists():
        os.replace(folder, replaced)
    models.save(model, folder)
    shutil.rmtree(replaced, ignore_errors=True)
