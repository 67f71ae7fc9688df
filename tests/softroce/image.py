# SPDX-License-Identifier: Apache-2.0
"""Image that a guest boots: a kernel of the distribution, taken from its package but not
installed, and an initial file system with busybox, chosen programs with their libraries, and
modules.

The kernel and its modules are kept in ~/.cache/shoal/softroce (XDG_CACHE_HOME), 60 MB. Everything
else is made anew for each guest.
"""

import lzma
import os
import pathlib
import re
import shutil
import stat
import subprocess
import tempfile

# Debian packages by a program or file that each provides.
PACKAGES = {
    "qemu-system-x86_64": "qemu-system-x86",
    "busybox": "busybox-static",
    "setpriv": "util-linux",
    "ip": "iproute2",
    "rdma": "iproute2",
    "ibv_devinfo": "ibverbs-utils",
    "/etc/libibverbs.d/rxe.driver": "ibverbs-providers",
}
# In the order of loading; what they depend on is loaded before them. rxe computes its checksums
# with crc32 of the crypto layer, but does not depend on its module.
MODULES = ("crc32_generic", "veth", "sch_netem", "ib_uverbs", "rdma_rxe")
# Programs of every guest, and files that libraries and programs open by name.
PROGRAMS = ("busybox", "ip", "tc", "rdma", "ibv_devinfo", "ibv_rc_pingpong")
FILES = ("/etc/libibverbs.d/rxe.driver", "/usr/lib/tc/normal.dist")
SETUP = "run python3 tests/softroce/guest.py setup"
PROVIDERS = "/usr/lib/*/libibverbs/librxe-rdmav*.so"


class Unavailable(RuntimeError):
    """A guest cannot be made here. The text says what is missing."""


def is_there(name):
    return pathlib.Path(name).exists() if name.startswith("/") else shutil.which(name) is not None


def missing_packages():
    return sorted({package for name, package in PACKAGES.items() if not is_there(name)})


def install_packages():
    missing = missing_packages()
    if not missing:
        return
    if shutil.which("apt-get") is None:
        raise Unavailable(f"no apt-get to install {' '.join(missing)}")
    if os.geteuid() != 0:
        raise Unavailable(f"not root; apt-get install --no-install-recommends {' '.join(missing)}")
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    install = ["apt-get", "install", "-y", "-qq", "--no-install-recommends", *missing]
    done = subprocess.run(install, env=environment, capture_output=True, text=True, check=False)
    if done.returncode != 0:  # the lists of packages may be old
        subprocess.run(["apt-get", "update", "-qq"], capture_output=True, check=False)
        done = subprocess.run(install, env=environment, capture_output=True, text=True, check=False)
    if done.returncode != 0 or missing_packages():
        raise Unavailable(f"apt-get cannot install {' '.join(missing)}: {last_line(done.stderr)}")


def last_line(text):
    return (text.strip().splitlines() or ["no message"])[-1]


def cache():
    folder = os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache"
    return pathlib.Path(folder) / "shoal" / "softroce"


def kernel_package():
    """The newest kernel that linux-image-amd64 names."""
    if shutil.which("apt-cache") is None:
        raise Unavailable("no apt-cache to find a kernel package")
    shown = subprocess.run(
        ["apt-cache", "depends", "linux-image-amd64"], capture_output=True, text=True, check=False
    ).stdout
    found = re.search(r"Depends: (linux-image-\S+)", shown)
    if found is None:
        raise Unavailable("apt-cache knows no package linux-image-amd64")
    return found[1]


def cached_kernel():
    """The folder of a kernel: the file vmlinux, and modules in the order of loading, which the file
    `order` names."""
    if missing := missing_packages():
        raise Unavailable(f"not installed: {' '.join(missing)}; {SETUP}")
    complete = [path.parent for path in cache().glob("*/order")]
    if not complete:
        raise Unavailable(f"no kernel in {cache()}; {SETUP}")
    return max(complete, key=lambda folder: folder.stat().st_mtime)


def fetch_kernel():
    """Puts the newest kernel of the distribution into the cache, instead of older ones."""
    package = kernel_package()
    if (cache() / package / "order").exists():
        return
    cache().mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache()) as name:
        work = pathlib.Path(name)
        os.chmod(work, 0o755)  # apt's user may have to enter
        got = subprocess.run(
            ["apt-get", "download", "-qq", package],
            cwd=work, capture_output=True, text=True, check=False,
        )  # fmt: skip
        archives = list(work.glob("*.deb"))
        if not archives and list(cache().glob("linux-image-*/order")):
            return  # an older one is good enough
        if not archives:
            raise Unavailable(f"apt-get cannot download {package}: {last_line(got.stderr)}")
        subprocess.run(["dpkg-deb", "-x", archives[0], work / "tree"], check=True)
        kernel = work / "kernel"
        kernel.mkdir()
        (image,) = (work / "tree" / "boot").glob("vmlinuz-*")
        (kernel / "vmlinux").write_bytes(unpacked(image.read_bytes()))
        order = copy_modules(work / "tree" / "lib" / "modules", kernel)
        (kernel / "order").write_text("\n".join(order) + "\n")  # last: it is complete
        for old in cache().glob("linux-image-*"):
            shutil.rmtree(old, ignore_errors=True)
        kernel.rename(cache() / package)


