"""The kernels for CUDA, run on the CPU by Triton's interpreter: the cases are in ``kernel_cases``.

They need a process of their own. Triton chooses its interpreter when it is first imported, and PyTorch imports Triton
whenever it likes, such as in the first `torch.func.grad`.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

CASES = Path(__file__).with_name("kernel_cases.py")

if sys.platform == "linux":  # where there is Triton

    @pytest.mark.parametrize("cases", ["not long", pytest.param("long", marks=pytest.mark.long)])
    def test_kernels_in_the_interpreter_of_triton(cases: str) -> None:
        """What fails is named in the output; run it alone as ``TRITON_INTERPRET=1 pytest FILE -k NAME``."""
        command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--tb=short", "-m", cases, str(CASES)]
        settings = os.environ | {"TRITON_INTERPRET": "1"}
        done = subprocess.run(command, env=settings, cwd=CASES.parents[2], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
