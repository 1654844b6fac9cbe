"""The head node's address, the port and the sockets, as the rendered script finds them in bash.

Run with stand-ins on PATH; cases A01… are those of the launch reference.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.rendering.bash_stubs import IP, Bash

BAD_ADDRESSES = {
    "loopback": ("127.0.1.1", "a loopback, link-local or empty address"),
    "link-local": ("169.254.3.4", "a loopback, link-local or empty address"),
    "all zeros": ("0.0.0.0", "a loopback, link-local or empty address"),
    "none": ("", "no IPv4 address from interface ib0"),
    "IPv6": ("fe80::1", "is not an IPv4 address"),
    "a name": ("node1-ib", "is not an IPv4 address"),
}


@pytest.mark.parametrize(("addresses", "why"), BAD_ADDRESSES.values(), ids=BAD_ADDRESSES.keys())
def test_a01_a02_a03_a_bad_head_address_fails_closed_naming_the_node(
    addresses: str, why: str, shell: Bash
) -> None:
    shell.stubs["ip"] = f'for a in {addresses}; do echo "2: ib0 inet $a/24 scope global ib0"; done'
    done = shell.ran(profile={"rendezvous": {"interface": "ib0"}}, status=78)
    assert done.stderr.startswith("fsdpkit: node1: ")
    assert why in done.stderr
    assert not (shell.record / "srun").exists()


BY_SLURM = 'case $2 in 10.0.0.*) echo "$2 STREAM";; *) exit 2 ;; esac'
"""A name service that knows no node."""


@pytest.mark.parametrize("address", ["ip", "hostname"])
def test_nodes_that_only_slurm_can_address_meet_there(address: str, shell: Bash) -> None:
    shell.stubs["getent"] = BY_SLURM
    shell.stubs["scontrol"] = (
        'case "$*" in *node*-o*node*) echo "NodeName=$4 NodeAddr=10.0.0.${4#node} OS=x" ;; esac\n'
        + shell.stubs["scontrol"]
    )
    profile = {"rendezvous": {"address": address}}
    shell.ran(profile=profile, status=0)
    assert shell.option(1, "--rdzv-endpoint").startswith("10.0.0.1:")
    assert [shell.option(n, "--local-addr") for n in (0, 1)] == ["10.0.0.1", "10.0.0.2"]


@pytest.mark.parametrize("first", ["10.0.0.2", "169.254.9.9"])
def test_of_two_addresses_the_first_usable_one_is_taken(first: str, shell: Bash) -> None:
    shell.stubs["getent"] = f"printf '%s STREAM node2\n' {first} 10.0.0.2 10.9.0.2"
    shell.stubs["ip"] = shell.stubs["ip"].replace(
        "    *)",
        '    *"get 169.254.9.9") echo "src 169.254.9.1 uid 0" ;;\n'
        '    *"get 10.9.0.2") echo "src 10.9.0.1 uid 0" ;;\n    *)',
        1,
    )
    shell.ran(status=0)
    assert shell.option(0, "--rdzv-endpoint").startswith("10.0.0.1:")


def test_a_node_with_ipv6_alone_is_named_so(shell: Bash) -> None:
    shell.stubs["getent"] = '[[ $1 != ahostsv4 ]] && echo "fd00::2 STREAM node2"'
    done = shell.ran(status=78)
    assert "node2 has IPv6 addresses only" in done.stderr


@pytest.mark.parametrize(("granted", "used"), [("64(x2),48", "48"), ("8(x2)", "16"), ("", "16")])
def test_the_task_gets_the_cores_that_each_node_has_of_the_job(
    granted: str, used: str, shell: Bash
) -> None:
    """Of whole nodes more than were asked for."""
    shell.environment["SLURM_JOB_CPUS_PER_NODE"] = granted
    shell.stubs["srun"] = '[[ $* != *" true" ]] || exit 0\n' + shell.stubs["srun"]
    shell.ran(status=0)
    assert f"--cpus-per-task={used} " in (shell.record / "srun").read_text()
    assert f"\nOMP_NUM_THREADS={int(used) // 4}\n" in (shell.record / "env.1").read_text()


def test_cores_that_slurm_gives_no_step_stay_unused(shell: Bash) -> None:
    shell.environment["SLURM_JOB_CPUS_PER_NODE"] = "64(x2)"
    shell.stubs["srun"] = '[[ $* != *" true" ]] || exit 1\n' + shell.stubs["srun"]
    shell.ran(status=0)
    assert "--cpus-per-task=16 " in (shell.record / "srun").read_text()


def test_a01_a_name_service_that_answers_loopback_fails_closed(shell: Bash) -> None:
    shell.stubs["getent"] = "echo 127.0.1.1 STREAM node2"
    shell.stubs["ip"] = 'echo "local 127.0.1.1 dev lo src 127.0.0.1 uid 0"'
    done = shell.ran(status=78)
    assert "127.0.0.1 from the route to node2 is a loopback" in done.stderr


def test_a04_a_name_that_nobody_knows_fails_closed(shell: Bash) -> None:
    shell.stubs["getent"] = "exit 2"
    done = shell.ran(status=78)
    assert "no IPv4 address from the route to node2" in done.stderr


@pytest.mark.parametrize("address", ["ip", "hostname"])
def test_a05_a07_a12_a19_only_the_first_node_is_host_and_each_knows_its_own_address(
    address: str, shell: Bash
) -> None:
    shell.environment["HOSTNAME"] = "node1.ten.example.org"
    profile = {"rendezvous": {"address": address}}
    shell.ran(profile=profile, status=0)
    assert shell.option(0, "--rdzv-conf").startswith("is_host=1,")
    assert shell.option(1, "--rdzv-conf").startswith("is_host=0,")
    addresses = [shell.option(node, "--local-addr") for node in (0, 1)]
    assert addresses == (["10.0.0.1", "10.0.0.2"] if address == "ip" else ["node1", "node2"])
    assert shell.option(0, "--rdzv-endpoint") == shell.option(1, "--rdzv-endpoint")


def test_a08_a_site_may_decorate_the_name(shell: Bash) -> None:
    rendezvous = {"address": "hostname", "prefix": "ic-", "suffix": "i"}
    network = {"socket_ifname": "hsn0,hsn1"}
    profile = {"rendezvous": rendezvous, "network": network}
    shell.ran(profile=profile, status=0)
    assert shell.option(1, "--rdzv-endpoint").startswith("ic-node1i:")
    assert shell.option(1, "--local-addr") == "ic-node2i"
    assert shell.seen(1)["NCCL_SOCKET_IFNAME"] == "=hsn0,hsn1"
    assert shell.seen(1)["GLOO_SOCKET_IFNAME"] == "hsn0,hsn1"


INTERFACES = [
    # what is up, what a person set -> NCCL's, gloo's
    ("eth1", {}, "=eth1", "eth1"),
    ("em4 ib0 ib1", {}, "=ib0", "ib0"),
    ("em4 hsn0", {}, "=hsn0", "hsn0"),
    ("ib0", {"NCCL_SOCKET_IFNAME": "=eth9"}, "=eth9", "eth9"),
    ("ib0", {"GLOO_SOCKET_IFNAME": "eth9"}, "=eth9", "eth9"),
    ("ib0", {"NCCL_SOCKET_IFNAME": "^docker"}, "^docker", "ib0"),
    ("ib0", {"NCCL_SOCKET_IFNAME": "ib", "GLOO_SOCKET_IFNAME": "x"}, "ib", "x"),
]


@pytest.mark.parametrize(("up", "chosen", "nccl", "gloo"), INTERFACES)
def test_a08_both_libraries_get_an_interface_or_neither(
    up: str,
    chosen: dict[str, str],
    nccl: str,
    gloo: str,
    shell: Bash,
) -> None:
    listed = f'for i in {up}; do echo "3: $i inet 10.0.0.1/24 scope global $i"; done'
    shell.stubs["ip"] = IP.replace('echo "3: eth1 inet 10.0.0.1/24 scope global eth1"', listed)
    shell.environment.update(chosen)
    done = shell.ran(status=0)
    seen = shell.seen(1)
    assert (seen["NCCL_SOCKET_IFNAME"], seen["GLOO_SOCKET_IFNAME"]) == (nccl, gloo)
    assert f"node 1 (node2) at 10.0.0.2, sockets on {gloo}" in done.stdout


def test_a08_in_name_mode_the_interface_is_that_of_the_nodes_address(shell: Bash) -> None:
    shell.stubs["getent"] = "case $2 in node1) echo 10.0.0.1;; node2) echo 10.0.0.2;; esac"
    profile = {"rendezvous": {"address": "hostname"}}
    shell.ran(profile=profile, status=0)
    assert shell.seen(1)["GLOO_SOCKET_IFNAME"] == "eth1"


@pytest.mark.parametrize("nodes", [("node1",), ("node1", "node2", "node3"), ()])
def test_a10_a11_a_node_list_of_the_wrong_length_fails_closed(
    nodes: tuple[str, ...], shell: Bash
) -> None:
    shell.nodes = nodes
    shell.environment["SLURM_JOB_NUM_NODES"] = "2"
    done = shell.ran(status=78)
    assert f"asked for 2 nodes, but node[1-2] has {len(nodes)}" in done.stderr


def test_a14_a_shell_that_is_not_on_the_head_node_fails_closed(shell: Bash) -> None:
    shell.environment["SLURMD_NODENAME"] = "login1"
    done = shell.ran(status=78)
    assert "login1: this shell should run on the head node node1" in done.stderr


def test_a15_a16_the_rendezvous_is_this_attempts_own_and_waits_as_the_profile_says(
    shell: Bash,
) -> None:
    shell.environment["SLURM_RESTART_COUNT"] = "2"
    profile = {"rendezvous": {"read_timeout_s": 77, "join_timeout_s": 88}}
    shell.ran(profile=profile)
    assert [shell.option(node, "--rdzv-id") for node in (0, 1)] == ["12345_2", "12345_2"]
    assert shell.option(0, "--rdzv-conf") == "is_host=1,read_timeout=77,join_timeout=88"


# ---- Ports


def port_of(shell: Bash) -> int:
    return int(shell.option(0, "--rdzv-endpoint").rpartition(":")[2])


def test_a17_the_port_is_outside_the_ephemeral_range(shell: Bash) -> None:
    first = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    base = first - 8
    shell.environment["SLURM_JOB_ID"] = str(16 * 100 + 10)
    profile = {"rendezvous": {"port_base": base, "port_span": 16}}
    shell.ran(profile=profile, status=0)
    assert base <= port_of(shell) < first


def test_a17_a_taken_port_is_passed_over(shell: Bash) -> None:
    # 22345 is 0x5749; a connection from a port (01) does not take it, a listening socket (0A) does.
    lines = f"{'0' * 32}:{22345 + 4001:04X} {'0' * 32}:0050 01 \n 00000000:5749 00000000:0000 0A "
    shell.stubs["cat"] = (
        f'[[ $* == /proc/net/* ]] || exec /usr/bin/cat "$@"\necho "local_address\n{lines}"'
    )
    shell.ran(status=0)
    assert port_of(shell) == 10000 + (12345 + 4001) % 20000


def test_a17_a_probe_that_fails_is_not_a_free_port(shell: Bash) -> None:
    shell.stubs["cat"] = '[[ $* != /proc/net/* ]] && exec /usr/bin/cat "$@"'
    done = shell.ran(status=78)
    assert "/proc/net/tcp" in done.stderr


def test_a18_neighbouring_jobs_array_tasks_and_restarts_get_ports_of_their_own(shell: Bash) -> None:
    script = shell.script()
    ports = []
    for job, restart in [("12345", "0"), ("12346", "0"), ("12347", "0"), ("12345", "1")]:
        shell.environment.update(SLURM_JOB_ID=job, SLURM_RESTART_COUNT=restart)
        shell.run(script)
        ports.append(port_of(shell))
    assert len(set(ports)) == len(ports)
    assert all(10000 <= port < 30000 for port in ports)


def test_a18_one_node_needs_neither_port_nor_address(shell: Bash) -> None:
    shell.nodes = ("node1",)
    for name in ("ip", "getent"):
        del shell.stubs[name]
    shell.ran(options={"resources.nodes": 1}, status=0)
    words = shell.arguments(0)
    assert "--standalone" in words
    assert not [w for w in words if w.startswith("--rdzv")]
