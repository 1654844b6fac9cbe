"""What goes wrong before training: software, addresses, ports, agents, environments, scripts."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

from tests.faults.trial import Trial

from .stage import LINEAR, STOP, Stage, scenario


def place_of(package: str) -> Path:
    spec = find_spec(package)
    assert spec is not None
    assert spec.submodule_search_locations
    return Path(next(iter(spec.submodule_search_locations)))


# Software


@scenario("import-error", "import-error", node="node2")
def torch_hidden(stage: Stage) -> Trial:
    """On the second node an empty directory stands where torch is."""
    stage.hide("node2", place_of("torch"))
    return stage.linear(sets=STOP)


@scenario("import-error-in-ranks", "import-error", rank=1, node="node2")
def module_hidden(stage: Stage) -> Trial:
    """The trainer imports a module of its own that the second node does not see."""
    modules = stage.directory / f"modules-{stage.count}"
    modules.mkdir()
    (modules / "samples.py").write_text("SIZE = 32\n")
    script = modules.with_suffix(".py")
    imports = f"import sys\nsys.path.insert(0, {str(modules)!r})\nimport samples\n"
    future, _, rest = LINEAR.read_text().partition("import argparse\n")
    script.write_text(f"{future}{imports}import argparse\n{rest}")
    stage.hide("node2", modules)
    return stage.linear(entry=script, sets=STOP)


@scenario("import-error-shared-library", "import-error", node="node2")
def library_hidden(stage: Stage) -> Trial:
    """On the second node torch's shared libraries are not there."""
    stage.hide("node2", place_of("torch") / "lib")
    return stage.linear(sets=STOP)


def other_version(stage: Stage, node: str) -> None:
    """On that node torch calls itself by another version."""
    real = place_of("torch") / "version.py"
    other = stage.directory / "version.py"
    other.write_text(real.read_text().replace("2.13.0", "2.11.0"))
    stage.bind(node, other, real)
    if (compiled := real.parent / "__pycache__").is_dir():
        stage.hide(node, compiled)


@scenario("version-mismatch", "version-mismatch", undecided=("node",))
def version_mismatch(stage: Stage) -> Trial:
    """The second node has another torch; whichever node is checked later says so."""
    other_version(stage, "node2")
    return stage.linear(sets=STOP)


@scenario("version-mismatch-in-ranks", "version-mismatch", undecided=("rank", "node"))
def version_mismatch_in_ranks(stage: Stage) -> Trial:
    """The same without the check before training: T5's ranks compare."""
    other_version(stage, "node2")
    return stage.t5(sets=("parameters.preflight=false", *STOP))


# Addresses and ports


BY_NAME = ("--cluster", "byname")
IMPATIENT = ("--cluster", "impatient")


@scenario("head-address", "head-address", node="node2")
def unresolvable(stage: Stage) -> Trial:
    """The second node cannot resolve the head node's name."""
    stage.hosts("node2", "node1", None)
    return stage.linear(words=BY_NAME, sets=STOP)


@scenario("head-address-loopback", "head-address", node="node1")
def loopback(stage: Stage) -> Trial:
    """The head node's own name is 127.0.1.1 there, as Debian's installer leaves it."""
    stage.hosts("node1", "node1", "127.0.1.1")
    return stage.linear(words=BY_NAME, sets=STOP)


@scenario("head-address-in-shell", "head-address", node="node1")
def loopback_peer(stage: Stage) -> Trial:
    """The head node looks for its address on the route to the second node, which is a loopback."""
    stage.hosts("node1", "node2", "127.0.1.1")
    return stage.linear(sets=STOP)


@scenario("head-address-wrong", "head-address", node="node2")
def wrong_address(stage: Stage) -> Trial:
    """On the second node the head node's name is an address at which nobody is."""
    stage.hosts("node2", "node1", stage.cluster.network.address(77))
    return stage.linear(words=BY_NAME, sets=STOP)


TAKE = """
    import socket, sys, time
    sockets = []
    for port in map(int, sys.argv[2:]):
        sockets.append(socket.socket())
        sockets[-1].bind(("", port))
        if sys.argv[1] == "listen":
            sockets[-1].listen()
    print("taken", flush=True)
    time.sleep(600)
"""


def take(stage: Stage, how: str, *ports: int) -> None:
    """A program on the head node holds these ports; how: `listen`, or only `bind`."""
    stage.process("node1", sys.executable, "-c", textwrap.dedent(TAKE), how, *map(str, ports))


def take_port_of(stage: Stage, trial: Trial) -> None:
    """The port that the script chooses first (templates/torchrun), unseen by ss."""
    take(stage, "bind", 10000 + int(trial.job_id) % 20000)


