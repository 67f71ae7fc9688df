#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares shoal-bench rma over libfabric with libfabric alone (shoal-bench-ofi), between two
processes of this host over TCP, in alternating rounds."""

from rounds import alternate, make_parser, medians, report_of, write

PUT, PING = "put + quiet", "put_signal round trip"
BANDWIDTH_TARGET, LATENCY_TARGET = 0.85, 1.3  # of raw libfabric: put of 1 MiB, 8 B
SETTINGS = {"SHOAL_TRANSPORT_INSIDE": "ofi", "SHOAL_OFI_PROVIDER": "tcp;ofi_rxm"}


def main():
    parser = make_parser(__doc__, rounds=3, timeout=200)
    parser.add_argument("--quick", action="store_true", help="one round of fewer repetitions")
    arguments = parser.parse_args()
    options = ["--iterations", "100"] if arguments.quick else []
    arguments.rounds = 1 if arguments.quick else arguments.rounds

    def rows(command, environment=None):
        result = report_of([*command, *options], arguments.timeout, environment)
        return {row["name"]: row["seconds"]["max"] for row in result["results"]}

    launcher = [arguments.bin / "shoal-run", "--no-label", "-n", "2"]
    runs = {
        "shoal ofi": lambda: rows([*launcher, arguments.bin / "shoal-bench", "rma"], SETTINGS),
        "libfabric": lambda: rows([arguments.bin / "shoal-bench-ofi"]),
    }
    found = {name: medians(results) for name, results in alternate(arguments.rounds, runs).items()}
    mine, raw = found["shoal ofi"], found["libfabric"]
    print("| operation | ofi us | libfabric us | ofi / libfabric |\n|---|---:|---:|---:|")
    for row, seconds in mine.items():
        base = f"{raw[row] * 1e6:.1f} | {seconds / raw[row]:.2f}" if row in raw else " | "
        print(f"| {row} | {seconds * 1e6:.1f} | {base} |")
    bandwidth = raw[f"{PUT} 1 MiB"] / mine[f"{PUT} 1 MiB"]
    latency = mine[f"{PING} 8 B"] / raw[f"{PING} 8 B"]
    print(
        f"put of 1 MiB: {bandwidth:.0%} of libfabric's bandwidth (target {BANDWIDTH_TARGET:.0%}); "
        f"8 B: {latency:.2f} of its latency (target {LATENCY_TARGET})"
    )
    everything = {
        "rounds": arguments.rounds,
        "seconds": found,
        "put_1MiB_bandwidth_of_libfabric": bandwidth,
        "latency_8B_of_libfabric": latency,
    }
    write(arguments.json, everything)


if __name__ == "__main__":
    main()
