"""Causes: names, addresses, ports and links, from the world outside to the network between GPUs."""

from __future__ import annotations

from fsdpkit.failures.cause import RESUME, Cause
from fsdpkit.failures.patterns import OURS, Level, pattern

HEAD_SILENT = "the head node's agent does not answer any more"
"""What an agent says that hears nothing of the head's."""

NO_INTERNET = Cause(
    "no-internet",
    "{who} could not reach a service outside the cluster: {words}",
    "Compute nodes often have no internet access: download it on the login node first (for Hugging "
    "Face into HF_HOME on a shared file system, then HF_HUB_OFFLINE=1; for Weights & "
    "Biases WANDB_MODE=offline), or set the centre's proxy.",
    again="no, while the nodes have no internet access",
    patterns=(
        pattern(
            ("Could not resolve host: ", "curl: (7)", "curl: (28)"),
            "curl and git, of what a container, a prelude or a script fetches",
        ),
        pattern(
            (
                *(
                    "couldn't connect to",
                    "Can't load the configuration of",
                    "LocalEntryNotFound",
                ),
                *("offline mode is enabled", "outgoing traffic has been disabled"),
                *("Cannot reach https", "we cannot find the requested files in the"),
                *(
                    "cannot find the requested files in the disk cache",
                    "Network error (Con",
                ),
                *("Max retries exceeded with url", "Failed to establish a new connection"),
                *("Could not reach", "annot connect to host", "Couldn't reach"),
                *("onnect to the license server", "icense server", "connection broken by"),
            ),
            "Hugging Face's libraries, urllib3, aiohttp, wandb, licence managers, pip",
            quoted=True,
            line=r"(?i)huggingface|https?://(?!localhost|127\.)|host=|hub|dataset|wandb|"
            r"connection error|network error|cannot connect to host [\w-]+\.[\w.-]+:443|"
            r"(?:connect|reach|communicate|contact).{0,60}licen[sc]e (?:server|manager)|"
            r"licen[sc]e (?:server|manager).{0,60}(?:connect|reach|down|respond|timed out)|"
            r"NewConnectionError|ConnectTimeoutError|NameResolutionError",
        ),
    ),
)

OWN_PORT = (
    "The script, or a library that it uses, chose this port itself: if the ranks are to meet "
    "there, leave MASTER_ADDR and MASTER_PORT as they are (each launch has a port of its own) and "
    "call init_process_group() without init_method; else let it take another one, or any that is "
    "free (port 0)."
)
_IN_USE = ("server socket has failed to listen", "EADDRINUSE", "Address already in use")
PORT_TAKEN = Cause(
    "port-taken",
    "A port was taken on {who}: {words}",
    "Submit again (another job id gives another port), or move rendezvous.port_base in the "
    "site profile.",
    patterns=(
        pattern(
            "is taken on the head node",
            "fsdpkit's check before training",
            by=OURS,
            line=r"port \d+",
        ),
        pattern("no free port outside ", "our batch shell", by=OURS),
        pattern(
            "does not know this run's secret",
            "fsdpkit's agents, when another program answers on the port",
            by=OURS,
        ),
        pattern(
            _IN_USE,
            "torch's TCPStore and the kernel, of a port that a rank chose",
            by=("rank",),
            action=OWN_PORT,
        ),
        pattern(_IN_USE, "the same of an agent or the batch shell", by=("agent", "batch")),
    ),
)

HEAD_ADDRESS = Cause(
    "head-address",
    "{who} could not find the head node by its address: {words}",
    "Correct the name service, or in the site profile rendezvous.address, .prefix, .suffix "
    "or .interface.",
    patterns=(
        pattern(
            "the head node",
            "fsdpkit's check before training",
            by=OURS,
            line=r"'[^']*' (?:does not resolve|resolves to)",
        ),
        pattern(
            (
                "no IPv4 address from ",
                "is not an IPv4 address",
                "one interface in the site",
            ),
            "our batch shell",
            by=OURS,
        ),
        pattern("is a loopback, link-local or empty address", "our batch shell", by=OURS),
        pattern("no route to the head node's address", "the shell on each node"),
        pattern("no network interface carries ", "the shell on each node"),
        pattern(
            "cannot reach the head node's port",
            "fsdpkit's agents, when nothing answers at the address; a timeout may have other "
            "causes",
            Level.WAITED,
            by=OURS,
            line="head node's port (?!.*timed out)",
        ),
        pattern(
            "The IPv",
            "torch's TCPStore, of a name that does not resolve",
            line=r"network addresses of \(.*\) cannot be retrieved",
        ),
        pattern(
            (
                *("Name or service not known", "Temporary failure in name resolution"),
                *("No address associated with hostname", "DNS resolution failed"),
                "no such host",
            ),
            "getaddrinfo(3), gRPC, Go",
        ),
        pattern(("No route to host", "Network is unreachable"), "connect(2)", Level.WAITED),
    ),
)

