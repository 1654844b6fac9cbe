"""The rendered script, run by bash with stand-ins for srun, scontrol, ip, ss, getent and python.

No Slurm, no torch: what is proved here is the script's own decisions. Each stand-in writes what it
was given to a file. Cases A01… are those of the launch reference.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from fsdpkit.rendering.script import PythonEnvironment

RenderScript = Callable[..., str]
NODES = ("node1", "node2")

# Each node's task runs the here-document as srun would; the record says what every task saw.
SRUN = r"""
echo "$*" >>"$RECORD/srun"
cat >"$RECORD/task.sh"
for (( task = 0; task < ${#NODES[@]}; task++ )); do
    SLURM_NODEID=$task SLURM_PROCID=$task SLURMD_NODENAME=${NODES[task]} SLURM_LOCALID=0 \
        bash -s <"$RECORD/task.sh" || failed=$?
done
sleep "${SRUN_S:-0}" & wait $!
exit "${SRUN_STATUS:-${failed:-0}}"
"""
SCONTROL = 'printf "%s\\n" "${NODES[@]}"'
# What torchrun was started with on each node, and the environment that matters.
PYTHON = r"""
{ printf "%s\n" "$@"; } >"$RECORD/args.$SLURM_NODEID"
env >"$RECORD/env.$SLURM_NODEID"
"""
GETENT = 'case $2 in node2) echo "10.0.0.2 STREAM node2";; esac'
IP = r"""
case "$*" in
    "-4 -o route get 10.0.0.2") echo "10.0.0.2 dev eth1 src 10.0.0.1 uid 0" ;;
    "-4 -o route get 10.0.0.1") echo "10.0.0.1 dev eth1 src 10.0.0.$(( SLURM_NODEID + 1 )) uid 0" ;;
    "-4 -o addr show up scope global") echo "3: eth1 inet 10.0.0.1/24 scope global eth1" ;;
    "-4 -o addr show to "*) echo "3: eth1 inet $6/24 scope global eth1" ;;
    *) echo "ip: not understood: $*" >&2; exit 1 ;;
esac
"""
STUBS = {
    "srun": SRUN,
    "scontrol": SCONTROL,
    "python": PYTHON,
    "torchrun": "exit 1",
    "getent": GETENT,
    "ip": IP,
    "ss": 'echo "$*" >>"$RECORD/ss"',
}


@dataclass
class Bash:
    """A directory of stand-ins and the environment of a job's batch shell."""

    root: Path
    stubs: dict[str, str] = field(default_factory=lambda: dict(STUBS))
    environment: dict[str, str] = field(default_factory=dict)
    nodes: tuple[str, ...] = NODES

    @property
    def python(self) -> PythonEnvironment:
        return PythonEnvironment("prefix", str(self.root / "bin"))

    @property
    def record(self) -> Path:
        return self.root / "record"

    def start(self, script: str) -> subprocess.Popen[str]:
        bin_dir = self.root / "bin"
        for directory in (bin_dir, self.record):
            directory.mkdir(exist_ok=True)
        names = " ".join(self.nodes)
        for name, body in self.stubs.items():
            (bin_dir / name).write_text(f"#!/bin/bash\nset -u\nNODES=({names})\n{body}\n")
            (bin_dir / name).chmod(0o755)
        path = self.root / "job.sbatch"
        path.write_text(script)
        # Nothing but bash's own companions besides the stand-ins, so that a missing one is missing.
        tools = self.root / "tools"
        if not tools.exists():
            tools.mkdir()
            for tool in (
                "awk",
                "sed",
                "sort",
                "cat",
                "mkdir",
                "rm",
                "touch",
                "bash",
                "env",
                "sleep",
            ):
                (tools / tool).symlink_to(f"/usr/bin/{tool}")
        environment = {
            "PATH": f"{bin_dir}:{tools}",
            "HOME": str(self.root),
            "RECORD": str(self.record),
            "SLURM_JOB_ID": "12345",
            "SLURM_JOB_NODELIST": "node[1-2]",
            "SLURM_JOB_NUM_NODES": str(len(self.nodes)),
            "SLURM_CPUS_PER_TASK": "16",
            "SLURMD_NODENAME": "node1",
            "SLURM_EXPORT_ENV": "NONE",
            **self.environment,
        }
        return subprocess.Popen(
            ["/bin/bash", str(path)],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, script: str) -> subprocess.CompletedProcess[str]:
        process = self.start(script)
        out, err = process.communicate(timeout=30)
        return subprocess.CompletedProcess(process.args, process.returncode, out, err)

    def arguments(self, node: int) -> list[str]:
        return (self.record / f"args.{node}").read_text().splitlines()

    def seen(self, node: int) -> dict[str, str]:
        lines = (self.record / f"env.{node}").read_text().splitlines()
        return dict(line.split("=", 1) for line in lines if "=" in line)

    def option(self, node: int, name: str) -> str:
        return next(a.split("=", 1)[1] for a in self.arguments(node) if a.startswith(f"{name}="))


