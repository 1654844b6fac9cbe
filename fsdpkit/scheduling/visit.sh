# Runs on the node, with the agent's process, the attempt's directory, the prompt and the command.
# Every value goes on as one word; nothing of the environment is evaluated.
pid=$1 attempt=$2 prompt=$3
shift 3
fail() { printf 'fsdpkit: %s: %s\n' "${SLURMD_NODENAME:-$HOSTNAME}" "$1" >&2; exit 69; }
[[ -r /proc/$pid/environ ]] || fail 'the agent of the run is not there (any more)'
variables=(FSDPKIT_VISIT=1)
found=
while IFS= read -r -d '' line; do
    case $line in
    "FSDPKIT_ATTEMPT_DIR=$attempt") found=1 ;;
    FSDPKIT_CONFIG_DIR=* | FSDPKIT_SITE_PATH=* | FSDPKIT_RUNS=*) variables+=("$line") ;;
    FSDPKIT_* | SUBMITIT_* | TORCHELASTIC_* | PMI*_* | SRUN_* | RDZV_* | BASH_ENV=* | ENV=*) ;;
    TERM=* | COLORTERM=* | PS1=* | PROMPT_COMMAND=* | LINES=* | COLUMNS=* | SHLVL=* | _=*) ;;
    *=*) variables+=("$line") ;;
    esac
done < "/proc/$pid/environ"
[[ -n $found ]] || fail 'the agent of the run is not there (any more)'
if [[ ! /proc/$pid/ns/mnt -ef /proc/self/ns/mnt ]]; then
    echo 'fsdpkit: the job runs in a container; this is the node around it' >&2
    variables=(FSDPKIT_VISIT=1 "PATH=/usr/local/bin:/usr/bin:/bin" "HOME=${HOME:-/}")
else
    cd -P "/proc/$pid/cwd" || fail 'its working directory is gone'
fi
# This step's own, over what the agent's step and the batch shell had.
for name in "${!SLURM@}" TERM COLORTERM; do
    [[ -z ${!name+x} ]] || variables+=("$name=${!name}")
done
if (($#)); then
    exec /usr/bin/env -i "${variables[@]}" /bin/bash -p -c 'exec -- "$@"' fsdpkit "$@"
fi
exec /usr/bin/env -i "${variables[@]}" "PS1=$prompt" /bin/bash --noprofile --norc -i
