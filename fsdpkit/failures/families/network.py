"""Causes: names, addresses, ports and links, from the world outside to the network between GPUs."""

from __future__ import annotations

from fsdpkit.failures.cause import Cause
from fsdpkit.failures.patterns import pattern
from fsdpkit.runs.failures import Level

NO_INTERNET = Cause(
    "no-internet",
    "{who} could not reach a service outside the cluster: {words}",
    again="no, while the nodes have no internet access",
    patterns=(
        pattern(
            "Could not resolve host:  | curl: (7) | curl: (28)",
            "curl and git, of what a container, a prelude or a script fetches",
        ),
        pattern(
            "couldn't connect to | Can't load the configuration of | LocalEntryNotFound | "
            "offline mode is enabled | outgoing traffic has been disabled | Cannot reach https | "
            "we cannot find the requested files in the | "
            "cannot find the requested files in the disk cache | Network error (Con | "
            "Max retries exceeded with url | Failed to establish a new connection | "
            "Could not reach | annot connect to host | Couldn't reach | "
            "onnect to the license server | icense server | connection broken by",
            "Hugging Face's libraries, urllib3, aiohttp, wandb, licence managers, pip",
            quoted=True,
            line=r"(?i)huggingface|https?://(?!localhost|127\.)|host=|hub|dataset|wandb|"
            r"connection error|network error|cannot connect to host [\w-]+\.[\w.-]+:443|"
            r"licen[sc]e server.{0,60}(?:connect|reach|down|respond|timed out)|"
            r"(?:connect|reach).{0,60}licen[sc]e server|"
            r"NewConnectionError|ConnectTimeoutError|NameResolutionError",
        ),
    ),
)

PORT_TAKEN = Cause(
    "port-taken",
    "A port was already in use on {who}: {words}",
    patterns=(
        pattern(
            "server socket has failed to listen | EADDRINUSE | Address already in use",
            "torch's TCPStore and the kernel",
        ),
    ),
)

PORTS_BLOCKED = Cause(
    "ports-blocked",
    "The nodes cannot reach each other's ports: {who}: {words}",
    again="not until the network between the nodes allows these ports",
    retry="settings",
)

HEAD_ADDRESS = Cause(
    "head-address",
    "{who} could not find the head node by its address: {words}",
    patterns=(
        pattern(
            "The IPv…network addresses of …cannot be retrieved | Name or service not known | "
            "Temporary failure in name resolution | No address associated with hostname | "
            "DNS resolution failed | no such host",
            "torch's TCPStore, getaddrinfo(3), gRPC, Go",
        ),
        pattern("No route to host | Network is unreachable", "connect(2)", Level.WAITED),
    ),
)

NETWORK_SETUP = Cause(
    "network-setup",
    "{who} could not set up the network between the GPUs: {words}",
    again="not until the network setup changes",
    patterns=(
        pattern(
            "Unable to find address for:  | unable to find interface | ifa != nullptr | "
            "no usable transports | UCX ERROR | UCX  ERROR | UCX  WARN…not available | "
            "fi_getinfo | OFI fi_ | OFI …failed | OFI …Error:  | Error: ucp_ep_create",
            "gloo, of GLOO_SOCKET_IFNAME; UCX and libfabric; NCCL",
        ),
        pattern(
            "connectFullMesh failed",
            "gloo, which listened on an address that others cannot reach",
            line=r"\[?(?:127\.|::1)",
        ),
        pattern(
            "connectFullMesh failed",
            "gloo, of a rank that it did not reach, or that was gone",
            Level.WAITED,
            line=r"^(?!.*(?:closed|reset) by peer)",
        ),
    ),
)

RENDEZVOUS_TIMEOUT = Cause(
    "rendezvous-timeout",
    "The nodes did not meet in time: {who}: {words}",
    patterns=(
        pattern(
            "RendezvousTimeoutError | RendezvousConnectionError | client socket has timed out | "
            "client socket has failed to connect | waiting for clients | wait timeout after  | "
            "got error: Socket Timeout | in store based barrier",
            "torchrun; torch's TCPStore on a node that does not reach the head, on the head, and "
            "of a key that nobody sets",
            Level.WAITED,
        ),
    ),
)

CONNECTION_RESET = Cause(
    "connection-reset",
    "{who} lost the connection to another rank or node; the cause is unknown: {words}",
    patterns=(
        pattern(
            "onnection reset | onnection closed | onnection refused | closed by peer | "
            "roken pipe | Socket Timeout | Socket timeout | ncclRemoteError | ncclSystemError | "
            "remote process exited | communicator was aborted | ConnectionResetError | "
            "BrokenPipeError | failed to recv, got 0 bytes | DistNetworkError | DistStoreError | "
            "Connection timed out | Transport retry count exceeded | imed out trying to connect | "
            "gloo/transport/…] Read error [ | gloo/transport/…Write error | "
            "gloo/transport/…Writev error",
            "gloo, NCCL, UCX and TCPStore in ranks whose peer is gone: a follow-on error if any "
            "other failure is recorded",
            Level.LOST_PEER,
        ),
    ),
)
