"""FSDP2 on CPU processes. accelerate silently falls back to DDP there, so this trainer shards the model itself."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

from voidpad.training.trainer import VoidTrainer

GATHER = StateDictOptions(full_state_dict=True, cpu_offload=True)
# Not strict: an adapter's checkpoint has no frozen weights, and those stay as they are.
SCATTER = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True, strict=False)
OPTIMISER, SCHEDULE = "optimizer.pt", "scheduler.pt"


class ShardedTrainer(VoidTrainer):
    """Every parameter is a DTensor; checkpoints are gathered, so they load on any number of processes."""

    def create_accelerator_and_postprocess(self) -> None:
        super().create_accelerator_and_postprocess()
        # The model comes sharded and reduces its own gradients: accelerate must not wrap it in DDP.
        wrap = self.accelerator.prepare_model
        self.accelerator.prepare_model = functools.partial(wrap, evaluation_mode=True)
        mesh = init_device_mesh("cpu", (self.accelerator.num_processes,))
        for layer in self.subject.net.get_decoder().layers:
            fully_shard(layer, mesh=mesh)
        fully_shard(self.model, mesh=mesh)

    def _get_grad_norm(self, model: Any, grad_norm: Any = None) -> Any:
        norm = super()._get_grad_norm(model, grad_norm)  # type: ignore[no-untyped-call]  # transformers has no types here
        return norm.full_tensor() if isinstance(norm, DTensor) else norm

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        state: Any = get_model_state_dict(self.model, options=GATHER)  # every process takes part
        if self.args.should_save:
            self._save(output_dir, state_dict=state)

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        state = get_optimizer_state_dict(self.model, self.optimizer.optimizer, options=GATHER)
        if self.args.should_save:
            torch.save(state, Path(output_dir) / OPTIMISER)
            torch.save(self.lr_scheduler.state_dict(), Path(output_dir) / SCHEDULE)

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        if checkpoint is None:
            return
        main, folder = self.accelerator.is_main_process, Path(checkpoint)
        state = torch.load(folder / OPTIMISER, weights_only=True) if main else {}
        set_optimizer_state_dict(self.model, self.optimizer.optimizer, state, options=SCATTER)
        self.lr_scheduler.load_state_dict(torch.load(folder / SCHEDULE, weights_only=True))

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None:
        pattern = "adapter_model.safetensors" if self.subject.adapted else "model*.safetensors"
        state: dict[str, Any] = {}
        if self.accelerator.is_main_process:
            # PEFT leaves the adapter's name out of its files.
            names = {name.replace(".default", ""): name for name, _ in self.model.named_parameters()}
            files = sorted(Path(resume_from_checkpoint).glob(pattern))
            stored = {f"net.{name}": tensor for file in files for name, tensor in load_file(file).items()}
            state = {names[name]: tensor for name, tensor in stored.items()}
        set_model_state_dict(self.model, state, options=SCATTER)
