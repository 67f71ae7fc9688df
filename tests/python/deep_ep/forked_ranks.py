# SPDX-License-Identifier: Apache-2.0
"""Runs checks on several ranks that a process with slow imports forks, so that it imports once.

A test file is also the program of the process:

    CHECKS = names_of_checks(globals())
    results = pytest.fixture(scope="module")(lambda: run_file(__file__))

    @pytest.mark.parametrize("name", CHECKS)
    def test_on_four_ranks(results, name): results.verify(name)

    if __name__ == "__main__":
        main(globals(), setup)
"""

import datetime
import json
import multiprocessing
import os
import subprocess
import sys
import tempfile
import traceback
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(TESTS))

from torch_ranks import NOT_RUN, Results, names_of_checks  # noqa: E402

RANKS = 4
DEADLINE_S = 240


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
