"""Trackers, licence servers and object stores: what a compute node cannot reach, and what only looks like it."""

# ruff: noqa: E501 - lines of logs stand as they were printed

from __future__ import annotations

from tests.reporting.unseen.case import Case, Rank, Want
from tests.reporting.unseen.second.common import finish

CASES = [
    Case(
        name="wandb-never-answers",
        source="https://github.com/wandb/wandb/issues/7671",
        nodes=2,
        gpus=4,
        ranks={
            0: Rank(
                err="wandb: Using wandb-core as the SDK backend.  Please refer to https://wandb.me/wandb-core for more information.\nwandb: Network error (ConnectTimeout), entering retry loop.\n"
                "wandb: ERROR Run initialization has timed out after 90.0 sec. \nwandb: ERROR Please refer to the documentation for additional information: https://docs.wandb.ai/guides/track/tracking-faq#initstarterror-error-communicating-with-wandb-process-\n"
                'Traceback (most recent call last):\n  File "/home/ada/lm/train.py", line 70, in <module>\n    wandb.init(project="lm", config=vars(args))\n  File "/opt/venv/lib/python3.11/site-packages/wandb/sdk/wandb_init.py", line 1189, in init\n    raise e\n'
                "wandb.errors.CommError: Run initialization has timed out after 90.0 sec. \nPlease refer to the documentation for additional information: https://docs.wandb.ai/guides/track/tracking-faq#initstarterror-error-communicating-with-wandb-process-\n",
                status=1,
            )
        },
        want=Want(
            frozenset({"no-internet"}),
            "no-internet",
            rank=0,
            node="node1",
            forbid=r"NCCL (timeout|fail|cannot)|NCCL_|rendezvous timed out|hang_s",
        ),
    ),
    Case(
        name="wandb-without-a-key",
        source="https://github.com/wandb/wandb/blob/main/wandb/sdk/lib/apikey.py",
        nodes=1,
        gpus=8,
        ranks={
            0: Rank(
                err='Traceback (most recent call last):\n  File "/home/ada/lm/train.py", line 70, in <module>\n    wandb.init(project="lm")\n  File "/opt/venv/lib/python3.11/site-packages/wandb/sdk/wandb_login.py", line 260, in prompt_api_key\n    raise UsageError("api_key not configured (no-tty). call " + directive)\n'
                "wandb.errors.errors.UsageError: api_key not configured (no-tty). call wandb.login(key=[your_api_key])\n",
                status=1,
            )
        },
        want=Want(
            frozenset({"exception", "settings", "environment-missing"}),
            "exception",
            rank=0,
            node="node1",
            forbid=r"no internet|cannot reach|set a proxy",
        ),
    ),
    Case(
        name="wandb-retries-while-a-label-is-wrong",
        source="https://github.com/wandb/wandb/issues/10025",
        nodes=2,
        gpus=4,
        step=900,
        ranks={
            0: Rank(
                err="wandb: Network error (ConnectTimeout), entering retry loop.\nwandb: Network error resolved after 0:02:11.201, resuming normal operation.\n"
                "wandb: 429 encountered (Filestream rate limit exceeded, retrying in 2.3 seconds.), retrying request\n"
                'Traceback (most recent call last):\n  File "/home/ada/cls/train.py", line 121, in <module>\n    acc = accuracy(logits, labels)\n  File "/home/ada/cls/metrics.py", line 9, in accuracy\n    return (logits.argmax(-1) == labels).float().mean()\n'
                "RuntimeError: The size of tensor a (64) must match the size of tensor b (63) at non-singleton dimension 0\n"
                "wandb: \nwandb: You can sync this run to the cloud by running:\nwandb: wandb sync /home/ada/cls/wandb/offline-run-20251117_094120-8x1k\nwandb: Find logs at: wandb/run-20251117_094120-8x1k/logs\n",
                status=1,
            )
        },
        want=Want(
            frozenset({"exception"}),
            "exception",
            rank=0,
            node="node1",
            forbid=r"no internet|cannot reach|wandb offline|check the network|firewall",
            retry="crash",
        ),
    ),
    Case(
        name="mlflow-server-refuses",
        source="https://github.com/mlflow/mlflow/blob/master/mlflow/utils/rest_utils.py",
        nodes=2,
        gpus=4,
        ranks={
            0: Rank(
                err="WARNING:urllib3.connectionpool:Retrying (Retry(total=0, connect=0, read=7, redirect=7, status=7)) after connection broken by 'NewConnectionError('<urllib3.connection.HTTPConnection object at 0x7f54>: Failed to establish a new connection: [Errno 111] Connection refused')': /api/2.0/mlflow/experiments/get-by-name?experiment_name=lm\n"
                'Traceback (most recent call last):\n  File "/home/ada/lm/train.py", line 66, in <module>\n    mlflow.set_experiment("lm")\n  File "/opt/venv/lib/python3.11/site-packages/mlflow/utils/rest_utils.py", line 182, in http_request\n    raise MlflowException(f"API request to {url} failed with exception {e}")\n'
                "mlflow.exceptions.MlflowException: API request to http://mlflow.lab.example:5000/api/2.0/mlflow/experiments/get-by-name failed with exception HTTPConnectionPool(host='mlflow.lab.example', port=5000): Max retries exceeded with url: /api/2.0/mlflow/experiments/get-by-name?experiment_name=lm (Caused by NewConnectionError('<urllib3.connection.HTTPConnection object at 0x7f54>: Failed to establish a new connection: [Errno 111] Connection refused'))\n",
                status=1,
            )
        },
        want=Want(
            frozenset({"no-internet"}),
            "no-internet",
            rank=0,
            node="node1",
            forbid=r"NCCL (timeout|fail|cannot)|NCCL_|head node is|MASTER_ADDR|other ranks failed",
        ),
    ),
    Case(
        name="licence-server-silent",
        source="https://www.mathworks.com/help/install/license/troubleshoot-license-manager-errors.html",
        nodes=4,
        gpus=2,
        ranks={
            r: Rank(
                err='Traceback (most recent call last):\n  File "/home/ada/cfd/couple.py", line 14, in <module>\n    eng = matlab.engine.start_matlab()\n  File "/opt/venv/lib/python3.10/site-packages/matlab/engine/matlabengine.py", line 71, in feval\nmatlab.engine.EngineError: License checkout failed.\nLicense Manager Error -15\nUnable to connect to the license server. \nCheck that the network license manager has been started, and that the client machine can communicate with the license server.\n',
                status=1,
                after_s=0.4 * r,
            )
            for r in range(8)
        },
        want=Want(
            frozenset({"no-internet"}),
            "no-internet",
            rank="any",
            node="any",
            forbid=r"NCCL (timeout|fail|cannot)|NCCL_|rendezvous timed out",
        ),
    ),
    Case(
        name="bucket-endpoint-out-of-reach",
        source="https://github.com/boto/botocore/blob/develop/botocore/exceptions.py",
        nodes=2,
        gpus=4,
        ranks={
            r: Rank(
                err='Traceback (most recent call last):\n  File "/opt/venv/lib/python3.11/site-packages/aiobotocore/httpsession.py", line 222, in send\n    raise EndpointConnectionError(endpoint_url=request.url, error=e)\n'
                'botocore.exceptions.EndpointConnectionError: Could not connect to the endpoint URL: "https://corpus.s3.eu-central-1.amazonaws.com/?list-type=2&prefix=c4%2F&delimiter=&encoding-type=url"\n\n'
                "The above exception was the direct cause of the following exception:\n\n"
                'Traceback (most recent call last):\n  File "/home/ada/lm/train.py", line 44, in <module>\n    shards = fs.glob("s3://corpus/c4/*.parquet")\n  File "/opt/venv/lib/python3.11/site-packages/s3fs/core.py", line 146, in _error_wrapper\n    raise err\n'
                'OSError: Could not connect to the endpoint URL: "https://corpus.s3.eu-central-1.amazonaws.com/?list-type=2&prefix=c4%2F&delimiter=&encoding-type=url"\n',
                status=1,
                after_s=0.1 * r,
            )
            for r in range(8)
        },
        want=Want(
            frozenset({"no-internet"}),
            "no-internet",
            rank="any",
            node="any",
            forbid=r"NCCL (timeout|fail|cannot)|NCCL_|rendezvous timed out",
        ),
    ),
    Case(
        name="bucket-without-credentials",
        source="https://github.com/boto/botocore/blob/develop/botocore/exceptions.py",
        nodes=1,
        gpus=8,
        ranks={
            r: Rank(
                err='Traceback (most recent call last):\n  File "/home/ada/lm/train.py", line 44, in <module>\n    boto3.client("s3").download_file("corpus", "c4/0.parquet", "/tmp/0.parquet")\n  File "/opt/venv/lib/python3.11/site-packages/botocore/auth.py", line 425, in add_auth\n    raise NoCredentialsError()\n'
                "botocore.exceptions.NoCredentialsError: Unable to locate credentials\n",
                status=1,
                after_s=0.1 * r,
            )
            for r in range(8)
        },
        want=Want(
            frozenset({"exception", "settings", "environment-missing"}),
            "exception",
            rank="any",
            node="any",
            forbid=r"no internet|cannot reach|set a proxy",
        ),
    ),
    Case(
        name="package-index-from-within-a-rank",
        source="https://pip.pypa.io/en/stable/topics/configuration/",
        nodes=2,
        gpus=4,
        ranks={
            r: Rank(
                err="WARNING: Retrying (Retry(total=0, connect=None, read=None, redirect=None, status=None)) after connection broken by 'NewConnectionError('<pip._vendor.urllib3.connection.HTTPSConnection object at 0x7f1c>: Failed to establish a new connection: [Errno -3] Temporary failure in name resolution')': /simple/sentencepiece/\n"
                "ERROR: Could not find a version that satisfies the requirement sentencepiece (from versions: none)\nERROR: No matching distribution found for sentencepiece\n"
                'Traceback (most recent call last):\n  File "/home/ada/lm/train.py", line 11, in <module>\n    subprocess.check_call([sys.executable, "-m", "pip", "install", "sentencepiece"])\n  File "/usr/lib/python3.11/subprocess.py", line 413, in check_call\n    raise CalledProcessError(retcode, cmd)\n'
                "subprocess.CalledProcessError: Command '['/opt/venv/bin/python', '-m', 'pip', 'install', 'sentencepiece']' returned non-zero exit status 1.\n",
                status=1,
                after_s=0.2 * r,
            )
            for r in range(8)
        },
        want=Want(
            frozenset({"no-internet", "import-error"}),
            "no-internet",
            rank="any",
            node="any",
            forbid=r"head node is|MASTER_ADDR",
        ),
    ),
]

CASES = finish(CASES)