@pytest.fixture
def shell(tmp_path: Path) -> Bash:
    root = tmp_path / "shell"
    root.mkdir()
    return Bash(root)


def test_the_whole_script_ends_with_status_0_and_starts_torchrun_on_each_node(
    shell: Bash, render_script: RenderScript
) -> None:
    done = shell.run(render_script(python=shell.python, args=["--lr", "1 e$x", "it's"]))
    assert (done.returncode, done.stderr) == (0, "")
    assert "fsdpkit: 2 nodes (node1 node2), head node1 at 10.0.0.1:" in done.stdout
    for node in (0, 1):
        words = shell.arguments(node)
        assert words[:5] == ["-u", "-m", "fsdpkit.launching.agent", "--", "torchrun"]
        assert words[-4:] == ["/home/alex/train.py", "--lr", "1 e$x", "it's"]
        assert "--nnodes=2" in words
        assert "--nproc-per-node=4" in words
        assert "--rdzv-backend=c10d" in words


# ---- The head node's address


BAD_ADDRESSES = {
    "loopback": ("127.0.1.1", "a loopback, link-local or empty address"),
    "link-local": ("169.254.3.4", "a loopback, link-local or empty address"),
    "all zeros": ("0.0.0.0", "a loopback, link-local or empty address"),
    "none": ("", "no IPv4 address from interface ib0"),
    "IPv6": ("fe80::1", "is not an IPv4 address"),
    "a name": ("node1-ib", "is not an IPv4 address"),
    "two": ("10.1.0.1 10.2.0.1", "2 addresses from interface ib0 (10.1.0.1 10.2.0.1)"),
}


@pytest.mark.parametrize(("addresses", "why"), BAD_ADDRESSES.values(), ids=BAD_ADDRESSES.keys())
def test_a01_a02_a03_a_bad_head_address_fails_closed_naming_the_node(
    addresses: str, why: str, shell: Bash, render_script: RenderScript
) -> None:
    shell.stubs["ip"] = f'for a in {addresses}; do echo "2: ib0 inet $a/24 scope global ib0"; done'
    script = render_script(python=shell.python, profile={"rendezvous": {"interface": "ib0"}})
    done = shell.run(script)
    assert done.returncode == 78
    assert done.stderr.startswith("fsdpkit: node1: ")
    assert why in done.stderr
    assert not (shell.record / "srun").exists()


def test_a01_a_name_service_that_answers_loopback_fails_closed(
    shell: Bash, render_script: RenderScript
) -> None:
    shell.stubs["getent"] = "echo 127.0.1.1 STREAM node2"
    shell.stubs["ip"] = 'echo "local 127.0.1.1 dev lo src 127.0.0.1 uid 0"'
    done = shell.run(render_script(python=shell.python))
    assert done.returncode == 78
    assert "127.0.0.1 from the route to node2 is a loopback" in done.stderr


def test_a04_without_scontrol_there_is_no_fallback(
    shell: Bash, render_script: RenderScript
) -> None:
    del shell.stubs["scontrol"]
    done = shell.run(render_script(python=shell.python))
    assert done.returncode == 78
    assert "node1: there is no scontrol on PATH" in done.stderr


