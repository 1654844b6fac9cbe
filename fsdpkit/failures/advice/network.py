"""What to do about names, addresses, ports and links, and about ranks that wait for others."""

from __future__ import annotations

from fsdpkit.failures.advice.entry import Advice

_WAITING = ("hang", "rendezvous-timeout", "connection-reset", "head-address", "network-setup")
_BETWEEN = ("connection-reset", "network-setup", "head-address", "exception", "rendezvous-timeout")

ENTRIES = (
    Advice(
        "gloo meets at a loopback address",
        (
            "A node's own name means its loopback address there (/etc/hosts): name the interface "
            "by GLOO_SOCKET_IFNAME (environment.variables), or in the site profile "
            "rendezvous.interface.",
        ),
        ("connect [127.", "connect [::1]", "127.0.1.1", "connectfullmesh…127."),
        causes=_BETWEEN,
    ),
    Advice(
        "gloo finds no interface of the network",
        (
            "gloo finds no address for the node's name or interface: name an interface that all "
            "nodes have (ip -br address) in GLOO_SOCKET_IFNAME (environment.variables).",
        ),
        (
            *("gloo/transport/tcp/device.cc", "unable to find address for", "ifa != nullptr"),
            "unable to find interface",
        ),
    ),
    Advice(
        "NCCL finds no interface of the network",
        (
            "NCCL finds no network as NCCL_SOCKET_IFNAME or NCCL_IB_HCA ask for it: compare ip "
            "-br address and ibv_devinfo on the nodes.",
            "{set:environment.variables.NCCL_DEBUG=INFO} shows what was tried.",
        ),
        (
            "no socket interface",
            "no ip interface",
            "no usable…interface",
            "ncclnet",
            "no device found",
        ),
        causes=_BETWEEN,
    ),
    Advice(
        "The other end speaks another protocol",
        (
            "Something else than a rank of this launch answered there: a run that shares the "
            "nodes, a scanner, or ranks with another NCCL. Compare the releases (software.json of "
            "the attempt), and restrict NCCL_SOCKET_IFNAME to the network of the job.",
        ),
        ("nccl…wrong type", "nccl…magic"),
        causes=("exception", *_BETWEEN),
    ),
    Advice(
        "A rank waited until its time was over while another prepared something",
        (
            "Other ranks had not come that far in time. If some prepare first (tokenizing, "
            "downloading, building a cache), do it once before the job, or wait longer: "
            "init_process_group(timeout=…), or ddp_timeout in transformers.",
        ),
        (
            *("store->get…time", "wait timeout after", "socket timeout", "waiting for clients"),
            *("store based barrier", "monitoredbarrier"),
        ),
        causes=(*_WAITING, "exception"),
    ),
    Advice(
        "A port that the script chose is taken",
        (
            "[rank] Port {port} is taken there by another process. The script, or a library that "
            "it uses, chose it: leave MASTER_ADDR and MASTER_PORT as they are (each launch has a "
            "port of its own) and call init_process_group() without init_method; of anything "
            "else, let it take a free one (port 0).",
            "[else] [rank] If the ranks are to meet there, leave MASTER_ADDR and MASTER_PORT as "
            "they are; else let it take a free port (0).",
        ),
        ("failed to listen", "eaddrinuse", "address already in use", "errno 98"),
        causes=("port-taken", "exception"),
    ),
    Advice(
        "A rank that does not follow the launcher",
        (
            "{variable} is a variable of the launcher that the script reads before it is set, or "
            "by another name: torchrun sets RANK, LOCAL_RANK, WORLD_SIZE, MASTER_ADDR and "
            "MASTER_PORT. Of your own, set it in environment.variables.",
        ),
        ("keyerror: '",),
        causes=("exception",),
    ),
    Advice(
        "A process group is wanted without the launcher's variables",
        (
            "That process does not have the launcher's variables (RANK, LOCAL_RANK, WORLD_SIZE, "
            "MASTER_ADDR, MASTER_PORT): one that the script starts itself must get them, and "
            "nothing may take them from the environment.",
        ),
        ("expected, but not set",),
    ),
    Advice(
        "The process group is used before it is made",
        (
            "Call torch.distributed.init_process_group() before that line, in this very process, "
            "and not after destroy_process_group().",
        ),
        ("default process group has not been initialized",),
    ),
    Advice(
        "A server limits how often it is asked",
        (
            "All ranks ask the server at once: download once before the job, on the login node "
            "or in steps.before, and set HF_HUB_OFFLINE=1 in environment.variables.",
        ),
        ("429 client error", "too many requests"),
    ),
    Advice(
        "A proxy refused, or there is none",
        (
            "Compute nodes often have no way out, or the proxy refuses that host. Download it on "
            "the login node first (for Hugging Face into HF_HOME on a shared file system, then "
            "HF_HUB_OFFLINE=1; for Weights & Biases WANDB_MODE=offline), or set the centre's "
            "proxy (https_proxy).",
        ),
        causes=("no-internet",),
    ),
    Advice(
        "The job's own port is taken",
        (
            "Submit again (another job id gives another port), or move rendezvous.port_base in "
            "the site profile.",
        ),
        (
            *("on the head node", "no free port outside", "run's secret"),
            *("address already in use", "eaddrinuse"),
        ),
        causes=("port-taken",),
    ),
    Advice(
        "No way leads to the head node's address",
        (
            "No way leads from there to the head node's address, which is one of another network: "
            "name the right one in the site profile (rendezvous.interface, .suffix or .prefix).",
        ),
        ("no route to host", "network is unreachable", "[errno 113]", "[errno 101]"),
        causes=("head-address",),
    ),
    Advice(
        "The head node's name has no address that others can use",
        (
            "Correct the name service, or in the site profile rendezvous.address, .prefix, "
            ".suffix or .interface.",
        ),
        causes=("head-address",),
    ),
    Advice(
        "The network between the GPUs",
        (
            "Compare what the node has (ip -br address, ibv_devinfo, nvidia-smi topo -m) with "
            "what NCCL_SOCKET_IFNAME, NCCL_IB_HCA or GLOO_SOCKET_IFNAME ask for.",
            "{set:environment.variables.NCCL_DEBUG=INFO} shows what was tried.",
        ),
        causes=("network-setup",),
    ),
    Advice(
        "Nodes did not come in time",
        (
            "Look at the node that did not come; if its file system was slow, raise "
            "rendezvous.join_timeout_s in the site profile.",
        ),
        causes=("rendezvous-timeout",),
    ),
    Advice(
        "A peer is gone, and nobody says why",
        (
            "{silent} printed no error: look there first, how it left.",
            "[else] What each rank wrote last: fsdpkit logs {run} --all --tail 20",
        ),
        causes=("connection-reset",),
    ),
    Advice(
        "Ranks call different collectives",
        (
            "Compare what rank {rank} and rank {peer} do there.",
            "Look for what only some ranks do: a branch on the rank (evaluation or logging on "
            "rank 0 alone), batches of different length, an early return.",
            "{set:environment.variables.TORCH_DISTRIBUTED_DEBUG=DETAIL} names the calls.",
        ),
        causes=("collective-mismatch",),
    ),
    Advice(
        "Ranks waited for one that is not known",
        (
            "{silent} printed no error: look there first.",
            "See each rank's last output (fsdpkit logs {run} --all --tail 20); where each stood "
            "is in rank-*.stacks and flight.json of the attempt, as far as they were written.",
        ),
        causes=("hang",),
    ),
)
