"""Convolutions of many independent networks: grouped convolution, unfold and matrix products, and our kernels.

    PYTHONPATH=src:. python benchmarks/convolution.py                          # on a GPU; convolution.json and .md
    PYTHONPATH=src:. python benchmarks/convolution.py --search                 # lets cuDNN try all its algorithms first
    PYTHONPATH=src:. python benchmarks/convolution.py --device cpu --quick --out /tmp/convolution   # shows that it runs

The layers of LeNet and ResNet-20 with batches of 64, forward and both derivatives, for hundreds of copies that each
have weights of their own. Every way gets its tensors in the layout in which it would pass them from layer to layer, so
that none pays for another's: grouped convolutions ``[samples, copies * channels, H, W]``, unfold ``[copies, channels,
samples, H, W]`` and our kernels ``[copies, samples, channels, H, W]``. Padding, columns and partial sums are inside the
time. Errors are those of two copies against float64. Without a GPU our kernels run in Triton's interpreter, where
TRITON_INTERPRET=1 asks for it: for their numbers, not for their time.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from itertools import product
from math import sqrt
from pathlib import Path
from typing import Any

import machine
import torch
import torch.nn.functional as F
from gpu import as_markdown, as_text, describe_machine, digits
from torch import Tensor

OPERATIONS = {"forward": "forward", "by_input": "by input", "by_weight": "by weights"}
WAYS = (("grouped", "float32"), ("unfold", "float32"), ("ours", "float32"), ("grouped", "tf32"), ("ours", "tf32"))
NAMES = {"grouped": "grouped", "unfold": "unfold + bmm", "ours": "ours", "float32": "", "tf32": ", TF32"}
CHECKED = 2  # copies compared with float64


@dataclass(frozen=True)
class Layer:
    """A convolution with square pictures, kernels and strides, and how many copies of it run at once."""

    name: str
    copies: int
    inputs: int
    side: int
    outputs: int
    taps: int
    padding: int = 0
    stride: int = 1
    samples: int = 64

    @property
    def out_side(self) -> int:
        return (self.side + 2 * self.padding - self.taps) // self.stride + 1

    @property
    def flop(self) -> int:
        """Of one copy; a derivative takes as many as the forward pass."""
        return 2 * self.samples * self.outputs * self.out_side**2 * self.inputs * self.taps**2


LAYERS = (
    Layer("LeNet 3→6, 5×5 on 32²", 500, 3, 32, 6, 5),
    Layer("LeNet 6→16, 5×5 on 14²", 500, 6, 14, 16, 5),
    Layer("ResNet-20 16→16, 3×3 on 32²", 100, 16, 32, 16, 3, padding=1),
    Layer("ResNet-20 16→32, 3×3 on 32², stride 2", 100, 16, 32, 32, 3, padding=1, stride=2),
    Layer("ResNet-20 32→32, 3×3 on 16²", 100, 32, 16, 32, 3, padding=1),
    Layer("ResNet-20 64→64, 3×3 on 8²", 100, 64, 8, 64, 3, padding=1),
)
# As awkward as the real ones (odd sides, a row that no output looks at), and small enough for an interpreter.
QUICK = (
    Layer("tiny 3→6, 5×5 on 9²", 3, 3, 9, 6, 5, samples=2),
    Layer("tiny 16→32, 3×3 on 6², stride 2", 2, 16, 6, 32, 3, padding=1, stride=2, samples=2),
)


@dataclass(frozen=True)
class Values:
    """Inputs, weights and the derivative by the outputs, ``[copies, samples or outputs, channels, height, width]``."""

    x: Tensor
    weight: Tensor
    by_y: Tensor

    @staticmethod
    def draw(layer: Layer, device: torch.device) -> Values:
        torch.manual_seed(0)
        copies, fan_in = layer.copies, layer.inputs * layer.taps**2
        return Values(
            torch.randn(copies, layer.samples, layer.inputs, layer.side, layer.side, device=device),
            torch.randn(copies, layer.outputs, layer.inputs, layer.taps, layer.taps, device=device) / sqrt(fan_in),
            torch.randn(copies, layer.samples, layer.outputs, layer.out_side, layer.out_side, device=device),
        )


# --- the ways --------------------------------------------------------------------------------------------------------


class Way(ABC):
    """Holds a layer's tensors in a layout of its own; results are brought to the common one by ``common``."""

    def __init__(self, layer: Layer, values: Values, tf32: bool) -> None:
        self.layer, self.tf32 = layer, tf32
        self.weight = self.own_weight(values.weight)
        self.x, self.by_y = self.own(values.x), self.own(values.by_y)

    @abstractmethod
    def forward(self) -> Tensor: ...

    @abstractmethod
    def by_input(self) -> Tensor: ...

    @abstractmethod
    def by_weight(self) -> Tensor: ...

    def own(self, pictures: Tensor) -> Tensor:
        return pictures

    def own_weight(self, weight: Tensor) -> Tensor:
        return weight

    def common(self, pictures: Tensor) -> Tensor:
        return pictures

    def checked(self, operation: str) -> Tensor:
        """The first copies' result of an operation, in the common layout."""
        result = getattr(self, operation)()
        if operation == "by_weight":
            shape = (self.layer.outputs, self.layer.inputs, self.layer.taps, self.layer.taps)
            return result.reshape(self.layer.copies, *shape)[:CHECKED]
        return self.common(result)[:CHECKED]