def test_a04_a_name_that_nobody_knows_fails_closed(
    shell: Bash, render_script: RenderScript
) -> None:
    shell.stubs["getent"] = "exit 2"
    done = shell.run(render_script(python=shell.python))
    assert done.returncode == 78
    assert "no IPv4 address from the route to node2" in done.stderr


@pytest.mark.parametrize("address", ["ip", "hostname"])
def test_a05_a07_a12_a19_only_the_first_node_is_host_and_each_knows_its_own_address(
    address: str, shell: Bash, render_script: RenderScript
) -> None:
    shell.environment["HOSTNAME"] = "node1.ten.example.org"
    profile = {"rendezvous": {"address": address}}
    assert shell.run(render_script(python=shell.python, profile=profile)).returncode == 0
    assert shell.option(0, "--rdzv-conf").startswith("is_host=1,")
    assert shell.option(1, "--rdzv-conf").startswith("is_host=0,")
    addresses = [shell.option(node, "--local-addr") for node in (0, 1)]
    assert addresses == (["10.0.0.1", "10.0.0.2"] if address == "ip" else ["node1", "node2"])
    assert shell.option(0, "--rdzv-endpoint") == shell.option(1, "--rdzv-endpoint")


def test_a08_a_site_may_decorate_the_name(shell: Bash, render_script: RenderScript) -> None:
    rendezvous = {"address": "hostname", "prefix": "ic-", "suffix": "i"}
    network = {"socket_ifname": "hsn0,hsn1"}
    profile = {"rendezvous": rendezvous, "network": network}
    assert shell.run(render_script(python=shell.python, profile=profile)).returncode == 0
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
    render_script: RenderScript,
) -> None:
    listed = f'for i in {up}; do echo "3: $i inet 10.0.0.1/24 scope global $i"; done'
    shell.stubs["ip"] = IP.replace('echo "3: eth1 inet 10.0.0.1/24 scope global eth1"', listed)
    shell.environment.update(chosen)
    done = shell.run(render_script(python=shell.python))
    assert done.returncode == 0, done.stderr
    seen = shell.seen(1)
    assert (seen["NCCL_SOCKET_IFNAME"], seen["GLOO_SOCKET_IFNAME"]) == (nccl, gloo)
    assert f"node 1 (node2) at 10.0.0.2, sockets on {gloo}" in done.stdout


def test_a08_in_name_mode_the_interface_is_that_of_the_nodes_address(
    shell: Bash, render_script: RenderScript
) -> None:
    shell.stubs["getent"] = "case $2 in node1) echo 10.0.0.1;; node2) echo 10.0.0.2;; esac"
    profile = {"rendezvous": {"address": "hostname"}}
    assert shell.run(render_script(python=shell.python, profile=profile)).returncode == 0
    assert shell.seen(1)["GLOO_SOCKET_IFNAME"] == "eth1"


@pytest.mark.parametrize("nodes", [("node1",), ("node1", "node2", "node3"), ()])
def test_a10_a11_a_node_list_of_the_wrong_length_fails_closed(
    nodes: tuple[str, ...], shell: Bash, render_script: RenderScript
) -> None:
    shell.nodes = nodes
    shell.environment["SLURM_JOB_NUM_NODES"] = "2"
    done = shell.run(render_script(python=shell.python))
    assert done.returncode == 78
    assert f"asked for 2 nodes, but node[1-2] has {len(nodes)}" in done.stderr


def test_a14_a_shell_that_is_not_on_the_head_node_fails_closed(
    shell: Bash, render_script: RenderScript
) -> None:
    shell.environment["SLURMD_NODENAME"] = "login1"
    done = shell.run(render_script(python=shell.python))
    assert done.returncode == 78
    assert "login1: this shell should run on the head node node1" in done.stderr


def test_a13_nothing_in_the_task_is_expanded_by_the_batch_shell(
    shell: Bash, render_script: RenderScript
) -> None:
    shell.run(render_script(python=shell.python, args=["$SLURM_NODEID", "`id`", "\\$HOME"]))
    assert shell.arguments(1)[-3:] == ["$SLURM_NODEID", "`id`", "\\$HOME"]
    assert "$SLURM_NODEID" in (shell.record / "task.sh").read_text()


