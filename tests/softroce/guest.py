#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A virtual machine with a real RDMA stack: Linux' soft-RoCE devices and libibverbs.

    python3 tests/softroce/guest.py setup               # installs packages, fetches a kernel
    python3 tests/softroce/guest.py run ibv_devinfo     # a command in a new guest
    SHOAL_BIN_DIR=... pytest tests/softroce             # the tests

    with Guest(programs=["/path/program"]) as guest:    # in Python
        result = guest.run("/path/program --now", limit_s=20)

The guest has the devices rxe_a (10.0.0.1) and rxe_b (10.0.0.2) on the two ends va and vb of a cable
(veth), so `tc` can disturb the packets between them. It runs by emulation unless the processor has
virtualization. It has no disk and sees nothing of this machine but the files copied into its
memory. It ends with this process, even if that is killed.

Exit status: of the command; 77 if no guest can be made here, 125 if the guest died or hung.
"""

import argparse
import base64
import dataclasses
import os
import pathlib
import re
import secrets
import select
import shlex
import shutil
import subprocess
import sys
import tempfile
import time

import image

SKIPPED, DIED = 77, 125
BOOT_LIMIT_S = 120
GRACE_S = 30  # the guest kills a command at its limit; this much later, the guest itself hangs
CONSOLE_LINES = 30

# ttyS0 is the console, ttyS1 carries commands and their output. A command is a line with
# its limit in seconds and its text in base64. The last line of its output is the mark with its exit
# status.
INIT = """#!/bin/sh
{busybox} --install -s /busybox
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:/busybox HOME=/root
mount -t proc proc /proc; mount -t sysfs sys /sys; mount -t devtmpfs dev /dev
mkdir -p /dev/shm; mount -t tmpfs tmpfs /dev/shm; ulimit -l unlimited
for module in $(cat /modules/order); do insmod /modules/$module; done
ip link set lo up; ip link add va type veth peer name vb
for end in a:1 b:2; do
  name=${{end%:*}}
  echo 1 >/proc/sys/net/ipv4/conf/v$name/accept_local  # packets come from this host's addresses
  ip addr add 10.0.0.${{end#*:}}/24 dev v$name; ip link set v$name mtu 4200 up
done
for name in a b; do rdma link add rxe_$name type rxe netdev v$name; done
exec <>/dev/ttyS1 >&0
stty raw -echo
echo "{mark} 0"
while read -r limit line; do
  echo "$line" | base64 -d >/tmp/command
  timeout -s KILL "$limit" /bin/sh /tmp/command </dev/null 2>&1; status=$?
  kill -9 -1  # what it left running
  echo "{mark} $status"
done
"""


@dataclasses.dataclass(frozen=True)
class Result:
    """How a command in the guest ended; `out` has both of its outputs."""

    status: int
    out: str


class Died(RuntimeError):
    """The guest died or hung. The text has its last output and console lines."""


class Guest:
    """A booted guest. `programs`: files that it needs, with their libraries, under the same
    paths."""

    def __init__(self, programs=(), cores=2, memory_mib=1024):
        folder = image.cached_kernel()
        self._mark = f"--{secrets.token_hex(8)}--"
        self._work = tempfile.TemporaryDirectory(prefix="shoal-softroce-")
        self._qemu = None
        try:
            initrd = pathlib.Path(self._work.name) / "initrd"
            self._console = pathlib.Path(self._work.name) / "console"
            init = INIT.format(busybox=shutil.which("busybox"), mark=self._mark)
            with initrd.open("wb") as file:
                image.make(file, init, folder, programs)
            self._qemu = subprocess.Popen(
                self._command(folder, initrd, cores, memory_mib),
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            )  # fmt: skip
            self._read(BOOT_LIMIT_S, "it does not boot")
        except BaseException:
            self.close()
            raise

    def _command(self, folder, initrd, cores, memory_mib):
        virtual = os.access("/dev/kvm", os.W_OK) and re.search(
            r"^flags\b.*\b(vmx|svm)\b", pathlib.Path("/proc/cpuinfo").read_text(), re.MULTILINE
        )
        accelerator = ["kvm", "-cpu", "host"] if virtual else ["tcg,thread=multi", "-cpu", "max"]
        return [
            *("setpriv", "--pdeathsig", "KILL", "qemu-system-x86_64", "-accel", *accelerator),
            *("-M", "q35", "-smp", str(cores), "-m", str(memory_mib), "-nodefaults"),
            *("-no-user-config", "-display", "none", "-no-reboot"),
            *("-kernel", str(folder / "vmlinux"), "-initrd", str(initrd), "-append"),
            "console=ttyS0 panic=-1 loglevel=4 mitigations=off random.trust_cpu=on",
            *("-serial", f"file:{self._console}"),
            *("-chardev", "stdio,id=commands,signal=off", "-serial", "chardev:commands"),
        ]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def run(self, command, environment=None, limit_s=60):
        """Runs a shell command as root. One that runs past its limit is killed: status 137."""
        settings = (environment or {}).items()
        script = "".join(f"export {k}={shlex.quote(v)}\n" for k, v in settings) + command + "\n"
        line = f"{limit_s} {base64.b64encode(script.encode()).decode()}\n"
        self._qemu.stdin.write(line.encode())
        self._qemu.stdin.flush()
        return self._read(limit_s + GRACE_S, f"no end of: {command}")

    def _read(self, limit_s, trouble):
        """Output until the mark."""
        end = re.compile(rb"^" + self._mark.encode() + rb" (\d+)\r?\n", re.MULTILINE)
        out, deadline = b"", time.monotonic() + limit_s
        while (found := end.search(out)) is None:
            left = deadline - time.monotonic()
            ready, _, _ = select.select([self._qemu.stdout], [], [], max(left, 0))
            read = os.read(self._qemu.stdout.fileno(), 65536) if ready else b""
            if not read:
                how = f"after {limit_s} s" if not ready else "because qemu ended"
                raise Died(f"{trouble} ({how})\n{out.decode(errors='replace')}{self.console()}")
            out += read
        return Result(int(found[1]), out[: found.start()].decode(errors="replace"))

    def console(self):
        """The last lines of the console."""
        lines = self._console.read_text(errors="replace") if self._console.exists() else ""
        return "\n".join(["--- console", *lines.splitlines()[-CONSOLE_LINES:]])

    def close(self):
        if self._qemu is not None:
            self._qemu.kill()
            self._qemu.wait()
        self._work.cleanup()


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="what", required=True)
    commands.add_parser("setup", help="install packages and fetch a kernel")
    run = commands.add_parser("run", help="run a shell command in a new guest")
    run.add_argument("--with", dest="programs", action="append", default=[], metavar="FILE")
    run.add_argument("--limit", type=int, default=60, metavar="SECONDS")
    run.add_argument("command", nargs=argparse.REMAINDER)
    arguments = parser.parse_args()
    try:
        if arguments.what == "setup":
            image.install_packages()
            image.fetch_kernel()
            return 0
        with Guest(arguments.programs) as guest:
            result = guest.run(" ".join(arguments.command), limit_s=arguments.limit)
        print(result.out, end="")
        return result.status
    except image.Unavailable as reason:
        print(f"no guest with soft-RoCE: {reason}")
        return SKIPPED
    except Died as reason:
        print(f"the guest died: {reason}", file=sys.stderr)
        return DIED


if __name__ == "__main__":
    sys.exit(main())
