echo "$*" >>"$RECORD/scontrol"
case "$1 ${2:-}" in
    "show hostnames") (( ${#NODES[@]} == 0 )) || printf "%s\n" "${NODES[@]}" ;;
    "show job")
        echo "JobId=12345 Requeue=${REQUEUE:-0} Restarts=0 JobState=RUNNING Reason=None" \
            "ExcNodeList=${EXCLUDED:-(null)}" ;;
    requeue\ *) [[ -z ${REQUEUE_FAILS:-} ]] || exit 1 ;;
esac