NETWORK_SETUP = Cause(
    "network-setup",
    "{who} could not set up the network between the GPUs: {words}",
    "Compare what the node has (ip -br address, ibv_devinfo, nvidia-smi topo -m) with what "
    "NCCL_SOCKET_IFNAME, NCCL_IB_HCA or GLOO_SOCKET_IFNAME ask for; NCCL_DEBUG=INFO says "
    "what was tried.",
    again="not until the network setup changes",
    patterns=(
        pattern(
            ("Unable to find address for: ", "unable to find interface", "ifa != nullptr"),
            "gloo, of GLOO_SOCKET_IFNAME",
        ),
        pattern(
            "connectFullMesh failed",
            "gloo, which listened on an address that others cannot reach",
            line=r"\[?(?:127\.|::1)",
            action="A node's own name means its loopback address there: name the interface "
            "by GLOO_SOCKET_IFNAME, or in the site profile rendezvous.interface.",
        ),
        pattern(
            "connectFullMesh failed",
            "gloo, of a rank that it did not reach, or that was gone",
            Level.WAITED,
            line=r"^(?!.*(?:closed|reset) by peer)",
        ),
        pattern(
            (
                *("no usable transports", "UCX ERROR", "UCX  ERROR", "UCX  WARN"),
                *("fi_getinfo", "OFI ", "Error: ucp_ep_create"),
            ),
            "UCX and libfabric",
            line=r"ERROR|Error|not available|no usable|fi_|OFI \w+(?:\(\))? failed",
        ),
        pattern("Duplicate GPU detected", "NCCL"),
    ),
)

RENDEZVOUS_TIMEOUT = Cause(
    "rendezvous-timeout",
    "The nodes did not meet in time: {who}: {words}",
    "Look at the node that did not come; if its file system was slow, raise "
    "rendezvous.join_timeout_s in the site profile. " + RESUME,
    patterns=(
        pattern(
            "no agent after ", "the head's agent, of nodes that did not come", Level.WAITED, by=OURS
        ),
        pattern(
            ("RendezvousTimeoutError", "RendezvousConnectionError"),
            "torchrun",
            Level.WAITED,
        ),
        pattern(
            ("client socket has timed out", "client socket has failed to connect"),
            "torch's TCPStore on a node that does not reach the head",
            Level.WAITED,
        ),
        pattern("where the ranks are to meet", "our agents", Level.WAITED, by=OURS),
        pattern("waiting for clients", "TCPStore on the head", Level.WAITED),
        pattern(
            ("wait timeout after ", "got error: Socket Timeout", "in store based barrier"),
            "TCPStore, of a key that nobody sets",
            Level.WAITED,
        ),
    ),
)

CONNECTION_RESET = Cause(
    "connection-reset",
    "{who} lost the connection to another rank; the cause is unknown: {words}",
    "Look for what happened on the other side: the node's own log, sinfo -R. " + RESUME,
    patterns=(
        pattern(
            (
                *("Connection reset", "Connection closed", "Connection refused"),
                *("connection reset", "connection closed", "connection refused"),
                *("closed by peer", "Broken pipe", "broken pipe", "Socket Timeout"),
                *("Socket timeout", "ncclRemoteError", "ncclSystemError"),
                *("remote process exited", "communicator was aborted"),
                *("ConnectionResetError", "BrokenPipeError", "failed to recv, got 0 bytes"),
                *("DistNetworkError", "DistStoreError", "Connection timed out"),
                *("Transport retry count exceeded", "imed out trying to connect"),
            ),
            "gloo, NCCL, UCX and TCPStore in ranks whose peer is gone: a follow-on error if any "
            "other failure is recorded",
            Level.LOST_PEER,
        ),
        pattern(
            HEAD_SILENT,
            "our agents on the other nodes; the head may have failed for its own reason",
            Level.LOST_PEER,
            by=OURS,
        ),
        pattern(
            "] Read error [",
            "gloo, whatever errno says",
            Level.LOST_PEER,
            line=r"gloo/transport/",
        ),
        pattern("] Write", "gloo", Level.LOST_PEER, line=r"gloo/transport/.*Writev? error"),
    ),
)
