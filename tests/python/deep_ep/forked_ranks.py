# SPDX-License-Identifier: Apache-2.0
"""Runs checks on four ranks that a process with slow imports forks, so that it imports once.

A test file is also the program of the process:

    require("torch", "deepspeed", installed_by="./run setup --checks")
    import torch  # noqa: E402

    def setup(): ...  # imports the program and patches it
    def check_dispatch(): ...  # on each rank

    add_tests_or_run(globals(), setup)
"""

import datetime
import importlib.util
import json
import multiprocessing
import os
import subprocess
import sys
import tempfile
import traceback
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(TESTS))

from torch_ranks import NOT_RUN, Results, add_tests, names_of_checks  # noqa: E402

RANKS = 4
DEADLINE_S = 240


def require(*packages, installed_by):
    """Skips the test file unless the packages can be imported."""
    for package in packages:
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{installed_by} installs {package}", allow_module_level=True)


def add_tests_or_run(namespace, setup):
    """Adds the tests of a file to it, or is the program that `run_file` starts."""
    if namespace["__name__"] == "__main__":
        main(namespace, setup)
    else:
        add_tests(namespace, lambda: run_file(namespace["__file__"]))


def run_file(path):
    """The results of all checks of a test file."""
    with tempfile.TemporaryDirectory() as folder:
        environment = dict(
            os.environ,
            TORCHDYNAMO_DISABLE="1",
            SHOAL_TIMEOUT_MS="30000",
            CUDA_VISIBLE_DEVICES="",  # CPU ranks on every machine
        )
        command = [sys.executable, path, folder]
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=DEADLINE_S
        )
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
        files = [Path(folder, f"{rank}.json") for rank in range(RANKS)]
        return Results([json.loads(file.read_text()) for file in files])


def main(namespace, setup):
    """The program of run_file: ``setup()`` imports and patches, then ranks run the checks."""
    import torch

    folder = sys.argv[1]
    torch.set_num_threads(1)
    setup()
    context = multiprocessing.get_context("fork")
    ranks = [context.Process(target=_rank, args=(rank, folder, namespace)) for rank in range(RANKS)]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join()


def _rank(rank, folder, namespace):
    import torch
    import torch.distributed as dist

    names = names_of_checks(namespace)
    result = dict.fromkeys(names, NOT_RUN)
    name = names[0]
    try:
        dist.init_process_group(
            "gloo",
            init_method=f"file://{folder}/store",
            rank=rank,
            world_size=RANKS,
            timeout=datetime.timedelta(seconds=60),
        )
        for name in names:
            torch.manual_seed(rank)
            namespace[name]()
            result[name] = ""
    except BaseException:
        result[name] = traceback.format_exc()
    Path(folder, f"{rank}.json").write_text(json.dumps(result))
    os._exit(0)  # a rank that failed does not wait for the others
