# SPDX-License-Identifier: Apache-2.0
"""What run-gpu-tests and run-gpu-bench share: the machine in words, and running a program under a
deadline."""

import datetime
import os
import pathlib
import shutil
import signal
import subprocess
import tempfile
import time

BUNDLE = pathlib.Path(__file__).resolve().parent


def use_gpus(count):
    """Programs started from here on see the first `count` of the visible GPUs."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    names = visible.split(",") if visible else [str(index) for index in range(count)]
    os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(names[:count])


def environment():
    """This process's, with what programs of the bundle need."""
    result = dict(os.environ)
    # Eight PEs may be threads that share one GPU: each of their streams needs a hardware queue of
    # its own, or one PE's waiting kernel blocks the kernel that it waits for.
    result["CUDA_DEVICE_MAX_CONNECTIONS"] = "32"
    toolkit = "/usr/local/cuda/lib64"  # for libraries that are opened at run time, such as cuBLASLt
    if os.path.isdir(toolkit):
        result["LD_LIBRARY_PATH"] = ":".join(filter(None, [result.get("LD_LIBRARY_PATH"), toolkit]))
    return result


def describe_machine():
    """GPU models, driver, date: nothing that names this machine."""
    machine = {
        "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d"),
        "gpus": [],
        "driver": None,
        "cores": os.cpu_count(),
    }
    if shutil.which("nvidia-smi"):
        answer = subprocess.run(
            ["nvidia-smi", "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader"],
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        if answer.returncode == 0:
            for line in answer.stdout.strip().splitlines():
                name, memory, machine["driver"] = [part.strip() for part in line.split(",")]
                machine["gpus"].append({"name": name, "memory": memory})
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        machine["gpus"] = machine["gpus"][: len([name for name in visible.split(",") if name])]
    return machine


def in_words(machine):
    names = sorted({gpu["name"] for gpu in machine["gpus"]})
    gpus = (
        f"{len(machine['gpus'])} x {', '.join(names)}, driver {machine['driver']}"
        if names
        else "no GPU"
    )
    return f"{gpus}, {machine['cores']} cores, {machine['date']}"


class Finished:
    """How a program ended: status (None: killed at its deadline), output, seconds."""

    def __init__(self, status, output, seconds):
        self.status, self.output, self.seconds = status, output, seconds

    def in_words(self):
        if self.status is None:
            return f"killed at its deadline after {self.seconds:.0f} s"
        if self.status < 0:
            return f"ended by {signal.Signals(-self.status).name}"
        return f"exit status {self.status}"


def run(command, timeout, eager=True):
    """Runs `command` with everything it starts; what it leaves running is killed. Output goes
    through a file: a pipe would be held open by whatever outlives the program. `eager`: all device
    code is loaded at once. Loading a kernel when it is first used waits for the GPU, on which,
    where PEs share it, another PE may be waiting for that kernel."""
    variables = {**environment(), **({"CUDA_MODULE_LOADING": "EAGER"} if eager else {})}
    start = time.monotonic()
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(
            [str(word) for word in command],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=variables,
            start_new_session=True,
        )
        try:
            status = process.wait(timeout=timeout)
        except subprocess.TimeoutExpired:
            status = None
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        process.wait()
        output.seek(0)
        return Finished(status, output.read().decode(errors="replace"), time.monotonic() - start)


def last_lines(text, count):
    return "\n".join(text.rstrip().splitlines()[-count:])