def test_a15_a16_the_rendezvous_is_this_attempts_own_and_waits_as_the_profile_says(
    shell: Bash, render_script: RenderScript
) -> None:
    shell.environment["SLURM_RESTART_COUNT"] = "2"
    profile = {"rendezvous": {"read_timeout_s": 77, "join_timeout_s": 88}}
    shell.run(render_script(python=shell.python, profile=profile))
    assert [shell.option(node, "--rdzv-id") for node in (0, 1)] == ["12345_2", "12345_2"]
    assert shell.option(0, "--rdzv-conf") == "is_host=1,read_timeout=77,join_timeout=88"


# ---- Ports


def port_of(shell: Bash) -> int:
    return int(shell.option(0, "--rdzv-endpoint").rpartition(":")[2])


def test_a17_the_port_is_outside_the_ephemeral_range(
    shell: Bash, render_script: RenderScript
) -> None:
    first, last = map(int, Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split())
    base = first - 8
    shell.environment["SLURM_JOB_ID"] = str(16 * 100 + 10)
    profile = {"rendezvous": {"port_base": base, "port_span": 16}}
    done = shell.run(render_script(python=shell.python, profile=profile))
    assert done.returncode == 0, done.stderr
    assert base <= port_of(shell) < first


def test_a17_without_any_such_port_it_fails_closed(
    shell: Bash, render_script: RenderScript
) -> None:
    first = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    profile = {"rendezvous": {"port_base": first, "port_span": 16}}
    done = shell.run(render_script(python=shell.python, profile=profile))
    assert done.returncode == 78
    assert "node1: no free port outside" in done.stderr


def test_a17_a_taken_port_is_passed_over(shell: Bash, render_script: RenderScript) -> None:
    shell.stubs["ss"] = 'if [[ $* == *":22345" ]]; then echo "LISTEN 0 128 *:22345 *:*"; fi'
    assert shell.run(render_script(python=shell.python)).returncode == 0
    assert port_of(shell) == 10000 + (12345 + 4001) % 20000


def test_a17_a_probe_that_fails_is_not_a_free_port(
    shell: Bash, render_script: RenderScript
) -> None:
    shell.stubs["ss"] = "exit 1"
    done = shell.run(render_script(python=shell.python))
    assert done.returncode == 78
    assert "ss cannot list the ports in use" in done.stderr


def test_a18_neighbouring_jobs_array_tasks_and_restarts_get_ports_of_their_own(
    shell: Bash, render_script: RenderScript
) -> None:
    script = render_script(python=shell.python)
    ports = []
    for job, restart in [("12345", "0"), ("12346", "0"), ("12347", "0"), ("12345", "1")]:
        shell.environment.update(SLURM_JOB_ID=job, SLURM_RESTART_COUNT=restart)
        shell.run(script)
        ports.append(port_of(shell))
    assert len(set(ports)) == len(ports)
    assert all(10000 <= port < 30000 for port in ports)


def test_a18_one_node_needs_neither_port_nor_address(
    shell: Bash, render_script: RenderScript
) -> None:
    shell.nodes = ("node1",)
    for name in ("ip", "ss", "getent"):
        del shell.stubs[name]
    done = shell.run(render_script(python=shell.python, options={"resources.nodes": 1}))
    assert done.returncode == 0, done.stderr
    words = shell.arguments(0)
    assert "--standalone" in words
    assert not [w for w in words if w.startswith("--rdzv")]


# ---- The job's status


@pytest.mark.parametrize("status", [0, 1, 42, 75, 137, 255])
def test_a20_the_status_of_srun_is_the_last_word(
    status: int, shell: Bash, render_script: RenderScript
) -> None:
    shell.environment["SRUN_STATUS"] = str(status)
    assert shell.run(render_script(python=shell.python)).returncode == status