class Grouped(Way):
    """One convolution with a group per copy: cuDNN's on a GPU."""

    def own(self, pictures: Tensor) -> Tensor:
        return pictures.transpose(0, 1).flatten(1, 2).contiguous()

    def own_weight(self, weight: Tensor) -> Tensor:
        return weight.flatten(0, 1)

    def common(self, pictures: Tensor) -> Tensor:
        return pictures.unflatten(1, (self.layer.copies, -1)).transpose(0, 1)

    def _settings(self) -> dict[str, int]:
        return {"stride": self.layer.stride, "padding": self.layer.padding, "groups": self.layer.copies}

    def forward(self) -> Tensor:
        return F.conv2d(self.x, self.weight, **self._settings())

    def by_input(self) -> Tensor:
        return torch.nn.grad.conv2d_input(self.x.shape, self.weight, self.by_y, **self._settings())

    def by_weight(self) -> Tensor:
        return torch.nn.grad.conv2d_weight(self.x, self.weight.shape, self.by_y, **self._settings())


class Unfold(Way):
    """Columns of all patches, and one matrix product per copy. Columns are made anew for the derivative by weights:
    kept, they would take up to 25 times the memory of the pictures."""

    def own(self, pictures: Tensor) -> Tensor:
        return pictures.transpose(1, 2).contiguous()

    def own_weight(self, weight: Tensor) -> Tensor:
        return weight.flatten(2)

    def common(self, pictures: Tensor) -> Tensor:
        return pictures.transpose(1, 2)

    def _columns(self) -> Tensor:
        """``[copies, channels * taps, samples * positions]``."""
        layer = self.layer
        padded = F.pad(self.x, (layer.padding,) * 4) if layer.padding else self.x
        patches = padded.unfold(3, layer.taps, layer.stride).unfold(4, layer.taps, layer.stride)
        return patches.permute(0, 1, 5, 6, 2, 3, 4).reshape(layer.copies, self.weight.shape[2], -1)

    def forward(self) -> Tensor:
        return torch.bmm(self.weight, self._columns()).view(self.by_y.shape)

    def by_input(self) -> Tensor:
        layer, positions = self.layer, self.layer.out_side**2
        columns = torch.bmm(self.weight.transpose(1, 2), self.by_y.flatten(2))
        columns = columns.view(layer.copies, layer.inputs, layer.taps**2, layer.samples, positions).transpose(2, 3)
        sizes = ((layer.side, layer.side), (layer.taps, layer.taps))
        folded = F.fold(columns.flatten(1, 3), *sizes, padding=layer.padding, stride=layer.stride)
        return folded.view(self.x.shape)

    def by_weight(self) -> Tensor:
        return torch.bmm(self.by_y.flatten(2), self._columns().transpose(1, 2))


class Ours(Way):
    """`fedga.engine.gpu.kernels.convolution`, called as the stacked layer calls it."""

    def forward(self) -> Tensor:
        from fedga.engine.gpu.kernels.convolution import correlate
        from fedga.engine.gpu.kernels.padding import spread

        padded = spread(self.x, (self.layer.padding,) * 4, 1)
        return correlate(padded, self.weight, None, self.layer.stride, self.tf32)

    def by_input(self) -> Tensor:
        from fedga.engine.gpu.kernels.convolution import input_gradient

        return input_gradient(self.by_y, self.weight, (self.layer.side,) * 2, *self._settings())

    def by_weight(self) -> Tensor:
        from fedga.engine.gpu.kernels.convolution import weight_gradient

        return weight_gradient(self.x, self.by_y, (self.layer.taps,) * 2, *self._settings())

    def _settings(self) -> tuple[int, tuple[int, int], bool]:
        return self.layer.stride, (self.layer.padding,) * 2, self.tf32


KINDS: dict[str, type[Way]] = {"grouped": Grouped, "unfold": Unfold, "ours": Ours}


