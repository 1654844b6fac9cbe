# ---- The run's directory, as `fsdpkit submit` makes it -------------------------------------------
[[ ${SLURM_JOB_ID-} =~ ^[0-9]{1,18}$ ]] || refuse Job "has no number" 'a job of Slurm'
case $PWD in
    *[\"\\[:cntrl:]]*) refuse Directory "is $(printf '%q' "$PWD")" 'no quotes, no backslashes' ;;
esac
if [[ $FSDPKIT_FORM_SCRIPT != /* ]]; then FSDPKIT_FORM_SCRIPT=$PWD/$FSDPKIT_FORM_SCRIPT; fi
[[ -f $FSDPKIT_FORM_SCRIPT ]] || refuse @label@ "is no file: $FSDPKIT_FORM_SCRIPT" \
    @allowed@
export FSDPKIT_FORM_RUN_ID=@job@-$SLURM_JOB_ID
export FSDPKIT_FORM_RUN_DIR=$PWD/runs/$FSDPKIT_FORM_RUN_ID
# The time limit as Slurm has it, which `fsdpkit resume` asks for again; else the default.
export FSDPKIT_FORM_TIME=@time@
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
@job_json@
JOB
    mv "$FSDPKIT_FORM_RUN_DIR/.job.json.$$" "$FSDPKIT_FORM_RUN_DIR/job.json" || return
    FSDPKIT_FORM_JOB_SHA256=$(sha256sum < "$FSDPKIT_FORM_RUN_DIR/job.json") || return
    if [[ -e $FSDPKIT_FORM_RUN_DIR/run.json ]]; then return 0; fi    # queued again
    cat "${BASH_SOURCE[0]}" > "$FSDPKIT_FORM_RUN_DIR/job.sbatch" 2>/dev/null || rm -f "$FSDPKIT_FORM_RUN_DIR/job.sbatch"
    : > "$FSDPKIT_FORM_RUN_DIR/submitit/${SLURM_JOB_ID}_submitted.pkl" || return    # only looked for
    cat > "$FSDPKIT_FORM_RUN_DIR/.run.json.$$" <<RUN || return
@run_json@
RUN
    mv "$FSDPKIT_FORM_RUN_DIR/.run.json.$$" "$FSDPKIT_FORM_RUN_DIR/run.json"
)
write_files || refuse Directory "cannot be written: $PWD" 'one of your own, with space'
FSDPKIT_FORM_JOB_SHA256=$(sha256sum < "$FSDPKIT_FORM_RUN_DIR/job.json") ||
    refuse Directory "cannot be read: $PWD" 'one of your own'
export FSDPKIT_FORM_JOB_SHA256=${FSDPKIT_FORM_JOB_SHA256%% *}