@pytest.mark.parametrize("status", [0, 42])
def test_a20_a29_a31_two_warnings_leave_a_file_and_the_status_alone(
    status: int, shell: Bash, render_script: RenderScript, tmp_path: Path
) -> None:
    shell.environment.update(SRUN_STATUS=str(status), SRUN_S="1")
    process = shell.start(render_script(python=shell.python))
    deadline = time.monotonic() + 10
    while not (shell.record / "args.1").exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    for _ in range(2):
        os.kill(process.pid, signal.SIGUSR1)  # the batch shell alone, as with --signal=B:
        time.sleep(0.2)
    assert process.wait(timeout=10) == status
    assert (tmp_path / "run" / "stop-requested").exists()


def test_a29_an_old_request_to_stop_does_not_stop_the_next_attempt(
    shell: Bash, render_script: RenderScript, tmp_path: Path
) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "stop-requested").touch()
    shell.run(render_script(python=shell.python))
    assert not (tmp_path / "run" / "stop-requested").exists()


FAILURES = {"3 rank 1 on node2: x": 3, "300 x": 137, "0 x": 137, "nonsense": 137, "": 137}


@pytest.mark.parametrize(("line", "status"), FAILURES.items())
def test_a23_the_first_recorded_failure_is_the_jobs_status(
    line: str, status: int, shell: Bash, render_script: RenderScript, tmp_path: Path
) -> None:
    shell.environment["SRUN_STATUS"] = "137"
    failures = tmp_path / "run" / "attempt-0" / "failures"
    failures.mkdir(parents=True)
    (failures / "00000000000000000001-node-1-rank-4").write_text(f"{line}\n")
    (failures / "00000000000000000002-node-0").write_text("9 later\n")
    assert shell.run(render_script(python=shell.python)).returncode == status


def test_a21_a_failing_check_in_the_task_is_the_tasks_status(
    shell: Bash, render_script: RenderScript
) -> None:
    shell.stubs["ip"] = IP.replace(
        '"-4 -o route get 10.0.0.1") echo', '"-4 -o route get 10.0.0.1") false'
    )
    done = shell.run(render_script(python=shell.python))
    assert done.returncode == 78
    assert "node2: there is no route to the head node's address 10.0.0.1" in done.stderr


def test_a22_a40_a46_there_is_one_step_with_cpus_and_an_end_for_all(
    shell: Bash, render_script: RenderScript
) -> None:
    shell.run(render_script(python=shell.python, options={"parameters.wait_s": 90}))
    (launch,) = (shell.record / "srun").read_text().splitlines()
    for word in ("--nodes=2", "--ntasks-per-node=1", "--cpus-per-task=16", "--kill-on-bad-exit=1"):
        assert word in launch.split()
    assert "--wait=90" in launch.split()
    assert launch.endswith("bash -s")


# ---- Logs of attempts


def test_a34_every_attempt_has_a_folder_and_logs_are_appended_to(
    shell: Bash, render_script: RenderScript, tmp_path: Path
) -> None:
    shell.environment["SLURM_RESTART_COUNT"] = "3"
    script = render_script(python=shell.python)
    shell.run(script)
    assert (tmp_path / "run" / "attempt-3" / "failures").is_dir()
    assert shell.seen(0)["FSDPKIT_ATTEMPT_DIR"] == str(tmp_path / "run" / "attempt-3")
    assert "#SBATCH --open-mode=append" in script
    assert "--open-mode=append" in (shell.record / "srun").read_text()


def test_a63_each_array_task_has_its_number_folder_and_log(
    shell: Bash, render_script: RenderScript, tmp_path: Path
) -> None:
    shell.environment.update(SLURM_ARRAY_JOB_ID="900", SLURM_ARRAY_TASK_ID="7")
    script = render_script(python=shell.python, array="0-9", args=["--fold={array_task}", "$x"])
    assert shell.run(script).returncode == 0
    assert shell.arguments(1)[-2:] == ["--fold=7", "$x"]
    assert (tmp_path / "run" / "task-7" / "attempt-0").is_dir()
    assert "/submitit/900_7_%t_log.out" in (shell.record / "srun").read_text()