@contextmanager
def arithmetic(tf32: bool, search: bool) -> Iterator[None]:
    """Products in TF32 or not; cuDNN may choose among all its algorithms, repeatable or not."""
    torch.backends.cuda.matmul.allow_tf32 = tf32
    with torch.backends.cudnn.flags(enabled=True, benchmark=search, deterministic=False, allow_tf32=tf32):
        yield


def reference(layer: Layer, values: Values) -> dict[str, Tensor]:
    """Every operation of the first copies in float64, one copy after the other."""
    found: dict[str, list[Tensor]] = {operation: [] for operation in OPERATIONS}
    for copy in range(CHECKED):
        x, weight = (each[copy].double().requires_grad_() for each in (values.x, values.weight))
        y = F.conv2d(x, weight, stride=layer.stride, padding=layer.padding)
        by_x, by_weight = torch.autograd.grad(y, (x, weight), values.by_y[copy].double())
        for operation, value in zip(OPERATIONS, (y.detach(), by_x, by_weight), strict=True):
            found[operation].append(value)
    return {operation: torch.stack(parts) for operation, parts in found.items()}


# --- measuring -------------------------------------------------------------------------------------------------------


def seconds_of(work: Callable[[], Any], device: torch.device) -> float:
    """Median."""
    if device.type == "cuda":
        from triton.testing import do_bench

        return do_bench(work, warmup=5, rep=40, return_mode="median") / 1e3
    times = []
    for _ in range(3):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return sorted(times)[1]


def available_ways(device: torch.device) -> list[tuple[str, str]]:
    """TF32 needs a GPU, our kernels one or the interpreter."""
    interpreted = bool(find_spec("triton")) and os.environ.get("TRITON_INTERPRET") == "1"
    if device.type == "cuda":
        return list(WAYS)
    return [way for way in WAYS if way[1] == "float32" and (way[0] != "ours" or interpreted)]


@torch.no_grad()
def measure_layer(layer: Layer, device: torch.device, search: bool) -> list[dict[str, Any]]:
    values = Values.draw(layer, device)
    with torch.enable_grad():
        truth = reference(layer, values)
    rows = []
    for name, precision in available_ways(device):
        with arithmetic(precision == "tf32", search):
            way = KINDS[name](layer, values, precision == "tf32")
            for operation in OPERATIONS:
                row = {"layer": layer.name, "operation": operation, "way": name, "precision": precision}
                rows.append(row | measure_operation(way, operation, truth[operation], device))
            del way
    return rows


def measure_operation(way: Way, operation: str, truth: Tensor, device: torch.device) -> dict[str, Any]:
    try:
        error = ((way.checked(operation).double() - truth).norm() / truth.norm()).item()
        seconds = seconds_of(getattr(way, operation), device)
    except RuntimeError as problem:  # out of memory, or a size that a library does not take: one cell is missing
        return {"failed": str(problem).splitlines()[0]}
    layer = way.layer
    per_copy = seconds / layer.copies
    return {"us_per_copy": 1e6 * per_copy, "tflops": layer.flop / per_copy / 1e12, "relative_error": error}


def compile_layer(layer: Layer, precision: str, device: torch.device) -> None:
    way = Ours(layer, Values.draw(layer, device), precision == "tf32")
    for operation in OPERATIONS:
        way.checked(operation)


def compile_ahead(options: argparse.Namespace) -> None:
    """All our kernels into Triton's cache, a process each: one after the other they would take a minute."""
    cases = product(range(len(options.layers)), ("float32", "tf32"))
    command = [sys.executable, __file__, "--device", options.device, *(["--quick"] if options.quick else [])]
    running = [subprocess.Popen([*command, "--compile", f"{place},{precision}"]) for place, precision in cases]
    statuses = [process.wait() for process in running]
    if any(statuses):
        raise SystemExit("our kernels do not compile here, see above")


def measure(options: argparse.Namespace) -> dict[str, Any]:
    device, start = torch.device(options.device), time.perf_counter()
    report: dict[str, Any] = {"machine": describe_machine(device) | machine.describe(), "device": device.type}
    report |= {"cudnn_search": options.search, "interpreted": os.environ.get("TRITON_INTERPRET") == "1"}
    report |= {"layers": [asdict(layer) | {"flop": layer.flop} for layer in options.layers], "rows": []}
    if device.type == "cuda":
        compile_ahead(options)
        report["compile_s"] = time.perf_counter() - start
    for layer in options.layers:
        report["rows"] += measure_layer(layer, device, options.search)
        print(f"{layer.name} after {time.perf_counter() - start:.0f} s", file=sys.stderr, flush=True)
        if device.type == "cuda":
            torch.cuda.empty_cache()
    return report | {"seconds": time.perf_counter() - start}


