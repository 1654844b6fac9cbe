echo "$*" >>"$RECORD/srun"
cat >"$RECORD/task.sh"
while [[ $1 != bash ]]; do shift; done
for (( task = 0; task < ${#NODES[@]}; task++ )); do
    SLURM_NODEID=$task SLURM_PROCID=$task SLURMD_NODENAME=${NODES[task]} SLURM_LOCALID=0 \
        "$@" <"$RECORD/task.sh" && echo 0 >"$RECORD/status.$task" ||
        { failed=$?; echo "$failed" >"$RECORD/status.$task"; }
done
until [[ -z ${HOLD:-} || -e $RECORD/go ]]; do /usr/bin/sleep 0.05; done
exit "${SRUN_STATUS:-${failed:-0}}"