@pytest.mark.parametrize("name", ["a b", "a'b", 'a"b', "a$(touch x)b", "a#b", "100%j", "a;b", "é"])
def test_a64_a_run_directory_of_any_name_is_one_word(
    name: str, shell: Bash, render_script: RenderScript, tmp_path: Path
) -> None:
    done = shell.run(render_script(python=shell.python, run_dir=tmp_path / name))
    assert (done.returncode, done.stderr) == (0, "")
    assert (tmp_path / name / "attempt-0").is_dir()
    assert not (tmp_path / "x").exists()
    percent = str(tmp_path / name).replace("%", "%%")
    assert f"--output={percent}/submitit/12345_%t_log.out" in (shell.record / "srun").read_text()


def test_a_run_directory_that_cannot_be_made_is_said_so(
    shell: Bash, render_script: RenderScript, tmp_path: Path
) -> None:
    (tmp_path / "run").touch()
    done = shell.run(render_script(python=shell.python))
    assert done.returncode == 78
    assert f"node1: cannot write to the run directory {tmp_path}/run" in done.stderr


# ---- The environment


def test_a37_a44_a47_steps_keep_the_environment_and_ranks_share_the_cores(
    shell: Bash, render_script: RenderScript
) -> None:
    options = {"environment.variables": {"NCCL_PROTO": "^LL128", "B": "a, b=$c 'd'"}}
    shell.environment["LD_LIBRARY_PATH"] = "/old"
    profile = {"environment": {"unset": ["LD_LIBRARY_PATH"]}}
    shell.run(render_script(python=shell.python, options=options, profile=profile))
    seen = shell.seen(1)
    assert seen["SLURM_EXPORT_ENV"] == "ALL"
    assert seen["PYTHONNOUSERSITE"] == "1"
    assert seen["OMP_NUM_THREADS"] == "4"  # 16 cores, 4 ranks
    assert (seen["NCCL_PROTO"], seen["B"]) == ("^LL128", "a, b=$c 'd'")
    assert "LD_LIBRARY_PATH" not in seen


@pytest.mark.parametrize(("cores", "threads"), [("16", "4"), ("7", "1"), ("2", "1")])
def test_a47_a_rank_has_at_least_one_thread(
    cores: str, threads: str, shell: Bash, render_script: RenderScript
) -> None:
    shell.environment["SLURM_CPUS_PER_TASK"] = cores
    shell.run(render_script(python=shell.python))
    assert shell.seen(0)["OMP_NUM_THREADS"] == threads


def test_a47_the_threads_can_be_set(shell: Bash, render_script: RenderScript) -> None:
    shell.run(render_script(python=shell.python, options={"parameters.omp_threads": 3}))
    assert shell.seen(0)["OMP_NUM_THREADS"] == "3"


def test_a42_conda_is_activated_through_its_own_shell_code(
    shell: Bash, render_script: RenderScript
) -> None:
    base = shell.root / "conda"
    (base / "etc" / "profile.d").mkdir(parents=True)
    # Like the real one, it trips over set -u.
    (base / "etc" / "profile.d" / "conda.sh").write_text(
        ': "$_UNSET_VARIABLE"\nconda() { : "$_UNSET_VARIABLE"; export CONDA_PREFIX="$2"; }\n'
    )
    shell.stubs["conda"] = f'[[ "$*" == "info --base" ]] && echo "{base}"'
    environment = {"environment.conda": "my env"}
    done = shell.run(render_script(options=environment))
    assert (done.returncode, done.stderr) == (0, "")
    assert shell.seen(1)["CONDA_PREFIX"] == "my env"


CONDAS = {
    "is missing": (None, "there is no 'conda' here; load its module"),
    "does not answer": ("exit 1", "info --base' failed"),
    "is elsewhere": ("echo /nowhere", "there is no etc/profile.d/conda.sh in /nowhere"),
}


@pytest.mark.parametrize(("stub", "why"), CONDAS.values(), ids=CONDAS.keys())
def test_a42_a_conda_that_does_not_work_is_said_to(
    stub: str | None, why: str, shell: Bash, render_script: RenderScript
) -> None:
    if stub:
        shell.stubs["conda"] = stub
    done = shell.run(render_script(options={"environment.conda": "torch"}))
    assert done.returncode == 78
    assert f"fsdpkit: node1: {why}" in done.stderr.replace(f"'{shell.root}/bin/conda ", "")