def unpacked(image):
    """The ELF file in a compressed kernel: it boots in a fifth of the time under emulation."""
    start = image.find(b"\xfd7zXZ\x00")
    if start < 0:
        raise Unavailable("the kernel is not compressed by xz")
    kernel = lzma.LZMADecompressor().decompress(image[start:])
    if not kernel.startswith(b"\x7fELF"):
        raise Unavailable("the compressed kernel is not an ELF file")
    return kernel


def copy_modules(tree, to):
    """Copies MODULES and what they depend on. Returns the names of the files, dependencies
    first."""
    files = {path.name[:-3].replace("-", "_"): path for path in tree.rglob("*.ko")}
    order = []

    def add(name):
        if name not in files:
            return  # built into the kernel
        content = files[name].read_bytes()
        depends = re.search(rb"\0depends=([^\0]*)\0", content)
        for other in depends[1].decode().split(",") if depends else ():
            add(other.replace("-", "_"))
        if f"{name}.ko" not in order:
            order.append(f"{name}.ko")
            (to / f"{name}.ko").write_bytes(content)

    for name in MODULES:
        add(name)
    if "rdma_rxe.ko" not in order:
        raise Unavailable("the kernel package has no module rdma_rxe")
    return order


def with_libraries(files):
    """These programs and libraries, and the libraries that the dynamic linker would load."""
    found = set()
    for file in files:
        found.add(str(file))
        listed = subprocess.run(["ldd", file], capture_output=True, text=True, check=False).stdout
        if "not found" in listed:
            raise RuntimeError(f"ldd {file}:\n{listed}")
        found.update(re.findall(r"(?:=> |^\t)(/\S+) \(0x", listed, re.MULTILINE))
    return found


class Archive:
    """A cpio archive in the format "newc", which the kernel unpacks into its first file system."""

    def __init__(self, file):
        self._file, self._known, self._number = file, set(), 0

    def folder(self, path):
        path = pathlib.PurePosixPath(path)
        if path == path.parent or str(path) in self._known:
            return
        self.folder(path.parent)
        self._add(str(path), stat.S_IFDIR | 0o755)

    def content(self, path, data, mode=0o644):
        self.folder(pathlib.PurePosixPath(path).parent)
        self._add(path, stat.S_IFREG | mode, data)

    def copy(self, path):
        """A file of this machine, under the same path."""
        source = pathlib.Path(path)
        self.content(str(path), source.read_bytes(), stat.S_IMODE(source.stat().st_mode))

    def device(self, path, major, minor):
        self.folder(pathlib.PurePosixPath(path).parent)
        self._add(path, stat.S_IFCHR | 0o600, device=(major, minor))

    def end(self):
        self._add("/TRAILER!!!", 0)

    def _add(self, path, mode, data=b"", device=(0, 0)):
        if path in self._known:
            return
        self._known.add(path)
        self._number += 1
        name = path.lstrip("/").encode() + b"\0"
        numbers = (self._number, mode, 0, 0, 1, 0, len(data), 0, 0, *device, len(name), 0)
        header = b"070701" + b"".join(b"%08x" % number for number in numbers) + name
        self._file.write(header + bytes(-len(header) % 4))
        self._file.write(data + bytes(-len(data) % 4))


def make(file, init, kernel, programs):
    """Writes the initial file system to an open file. `programs`: files of this machine that keep
    their paths."""
    archive = Archive(file)
    for folder in ("/proc", "/sys", "/dev", "/tmp", "/run", "/root", "/busybox", "/modules"):
        archive.folder(folder)
    archive.device("/dev/console", 5, 1)
    archive.content("/init", init.encode(), 0o755)
    # Not that of busybox, which prefers its own ip to that of iproute2.
    shell = pathlib.Path("/bin/sh")
    archive.content(str(shell), shell.read_bytes(), 0o755)
    archive.content("/etc/passwd", b"root:x:0:0:root:/root:/bin/sh\n")
    archive.content("/etc/hosts", b"127.0.0.1 localhost\n")
    archive.content("/modules/order", (kernel / "order").read_bytes())
    for module in (kernel / "order").read_text().split():
        archive.content(f"/modules/{module}", (kernel / module).read_bytes())
    chosen = [shutil.which(name) for name in PROGRAMS if shutil.which(name) is not None]
    chosen += [str(path) for path in pathlib.Path("/").glob(PROVIDERS.lstrip("/"))]
    for path in sorted(with_libraries([shell, *chosen, *programs])):
        archive.copy(path)
    for path in FILES:
        if pathlib.Path(path).exists():
            archive.copy(path)
    archive.end()
