#!/bin/bash -p

# ---- What the form says --------------------------------------------------------------------------
# Everything below is the template's own script, made by the renderer that `fsdpkit submit` uses. In
# place of values it holds variables; here each is checked, and none is used before.
refuse() {    # which field, what is wrong, what is allowed
    printf 'fsdpkit: the form: %s: %s; allowed: %s\n' "$1" "$2" "$3" >&2
    exit 65
}
check() {    # variable, field, what is allowed, most characters, pattern
    local LC_ALL=C value=${!1-}
    [[ -n $value ]] || refuse "$2" "is empty" "$3"
    (( ${#value} <= $4 )) || refuse "$2" "has ${#value} bytes" "$3, at most $4 characters"
    [[ $value != *[![:print:]]* ]] ||
        refuse "$2" "is $(printf '%q' "${value:0:60}")" "$3, in printable ASCII"
    [[ $value =~ ^($5)$ ]] || refuse "$2" "is $(printf '%q' "${value:0:60}")" "$3"
}
scaled() {    # a number with up to six decimals, in millionths
    local part=
    if [[ $1 == *.* ]]; then part=${1#*.}; fi
    part=${part}000000
    millionths=$(( 10#${1%%.*} * 1000000 + 10#${part:0:6} ))
}
json() {    # a checked text as JSON has it
    local text=${!1//\\/\\\\}
    printf '"%s"' "${text//\"/\\\"}"
}
check FSDPKIT_FORM_DIRECTORY 'Directory of the job' 'the whole path of a directory, of letters, digits and ._/@%+,=:-, no ..' 1000 '/[A-Za-z0-9_./@%+,=:-]*'
case /$FSDPKIT_FORM_DIRECTORY/ in */../*) refuse 'Directory of the job' "is $FSDPKIT_FORM_DIRECTORY" 'the whole path of a directory, of letters, digits and ._/@%+,=:-, no ..' ;; esac
cd -- "$FSDPKIT_FORM_DIRECTORY" 2>/dev/null || refuse 'Directory of the job' "cannot be entered: $FSDPKIT_FORM_DIRECTORY" 'the whole path of a directory, of letters, digits and ._/@%+,=:-, no ..'
export FSDPKIT_FORM_DIRECTORY
check FSDPKIT_FORM_SCRIPT 'Training script' 'the path of a Python file, of letters, digits and ._/@%+,=:-, no dash in front, no ..' 1000 '[A-Za-z0-9_./@%+,=:][A-Za-z0-9_./@%+,=:-]*\.py'
case /$FSDPKIT_FORM_SCRIPT/ in */../*) refuse 'Training script' "is $FSDPKIT_FORM_SCRIPT" 'the path of a Python file, of letters, digits and ._/@%+,=:-, no dash in front, no ..' ;; esac
export FSDPKIT_FORM_SCRIPT
if [[ -n ${FSDPKIT_FORM_ARGUMENTS-} ]]; then
    check FSDPKIT_FORM_ARGUMENTS Arguments 'words of letters, digits and ._/@%+,=:-, with one space between two' 4000 '[A-Za-z0-9_./@%+,=:-]+( [A-Za-z0-9_./@%+,=:-]+)*'
fi
IFS=' ' read -ra FSDPKIT_FORM_WORDS <<<"${FSDPKIT_FORM_ARGUMENTS-}"
check FSDPKIT_FORM_ENVIRONMENT 'Python environment' 'the whole path of a directory, of letters, digits and ._/@%+,=:-, no ..' 1000 '/[A-Za-z0-9_./@%+,=:-]*'
case /$FSDPKIT_FORM_ENVIRONMENT/ in */../*) refuse 'Python environment' "is $FSDPKIT_FORM_ENVIRONMENT" 'the whole path of a directory, of letters, digits and ._/@%+,=:-, no ..' ;; esac
export FSDPKIT_FORM_ENVIRONMENT
check FSDPKIT_FORM_GPUS 'GPUs per node' 'a whole number from 1 to 2' 1000 '[1-9][0-9]{0,3}'
(( FSDPKIT_FORM_GPUS >= 1 && FSDPKIT_FORM_GPUS <= 2 )) || refuse 'GPUs per node' "is $FSDPKIT_FORM_GPUS" 'a whole number from 1 to 2'
export FSDPKIT_FORM_GPUS
check FSDPKIT_FORM_P_WAIT_S 'Wait (seconds)' 'a whole number from 1 to 3600' 20 '0|[1-9][0-9]{0,8}'
(( FSDPKIT_FORM_P_WAIT_S >= 1 && FSDPKIT_FORM_P_WAIT_S <= 3600 )) || refuse 'Wait (seconds)' "is $FSDPKIT_FORM_P_WAIT_S" 'a whole number from 1 to 3600'
export FSDPKIT_FORM_P_WAIT_S
check FSDPKIT_FORM_P_SHARE Share 'a number from 0.25 to 1.5' 20 '(0|[1-9][0-9]{0,8})(\.[0-9]{1,6})?'
scaled "$FSDPKIT_FORM_P_SHARE"
(( millionths >= 250000 && millionths <= 1500000 )) || refuse Share "is $FSDPKIT_FORM_P_SHARE" 'a number from 0.25 to 1.5'
export FSDPKIT_FORM_P_SHARE
check FSDPKIT_FORM_P_TAG Tag 'text that matches [a-z]{1,8}(-\d{1,3})?' 1000 '[a-z]{1,8}(-[0-9]{1,3})?'
export FSDPKIT_FORM_P_TAG
check FSDPKIT_FORM_P_MODE Mode 'one of fast, very slow' 1000 '.*'
case $FSDPKIT_FORM_P_MODE in
    fast | 'very slow') ;;
    *) refuse Mode "is $FSDPKIT_FORM_P_MODE" 'one of fast, very slow' ;;
esac
export FSDPKIT_FORM_P_MODE
export FSDPKIT_FORM_NODES=${SLURM_JOB_NUM_NODES-}    # what Slurm gave, whatever was asked for
check FSDPKIT_FORM_NODES Nodes 'a job that Slurm has started' 5 '[1-9][0-9]*'
(( FSDPKIT_FORM_NODES >= 1 && FSDPKIT_FORM_NODES <= 8 )) || refuse Nodes "are $FSDPKIT_FORM_NODES" '1 to 8 nodes'

# ---- The run's directory, as `fsdpkit submit` makes it -------------------------------------------
[[ ${SLURM_JOB_ID-} =~ ^[0-9]{1,18}$ ]] || refuse Job "has no number" 'a job of Slurm'
case $PWD in
    *[\"\\[:cntrl:]]*) refuse Directory "is $(printf '%q' "$PWD")" 'no quotes, no backslashes' ;;
esac
if [[ $FSDPKIT_FORM_SCRIPT != /* ]]; then FSDPKIT_FORM_SCRIPT=$PWD/$FSDPKIT_FORM_SCRIPT; fi
[[ -f $FSDPKIT_FORM_SCRIPT ]] || refuse 'Training script' "is no file: $FSDPKIT_FORM_SCRIPT" \
    'the path of a Python file, of letters, digits and ._/@%+,=:-, no dash in front, no ..'
export FSDPKIT_FORM_RUN_ID=train-$SLURM_JOB_ID
export FSDPKIT_FORM_RUN_DIR=$PWD/runs/$FSDPKIT_FORM_RUN_ID
# The time limit as Slurm has it, which `fsdpkit resume` asks for again; else the default.
export FSDPKIT_FORM_TIME=04:00:00
# What its number means is told by the comment of a run's job; else by its cluster and submission.
told=$(SLURM_TIME_FORMAT=%s timeout 20 squeue --noheader --format='%l|%V|%k' \
    --jobs "$SLURM_JOB_ID" 2>/dev/null) || told=
IFS='|' read -r limit taken_s comment <<<"${told//[[:space:]]/}"
[[ $taken_s =~ ^[0-9]{1,11}$ ]] || taken_s=null
cluster=null
if [[ ${SLURM_CLUSTER_NAME-} =~ ^[A-Za-z0-9_.-]{1,127}$ ]]; then
    cluster=\"$SLURM_CLUSTER_NAME\"
fi
if [[ $comment == "(null)" ]]; then
    timeout 20 scontrol update JobId="$SLURM_JOB_ID" Comment="fsdpkit:$FSDPKIT_FORM_RUN_ID" 2>/dev/null || true
fi
if [[ $limit =~ ^([0-9]{1,2}-)?([0-9]{1,2}:){1,2}[0-9]{2}$ ]]; then FSDPKIT_FORM_TIME=$limit; fi
words=
for word in ${FSDPKIT_FORM_WORDS[@]+"${FSDPKIT_FORM_WORDS[@]}"}; do words+="${words:+, }\"$word\""; done
write_files() (    # only checked values and Slurm's own numbers are expanded in it
    umask 077
    mkdir -p "${FSDPKIT_FORM_RUN_DIR%/*}" || return
    mkdir "$FSDPKIT_FORM_RUN_DIR" 2>/dev/null || [[ -O $FSDPKIT_FORM_RUN_DIR && ! -L $FSDPKIT_FORM_RUN_DIR ]] || return
    mkdir -p "$FSDPKIT_FORM_RUN_DIR/submitit" || return
    cat > "$FSDPKIT_FORM_RUN_DIR/.job.json.$$" <<JOB || return
{"schema": "fsdpkit.job/1", "name": "train", "entry": "${FSDPKIT_FORM_SCRIPT}", "resources": {"nodes": ${FSDPKIT_FORM_NODES}, "gpus": ${FSDPKIT_FORM_GPUS}, "time": "${FSDPKIT_FORM_TIME}", "cpus_per_gpu": null, "memory": null, "partition": null, "qos": null, "constraint": null, "reservation": null, "nodelist": null, "exclude": null, "exclusive": false, "spare": 0}, "slurm": {"options": {}}, "steps": {"before": null, "each_node": null, "after": null}, "description": "", "template": "small", "args": [$words], "environment": {"modules": null, "conda": null, "venv": "${FSDPKIT_FORM_ENVIRONMENT}", "container": null, "variables": {}, "prepend": {}}, "parameters": {"wait_s": ${FSDPKIT_FORM_P_WAIT_S}, "share": ${FSDPKIT_FORM_P_SHARE}, "tag": $(json FSDPKIT_FORM_P_TAG), "mode": "${FSDPKIT_FORM_P_MODE}"}, "launch": {"warm": "auto", "ranks_per_node": null, "world": "checked", "check": true, "preload": [], "accelerate_config": null, "accelerate_args": []}, "retry": {"on_time_limit": "requeue", "on_preemption": "requeue", "on_node_failure": "restart", "on_crash": "restart", "on_hang": "restart", "on_out_of_memory": "stop", "args_again": [], "restarts": 3, "requeues": 3, "backoff_s": 5.0, "hang_s": 600, "on_idle_gpus": "warn", "idle_gpus_s": 1200, "lost_s": 30, "avoid_node_h": 6.0}, "notify": {"mail": null, "command": [], "on": ["end", "failure", "requeue", "idle"], "limit_s": 20}}
JOB
    mv "$FSDPKIT_FORM_RUN_DIR/.job.json.$$" "$FSDPKIT_FORM_RUN_DIR/job.json" || return
    FSDPKIT_FORM_JOB_SHA256=$(sha256sum < "$FSDPKIT_FORM_RUN_DIR/job.json") || return
    if [[ -e $FSDPKIT_FORM_RUN_DIR/run.json ]]; then return 0; fi    # queued again
    cat "${BASH_SOURCE[0]}" > "$FSDPKIT_FORM_RUN_DIR/job.sbatch" 2>/dev/null || rm -f "$FSDPKIT_FORM_RUN_DIR/job.sbatch"
    : > "$FSDPKIT_FORM_RUN_DIR/submitit/${SLURM_JOB_ID}_submitted.pkl" || return    # only looked for
    cat > "$FSDPKIT_FORM_RUN_DIR/.run.json.$$" <<RUN || return
{"schema": "fsdpkit.run/1", "id": "${FSDPKIT_FORM_RUN_ID}", "state": "submitted", "created_s": $(printf '%(%s)T' -1), "name": "train", "site": "egret", "kind": "slurm", "cluster": "egret", "job_id": "${SLURM_JOB_ID}", "slurm_cluster": $cluster, "slurm_submit_s": $taken_s, "nodes": ${FSDPKIT_FORM_NODES}, "ranks_per_node": ${FSDPKIT_FORM_GPUS}, "work_dir": "${PWD}", "version": "0.0.0", "template": "small 1.0.0", "digests": {"template": "0000000000000000000000000000000000000000000000000000000000000000", "site": "0000000000000000000000000000000000000000000000000000000000000000", "job": "${FSDPKIT_FORM_JOB_SHA256%% *}"}}
RUN
    mv "$FSDPKIT_FORM_RUN_DIR/.run.json.$$" "$FSDPKIT_FORM_RUN_DIR/run.json"
)
write_files || refuse Directory "cannot be written: $PWD" 'one of your own, with space'
FSDPKIT_FORM_JOB_SHA256=$(sha256sum < "$FSDPKIT_FORM_RUN_DIR/job.json") ||
    refuse Directory "cannot be read: $PWD" 'one of your own'
export FSDPKIT_FORM_JOB_SHA256=${FSDPKIT_FORM_JOB_SHA256%% *}
RUN="$FSDPKIT_FORM_RUN_DIR"
TAG="$FSDPKIT_FORM_P_TAG"
MODE="$FSDPKIT_FORM_P_MODE"
VIRTUAL_ENV="$FSDPKIT_FORM_ENVIRONMENT"
PROGRAM=("$FSDPKIT_FORM_SCRIPT")
PROGRAM+=("${FSDPKIT_FORM_WORDS[@]}")
set -euo pipefail
export TAG MODE SHARE=${FSDPKIT_FORM_P_SHARE} WAIT=${FSDPKIT_FORM_P_WAIT_S} RANKS=${FSDPKIT_FORM_GPUS}
export RUN SLURM_EXPORT_ENV=ALL
trap 'touch "$RUN/stop-requested"' USR1
status=0
srun --nodes=${FSDPKIT_FORM_NODES} --ntasks-per-node=1 python3 "${PROGRAM[@]}" || status=$?
exit "$status"