# --- reporting -------------------------------------------------------------------------------------------------------


def cells(report: dict[str, Any], write_cell: Callable[[dict[str, Any]], str]) -> list[list[str]]:
    """A line per layer and operation, a column per way."""
    rows = report["rows"]
    ways = [way for way in WAYS if any((row["way"], row["precision"]) == way for row in rows)]
    lines = [["layer", "copies", "", *(NAMES[way] + NAMES[precision] for way, precision in ways)]]
    for layer, operation in product(report["layers"], OPERATIONS):
        found = {
            (row["way"], row["precision"]): row
            for row in rows
            if (row["layer"], row["operation"]) == (layer["name"], operation)
        }
        texts = ["failed" if "failed" in found[way] else write_cell(found[way]) for way in ways]
        lines.append([layer["name"], f"{layer['copies']}", OPERATIONS[operation], *texts])
    return lines


def time_table(report: dict[str, Any]) -> list[list[str]]:
    return cells(report, lambda row: f"{digits(row['us_per_copy'])} ({row['tflops']:.3g})")


def error_table(report: dict[str, Any]) -> list[list[str]]:
    return cells(report, lambda row: f"{row['relative_error']:.1e}")


def speedups(report: dict[str, Any]) -> list[str]:
    """How our kernels compare with the faster of the others, over a network's layers and operations."""
    said = []
    for precision in ("float32", "tf32") if report["device"] == "cuda" else ():  # an interpreter's time says nothing
        for network in dict.fromkeys(layer["name"].split()[0] for layer in report["layers"]):
            rows = [row for row in report["rows"] if row["layer"].startswith(network) and "failed" not in row]
            ratios = ratios_to_ours(rows, precision)
            if ratios:
                text = f"{min(ratios):.1f} to {max(ratios):.1f} × as fast as the faster of the others"
                said.append(f"{network}, {NAMES[precision].lstrip(', ') or 'float32'}: ours {text}")
    failed = [
        f"{row['layer']}, {row['operation']}, {row['way']}: {row['failed']}"
        for row in report["rows"]
        if "failed" in row
    ]
    return said + failed


def ratios_to_ours(rows: Sequence[dict[str, Any]], precision: str) -> list[float]:
    by_case: dict[tuple[str, str], dict[str, float]] = {}
    for row in rows:
        if row["precision"] == precision:
            by_case.setdefault((row["layer"], row["operation"]), {})[row["way"]] = row["us_per_copy"]
    return [
        min(time for way, time in times.items() if way != "ours") / times["ours"]
        for times in by_case.values()
        if "ours" in times and len(times) > 1
    ]


def write(report: dict[str, Any], folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "convolution.json").write_text(json.dumps(report, indent=1) + "\n")
    about = report["machine"]
    gpu = (
        f"{about['gpu']}, CUDA {about['cuda']}, cuDNN {about['cudnn']}, Triton {about['triton']}; "
        if "gpu" in about
        else ""
    )
    search = "tried all its algorithms first" if report["cudnn_search"] else "chose its algorithms by its own rules"
    samples = report["layers"][0]["samples"]
    page = [
        "# Convolutions of many independent networks",
        f"Made by `benchmarks/convolution.py`: {gpu}torch {about['torch']}; {machine.in_words(about)}.",
        f"Microseconds per copy and, in parentheses, TFLOP/s: batches of {samples}, medians. cuDNN {search}. "
        "*By input* and *by weights* are the derivatives.",
        as_markdown(time_table(report)),
        "\n".join(f"- {line}" for line in speedups(report)),
        f"Relative error of {CHECKED} copies against float64:",
        as_markdown(error_table(report)),
    ]
    (folder / "convolution.md").write_text("\n\n".join(part for part in page if part) + "\n")


# --- the command -----------------------------------------------------------------------------------------------------


def read_options(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--quick", action="store_true", help="tiny layers, to see that it runs")
    parser.add_argument(
        "--search", action="store_true", help="cuDNN measures all its algorithms first: slower to start"
    )
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    parser.add_argument("--compile", help=argparse.SUPPRESS)  # "layer,precision": our kernels into Triton's cache
    options = parser.parse_args(arguments)
    options.layers = QUICK if options.quick else LAYERS
    return options


def main() -> int:
    options = read_options()
    if options.compile:
        place, precision = options.compile.split(",")
        compile_layer(options.layers[int(place)], precision, torch.device(options.device))
        return 0
    report = measure(options)
    write(report, options.out)
    print("\n".join(["", as_text(error_table(report)), "", as_text(time_table(report)), "", *speedups(report)]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
