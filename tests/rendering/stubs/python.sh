if [[ "$*" == "-c "*" fsdpkit.launching.ending "* ]]; then
    PYTHONPATH=$CHECKOUT exec "$REAL_PYTHON" "$@"
fi
{ printf "%s\n" "$@"; } >"$RECORD/args.$SLURM_NODEID"
env >"$RECORD/env.$SLURM_NODEID"
# The head's agent says that all is done.
if [[ $SLURM_NODEID == 0 && ${SRUN_STATUS:-0} == 0 ]]; then
    echo "{}" >"$FSDPKIT_ATTEMPT_DIR/verdict.json"
fi
