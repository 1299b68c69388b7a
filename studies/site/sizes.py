"""The tables of docs/sizes.md: `python -m studies.site.sizes`. Computed from shapes, not measured."""

from dataclasses import dataclass

GIB = 2**30
# bf16 products, in TFLOP/s: half of the maker's peak, which long rows reach; the CPU in float32.
DEVICES = {"H200 or H100": 500, "A100": 156, "RTX 4090": 82, "CPU, 8 cores": 0.4}


@dataclass(frozen=True)
class Shape:
    """The sizes of a released model, from its config.json."""

    name: str
    layers: int
    width: int
    kv_width: int  # of keys, and of values: fewer heads than queries have make it smaller
    feed_forward: int
    vocabulary: int

    @property
    def layer(self) -> int:
        """Weights of the products of all layers."""
        attention = 2 * self.width * self.width + 2 * self.width * self.kv_width
        return self.layers * (attention + 3 * self.width * self.feed_forward)

    @property
    def outputs(self) -> int:
        """Rows of all these weights; in fp8 each has a scale."""
        return self.layers * (3 * self.width + 2 * self.kv_width + 2 * self.feed_forward)

    @property
    def parameters(self) -> int:
        return self.layer + 2 * self.vocabulary * self.width

    @property
    def lora(self) -> int:
        """Weights of an adapter of rank 1 on the seven products of every layer."""
        attention = 4 * self.width + 2 * (self.width + self.kv_width)
        return self.layers * (attention + 3 * (self.width + self.feed_forward))

    def pass_flops(self, tokens: int) -> float:
        """One forward pass over so many tokens; attention scores included, the vocabulary head for one block of 32."""
        scores = 4 * self.layers * self.width * tokens
        return tokens * (2 * self.layer + scores) + 2 * 32 * self.vocabulary * self.width


SHAPES = (
    Shape("LLaDA-8B", 32, 4096, 4096, 12288, 126464),
    Shape("Dream-7B", 28, 3584, 512, 18944, 152064),
)


def row(*cells: object) -> str:
    return "| " + " | ".join(str(cell) for cell in cells) + " |"


def seconds(value: float) -> str:
    if value < 1:
        return f"{1000 * value:.0f} ms"
    return f"{value:.1f} s" if value < 120 else f"{value / 60:.0f} min"


def memory() -> str:
    lines = [row("what", *(shape.name for shape in SHAPES)), "|---|---|---|"]
    lines.append(row("parameters", *(f"{s.parameters / 1e9:.2f} billion" for s in SHAPES)))
    formats = {"float32": 4, "bfloat16": 2, "8bit": 1, "fp8": 1, "4bit": 0.5}
    for name, size in formats.items():
        # Quantization leaves embedding and head in bfloat16; the scales of fp8 are float32.
        scale = 4 if name == "fp8" else 0
        sizes = [
            (s.layer * size + s.outputs * scale + (s.parameters - s.layer) * max(size, 2)) / GIB
            for s in SHAPES
        ]
        lines.append(row(f"weights in {name}", *(f"{size:.1f} GiB" for size in sizes)))
    kept = [2 * s.layers * s.kv_width * 2 * 1000 / GIB for s in SHAPES]
    lines.append(
        row("keys and values with `--cache`, per 1,000 tokens", *(f"{size:.2f} GiB" for size in kept))
    )
    adapters = [32 * s.lora for s in SHAPES]
    lines.append(row("LoRA of rank 32: trained parameters", *(f"{n / 1e6:.0f} million" for n in adapters)))
    # float32 adapter, its gradient and AdamW's two moments
    lines.append(row("its weights, gradient and AdamW state", *(f"{16 * n / GIB:.1f} GiB" for n in adapters)))
    inputs = [s.layers * 6 * 1024 * s.width * 2 / GIB for s in SHAPES]
    label = "layer inputs kept by checkpointing, 6 rows of 1,024 tokens"
    lines.append(row(label, *(f"{size:.1f} GiB" for size in inputs)))
    return "\n".join(lines)


def time() -> str:
    lines = [row("device", *(f"{s.name}: a pass" for s in SHAPES), *(f"{s.name}: an answer" for s in SHAPES))]
    lines.append("|---|---|---|---|---|")
    for name, rate in DEVICES.items():
        passes = [shape.pass_flops(768) / (rate * 1e12) for shape in SHAPES]
        lines.append(row(name, *map(seconds, passes), *(seconds(160 * one) for one in passes)))
    return "\n".join(lines)


if __name__ == "__main__":
    print(memory(), time(), sep="\n\n")