@scenario("port-taken", "port-taken", node="node1")
def port_bound(stage: Stage) -> Trial:
    """Another program has the port without listening yet, so that ss does not show it."""
    with stage.held_back():
        trial = stage.linear(sets=STOP)
        take_port_of(stage, trial)
    return trial


@scenario("port-taken-at-bind", "port-taken", node="node1")
def port_taken_at_bind(stage: Stage) -> Trial:
    """The same without the check before training: the store finds it."""
    with stage.held_back():
        trial = stage.linear(words=IMPATIENT, sets=("parameters.preflight=false", *STOP))
        take_port_of(stage, trial)
    return trial


@scenario("port-taken-all", "port-taken", node="node1")
def all_ports_taken(stage: Stage) -> Trial:
    """Other programs listen on every port that the site allows."""
    take(stage, "listen", *range(12000, 12016))
    return stage.linear(words=("--cluster", "fewports"), sets=STOP)


# Agents


@scenario("rendezvous-timeout", "rendezvous-timeout", node="node2")
def agent_never_comes(stage: Stage) -> Trial:
    """The agent of the second node is stopped before it can join."""
    trial = stage.linear(words=IMPATIENT, sets=STOP)
    trial.until(lambda: any(_agents(trial, "node2")), "the agent of node2")
    agent = trial.agent("node2")
    agent.suspend()
    try:
        trial.until(lambda: trial.task.attempt(0).verdict.exists(), "the head's verdict")
    finally:
        agent.resume()
    return trial


def _agents(trial: Trial, node: str) -> Iterator[object]:
    for process, line, environ in trial._processes():
        if "fsdpkit.launching.agent" in line and environ.get("SLURMD_NODENAME") == node:
            yield process


@scenario("rendezvous-timeout-firewall", "rendezvous-timeout", node="node2")
def firewall(stage: Stage) -> Trial:
    """The head node's firewall drops what comes to the rendezvous's ports."""
    rule = ["INPUT", "-p", "tcp", "--dport", "10000:29999", "-i", "eth0", "-j", "DROP"]
    stage.on_node("node1", ["iptables", "-A", *rule], ["iptables", "-D", *rule])
    return stage.linear(words=IMPATIENT, sets=STOP)


# The environment and the script


@scenario("environment-missing", "environment-missing", node="node1")
def no_conda(stage: Stage) -> Trial:
    """The job names a conda environment where there is no conda."""
    return stage.linear(sets=("environment.conda=t5-training", *STOP))


@scenario("environment-missing-module", "environment-missing", node="node1")
def no_module(stage: Stage) -> Trial:
    """The job loads modules where there is no module command."""
    return stage.linear(sets=('environment.modules=["cuda/12.8"]', *STOP))


@scenario("environment-missing-module-name", "environment-missing", node="node1")
def unknown_module(stage: Stage) -> Trial:
    """There is a module command, and it does not know the module."""
    profiles = stage.directory / "profile.d"
    profiles.mkdir()
    (profiles / "lmod.sh").write_text(
        "module() {\n"
        '  echo "Lmod has detected the following error: The following module(s) are unknown:" >&2\n'
        '  echo "\\"$2\\"" >&2\n'
        "  return 1\n}\n"
    )
    stage.bind("node1", profiles, "/etc/profile.d")
    return stage.linear(sets=('environment.modules=["cuda/12.8"]', *STOP))


@scenario("environment-missing-venv", "environment-missing", node="node1")
def no_venv(stage: Stage) -> Trial:
    """The job's virtual environment does not exist on the node."""
    return stage.linear(sets=("environment.venv=/opt/envs/t5", *STOP))


@scenario("script-not-visible", "script-not-visible", rank=1, node="node2")
def script_not_visible(stage: Stage) -> Trial:
    """The second node does not see the directory of the training script."""
    place = stage.directory / f"scripts-{stage.count}"
    place.mkdir()
    script = place / "train.py"
    script.write_text(LINEAR.read_text())
    stage.hide("node2", place)
    return stage.linear(entry=script, sets=STOP)


@scenario("script-not-visible-anywhere", "script-not-visible", undecided=("rank", "node"))
def script_deleted(stage: Stage) -> Trial:
    """The script lay on the login node's own disk."""
    place = stage.directory / f"scripts-{stage.count}"
    place.mkdir()
    script = place / "train.py"
    script.write_text(LINEAR.read_text())
    stage.hide("node1", place)
    stage.hide("node2", place)
    return stage.linear(entry=script, sets=STOP)
