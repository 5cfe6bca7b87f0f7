"""How much to do at once: as many stacked clients as pay on this device and fit into its memory."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import ParamSpec, Self, TypeVar

import torch

from fedga.engine.stack.stacked import StackedModel

Given = ParamSpec("Given")
Result = TypeVar("Result")

CPU_STACK_VALUES = 520_000  # parameters of all stacked clients: beyond this a stack falls out of a core's cache
CUDA_SHARE = 0.5  # of all memory, for clients that train together; the rest is data, models and the allocator's slack
COPIES_OF_PARAMETERS = 8  # received and own parameters, gradient, optimiser state, and what is in flight between them
MOST_SLOTS = 8192  # a GPU is busy long before


@dataclass
class MemoryBudget:
    """Clients trained together, and models and samples evaluated together; halves when memory runs out."""

    slots: int
    models: int
    samples: int
    notices: list[str] = field(default_factory=list)

    @classmethod
    def for_model(
        cls, model: StackedModel, device: torch.device, input_shape: tuple[int, ...], batch_size: int
    ) -> Self:
        """What suits the device; on a GPU by its size, not by what is free now, so that it is the same each time."""
        if device.type == "cpu":
            # Measured on two cores: stacked matrix products beat a loop, stacked convolutions do not.
            one_by_one = model.has_convolutions or model.moving_buffers
            stack = 1 if one_by_one else max(1, CPU_STACK_VALUES // model.params.total)
            # Activations of 1,000 pictures are fetched from memory, and its pages from the system, again and again.
            return cls(slots=stack, models=stack, samples=100 if model.has_convolutions else 1000)
        budget = CUDA_SHARE * torch.cuda.get_device_properties(device).total_memory
        activations = model.saved_bytes(input_shape)
        value = torch.finfo(model.dtype).bits // 8
        slot = COPIES_OF_PARAMETERS * value * model.params.total + 2 * batch_size * activations
        samples = 2000
        models = int(budget / (samples * activations + value * model.params.total))
        return cls(slots=max(1, min(int(budget / slot), MOST_SLOTS)), models=max(1, min(models, 256)), samples=samples)

    def notice(self, text: str) -> None:
        """Something the user should hear of."""
        self.notices.append(text)

    def halve(self) -> bool:
        """Ask for half as much from now on; False when there is nothing left to give up."""
        if self.slots == 1 and self.models == 1:
            return False
        self.slots, self.models = max(1, self.slots // 2), max(1, self.models // 2)
        self.notices.append(f"out of memory: going on with {self.slots} clients at a time")
        return True

    def within(self, work: Callable[Given, Result], *args: Given.args, **kwargs: Given.kwargs) -> Result:
        """``work``, again with half as much at once for as long as memory does not reach."""
        while True:
            try:
                return work(*args, **kwargs)
            except (RuntimeError, MemoryError) as error:
                if not is_out_of_memory(error) or not self.halve():
                    raise


def is_out_of_memory(error: BaseException) -> bool:
    of_cpu = ("can't allocate memory", "[enforce fail at alloc_cpu.cpp")
    told_so = isinstance(error, RuntimeError) and any(words in str(error) for words in of_cpu)
    return told_so or isinstance(error, torch.OutOfMemoryError | MemoryError)
