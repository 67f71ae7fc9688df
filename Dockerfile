# SPDX-License-Identifier: Apache-2.0
# A machine for Shoal without a GPU. In a clone of the repository:
#
#   docker build -t shoal .
#   docker run --rm shoal                           # ./run demo
#   docker run --rm --privileged shoal ./run test   # hosts are made of network namespaces
#
# Packages that ./run installs form a layer of their own: changed sources do not repeat it.
FROM debian:12
WORKDIR /shoal
COPY run ./
RUN ./run setup && rm -rf /var/lib/apt/lists/*
COPY . .
RUN ./run build shoal-run shoal-moe
CMD ["./run", "demo"]