def test_a42_an_environment_that_conda_does_not_have_is_said_so(
    shell: Bash, render_script: RenderScript
) -> None:
    base = shell.root / "conda"
    (base / "etc" / "profile.d").mkdir(parents=True)
    (base / "etc" / "profile.d" / "conda.sh").write_text("conda() { return 1; }\n")
    shell.stubs["conda"] = f'echo "{base}"'
    done = shell.run(render_script(options={"environment.conda": "torch"}))
    assert done.returncode == 78
    assert "cannot activate the conda environment torch" in done.stderr


def test_a43_modules_are_loaded_through_the_exported_function(
    shell: Bash, render_script: RenderScript
) -> None:
    shell.environment["BASH_FUNC_module%%"] = '() { echo "$*" >>"$RECORD/modules"; : "$_UNSET"; }'
    profile = {"environment": {"purge_modules": True, "use_modules": ["/apps/my modules"]}}
    options = {"environment.modules": ["cuda/12.4", "my; module"]}
    done = shell.run(render_script(python=shell.python, profile=profile, options=options))
    assert done.returncode == 0, done.stderr
    loaded = (shell.record / "modules").read_text().splitlines()
    assert loaded == ["purge", "use /apps/my modules", "load cuda/12.4", "load my; module"]


def test_a43_a_missing_module_command_or_module_is_said_so(
    shell: Bash, render_script: RenderScript
) -> None:
    script = render_script(python=shell.python, options={"environment.modules": ["cuda/12.4"]})
    if not any(
        Path("/etc/profile.d", n).exists() for n in ("lmod.sh", "modules.sh", "z00_lmod.sh")
    ):
        done = shell.run(script)
        assert done.returncode == 78
        assert "node1: there is no 'module' command" in done.stderr
    shell.environment["BASH_FUNC_module%%"] = "() { return 1; }"
    done = shell.run(script)
    assert done.returncode == 78
    assert "node1: cannot load the module cuda/12.4" in done.stderr


def test_a_virtual_environment_is_on_path_or_said_to_be_missing(
    shell: Bash, render_script: RenderScript
) -> None:
    shell.root.joinpath("venv").mkdir()
    script = render_script(options={"environment.venv": str(shell.root / "venv")})
    done = shell.run(script)
    assert done.returncode == 78
    assert f"there is no Python in {shell.root}/venv/bin; do the nodes see" in done.stderr
    (shell.root / "venv" / "bin").symlink_to(shell.root / "bin")
    assert shell.run(script).returncode == 0
    assert shell.seen(1)["VIRTUAL_ENV"] == str(shell.root / "venv")


def test_a_missing_torchrun_is_found_before_anything_starts(
    shell: Bash, render_script: RenderScript
) -> None:
    del shell.stubs["torchrun"]
    done = shell.run(render_script(python=shell.python))
    assert done.returncode == 78
    assert "node1: there is no torchrun on PATH; is torch installed" in done.stderr
    assert not (shell.record / "srun").exists()


def test_a57_a59_a_container_sees_the_run_directory_and_brings_its_own_python(
    shell: Bash, render_script: RenderScript, tmp_path: Path
) -> None:
    del shell.stubs["torchrun"]
    shell.stubs["apptainer"] = 'printf "%s\\n" "$@" >"$RECORD/container.$SLURM_NODEID"'
    profile = {"container": {"engine": "apptainer", "arguments": ["--nv"]}}
    options = {"environment.container": "/images/my torch.sif"}
    done = shell.run(render_script(profile=profile, options=options))
    assert (done.returncode, done.stderr) == (0, "")
    words = (shell.record / "container.1").read_text().splitlines()
    binds = [f"--bind={tmp_path}/run", "--bind=/home/alex"]
    assert words[:6] == ["exec", "--nv", *binds, "/images/my torch.sif", "python"]
